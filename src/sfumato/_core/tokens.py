"""Numbers of tokens that stand for no word, the same for vocabularies and networks."""

from __future__ import annotations

PADDING = 0
"""Fills a row after the end of its text."""
UNKNOWN = 1
"""Every word that is not in the vocabulary."""
RESERVED = 2
"""The number of the first word."""
