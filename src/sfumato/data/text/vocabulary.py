"""Words as numbers: a tokenizer, vocabularies, and word vectors from files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sfumato._core.checks import check_integer
from sfumato._core.files import open_arrays, open_file
from sfumato._core.tokens import PADDING, RESERVED, UNKNOWN

# Letters and digits of any script; an apostrophe inside a word belongs to it.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, in order; punctuation separates them.

    Example:
        >>> split_words("Don't panic: it's 42_km!")
        ["don't", 'panic', "it's", '42', 'km']
    """
    return list(_words(text))


def _words(text: str) -> Iterator[str]:
    """One after the other: a list of the words of a long text takes twenty times its memory."""
    return (found.group() for found in _WORD.finditer(text.lower()))


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
        """Count of the numbers, padding and the unknown word included."""
        return len(self.words) + RESERVED

    def encode(self, texts: Iterable[str]) -> Tensor:
        """Tokens as int32, (N, T): T is that of the longest text, shorter ones end in padding.

        A text without any word that is kept is one unknown word, so that every text has tokens.
        """
        numbers = {word: number for number, word in enumerate(self.words, RESERVED)}
        rows = []
        for text in texts:
            found = (numbers.get(word, UNKNOWN) for word in _words(text))
            known = (number for number in found if number != UNKNOWN or not self.drop_unknown)
            row = list(islice(known, self.length)) or [UNKNOWN]
            rows.append(torch.tensor(row, dtype=torch.int32))
        if not rows:
            return torch.empty(0, 1, dtype=torch.int32)
        return pad_sequence(rows, batch_first=True, padding_value=PADDING)

    def decode(self, tokens: Tensor) -> str:
        """The words of one text (T,) as a network saw them; an ellipsis for unknown ones.

        Example:
            >>> Vocabulary(("the", "cat"), length=4).decode(torch.tensor([2, 1, 3, 0]))
            'the … cat'
        """
        known = ("", "…", *self.words)
        return " ".join(known[token] for token in tokens.tolist() if token != PADDING)


def most_frequent_words(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """At most `size` words, the most frequent first; equally frequent ones in alphabetic order.

    Example:
        >>> most_frequent_words(["b a b", "c a b"], 2)
        ('b', 'a')
    """
    check_integer("vocabulary", size, low=1)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_words(text))
    # Equal counts by letters, so that the order of the texts decides nothing.
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple(word for word, _ in ranked[:size])


def read_embeddings(path: str | Path, words: Sequence[str]) -> Tensor:
    """Vectors of `words`, and before them of padding and of the unknown word, float32 (V, D).

    What the file doesn't have (padding and the unknown word among it) is a vector of zeros.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path.absolute()}: no such file; expected word vectors (GloVe)")
    rows = {word: row for row, word in enumerate(words, RESERVED)}
    read = _read_npz if path.suffix == ".npz" else _read_text
    found = read(path, rows)
    width = next((len(vector) for vector in found.values()), None)
    if width is None:
        raise ValueError(
            f"{path}: has no vector for any of the {len(words)} words of the vocabulary; vectors "
            "of which language are these?"
        )
    vectors = torch.zeros(len(words) + RESERVED, width)
    places = torch.tensor(list(found))
    vectors[places] = torch.from_numpy(np.stack(list(found.values())).astype(np.float32))
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError(f"{path}: holds numbers that are not finite")
    return vectors


def _read_npz(path: Path, rows: Mapping[str, int]) -> dict[int, np.ndarray]:
    try:
        with open_arrays(path) as arrays:
            content = {name: arrays[name] for name in ("words", "vectors")}
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}; expected words and vectors") from None
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: not readable as .npz without pickle: {error}") from error
    joined, vectors = content["words"], content["vectors"]
    if joined.dtype != np.uint8 or vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise ValueError(
            f"{path}: words must be newline-joined UTF-8 as uint8 and vectors floating point "
            f"(N, D), got {joined.dtype} {joined.shape} and {vectors.dtype} {vectors.shape}"
        )
    names = _decoded(joined.tobytes(), str(path)).split("\n")
    if len(names) != len(vectors):
        raise ValueError(f"{path}: {len(names)} words for {len(vectors)} vectors")
    return {rows[name]: vectors[at] for at, name in enumerate(names) if name in rows}


def _read_text(path: Path, rows: Mapping[str, int]) -> dict[int, np.ndarray]:
    # Only the vectors that are wanted are parsed: these files hold hundreds of thousands.
    found: dict[int, np.ndarray] = {}
    width = 0
    for number, word, values in _lines(path):
        width = width or len(values)
        if len(values) != width:
            raise ValueError(
                f"{path}, line {number}: a vector of {len(values)} numbers among ones of {width}; "
                "expected a word and as many numbers on every line"
            )
        if word in rows:
            try:
                found[rows[word]] = np.array([float(value) for value in values])
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return found


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            word, *values = _decoded(line, f"{path}, line {number}").rstrip("\r\n").split(" ")
            if not values:
                raise ValueError(f"{path}, line {number}: expected a word and its vector")
            yield number, word, values


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not text in UTF-8 ({error})") from None
