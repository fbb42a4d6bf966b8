"""Labelled texts, and the splits of tokens that become of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.tokens import PADDING
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.split import Parts, limited_positions, split_positions
from sfumato.data.text.embeddings import read_embeddings
from sfumato.data.text.vocabulary import Vocabulary, most_frequent_words

Unknown = Literal["token", "drop"]


@dataclass(frozen=True)
class Documents:
    """Texts with the number of the class of each."""

    texts: Sequence[str]
    labels: Sequence[int]

    def __add__(self, others: Documents) -> Documents:
        return Documents([*self.texts, *others.texts], [*self.labels, *others.labels])


@dataclass(frozen=True)
class TokenOptions:
    """How texts become tokens.

    Args:
        vocabulary: the most frequent words of the training texts that are kept, at most.
        length: tokens that are kept of each text, from its beginning.
        unknown: whether any other word is one and the same `token`, or is left out (`drop`).
        embeddings: file of word vectors, or None.
    """

    vocabulary: int
    length: int
    unknown: Unknown
    embeddings: str | Path | None

    def __post_init__(self) -> None:
        check_integer("vocabulary", self.vocabulary, low=1)
        check_integer("length", self.length, low=1)
        check_choice("unknown", self.unknown, ("token", "drop"))

    def vocabulary_of(self, texts: Iterable[str]) -> Vocabulary:
        """The vocabulary of training texts, with its vectors where there is a file of them."""
        words = most_frequent_words(texts, self.vocabulary)
        if not words:
            raise ValueError("the training texts have no words; which language and encoding?")
        vectors = None if self.embeddings is None else read_embeddings(self.embeddings, words)
        return Vocabulary(words, self.length, self.unknown == "drop", vectors)


def cut_parts(
    train: Documents,
    classes: Sequence[str],
    *,
    test: Documents | float | int,
    validation: Documents | float | int,
    limit_train: int | None,
    limit_test: int | None,
    seed: int,
) -> tuple[Documents, Parts]:
    """All documents, and which of them are trained, validated and tested on, stratified.

    A part that a source has of its own is added to the others; a share or count is cut from
    `train`.
    """
    own_test, own_validation = isinstance(test, Documents), isinstance(validation, Documents)
    cut = split_positions(
        torch.tensor(train.labels, dtype=torch.int64),
        num_classes=len(classes),
        test=0 if isinstance(test, Documents) else test,
        validation=0 if isinstance(validation, Documents) else validation,
        limit_train=limit_train,
        seed=seed,
    )
    every, parts = train, cut
    for name, part, own in (("test", test, own_test), ("validation", validation, own_validation)):
        if own and isinstance(part, Documents):
            parts = parts._replace(**{name: torch.arange(len(part.texts)) + len(every.texts)})
            every = every + part
    labels = torch.tensor(every.labels, dtype=torch.int64)
    kept = limited_positions(labels[parts.test], limit_test=limit_test, seed=seed)
    return every, parts._replace(test=parts.test[kept])


def token_splits(
    documents: Documents, parts: Parts, classes: Sequence[str], options: TokenOptions
) -> DataSplits:
    """Splits of tokens; only the training part decides which words there are.

    Each part is held by length, shortest first, so that batches in its order hold little padding;
    `index` is the position in `documents`.
    """
    vocabulary = options.vocabulary_of(documents.texts[place] for place in parts.train.tolist())
    labels = torch.tensor(documents.labels, dtype=torch.int64)

    def dataset(positions: Tensor) -> ArrayDataset:
        tokens = vocabulary.encode(documents.texts[place] for place in positions.tolist())
        order = (tokens != PADDING).sum(1).argsort(stable=True)
        return ArrayDataset(
            tokens[order],
            labels[positions][order],
            tuple(classes),
            index=positions[order],
            vocabulary=vocabulary,
        )

    return DataSplits(*(dataset(part) for part in parts))
