"""Texts as tokens: vocabulary, word vectors, and the sources of texts."""
