"""Words as numbers: a tokenizer, and the vocabulary that the training texts have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.tokens import PADDING, RESERVED, UNKNOWN

# Letters and digits of any script; an apostrophe inside a word belongs to it.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, in order; punctuation separates them.

    Example:
        >>> split_words("Don't panic: it's 42_km!")
        ["don't", 'panic', "it's", '42', 'km']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words that a network knows, each with its number, and how a text becomes numbers.

    Args:
        words: that of number 2 first, after padding (0) and the unknown word (1).
        length: tokens that are kept of a text, from its beginning.
        drop_unknown: whether other words are left out instead of being one and the same token.
        vectors: float32, (len(words) + 2, D), a vector for each number, or None where the
            network learns its own.

    Example:
        >>> vocabulary = Vocabulary(("the", "cat"), length=4)
        >>> vocabulary.encode(["The cat sat.", "Cat?"]).tolist()
        [[2, 3, 1], [3, 0, 0]]
    """

    words: tuple[str, ...]
    length: int
    drop_unknown: bool = False
    vectors: Tensor | None = None

    def __post_init__(self) -> None:
        check_integer("length", self.length, low=1)
        if self.vectors is not None and self.vectors.shape[:-1] != (self.size,):
            raise ValueError(
                f"vectors must be ({self.size}, D), one for each of {len(self.words)} words, for "
                f"padding and for unknown words, got {tuple(self.vectors.shape)}"
            )

    @property
    def size(self) -> int:
        """How many numbers there are, padding and the unknown word included."""
        return len(self.words) + RESERVED

    def encode(self, texts: Iterable[str]) -> Tensor:
        """Tokens as int32, (N, T): T is that of the longest text, shorter ones end in padding.

        A text without any word that is kept is one unknown word, so that every text has tokens.
        """
        numbers = {word: number for number, word in enumerate(self.words, RESERVED)}
        rows = [self._row(split_words(text), numbers) for text in texts]
        tokens = torch.full((len(rows), max(map(len, rows), default=1)), PADDING, dtype=torch.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.tensor(row, dtype=torch.int32)
        return tokens

    def decode(self, tokens: Tensor) -> str:
        """The words of one text (T,) as a network saw them; an ellipsis for unknown ones.

        Example:
            >>> Vocabulary(("the", "cat"), length=4).decode(torch.tensor([2, 1, 3, 0]))
            'the … cat'
        """
        known = ("", "…", *self.words)
        return " ".join(known[token] for token in tokens.tolist() if token != PADDING)

    def _row(self, words: Sequence[str], numbers: dict[str, int]) -> list[int]:
        if self.drop_unknown:
            found = [numbers[word] for word in words if word in numbers]
        else:
            found = [numbers.get(word, UNKNOWN) for word in words]
        return found[: self.length] or [UNKNOWN]


def most_frequent_words(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """At most `size` words, the most frequent first; equally frequent ones in alphabetic order.

    Example:
        >>> most_frequent_words(["b a b", "c a b"], 2)
        ('b', 'a')
    """
    check_integer("vocabulary", size, low=1)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple(word for word, _ in ranked[:size])
