"""Word vectors from files: GloVe's text format, or an `.npz` without pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato._core.tokens import RESERVED


def read_embeddings(path: str | Path, words: Sequence[str]) -> Tensor:
    """Vectors of `words`, and before them of padding and of the unknown word, float32 (V, D).

    What the file doesn't have (padding and the unknown word among it) is a vector of zeros.

    Args:
        path: GloVe's text format (a word and its numbers on each line, separated by spaces), or an
            `.npz` with `words` (newline-joined UTF-8 as uint8) and `vectors` (N, D).
        words: the vocabulary.

    Raises:
        FileNotFoundError: no such file.
        ValueError: what is wrong in it, or none of the words is in it.
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
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in ("words", "vectors")}
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}; expected words and vectors") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
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
    """Only the vectors that are wanted are parsed: these files hold hundreds of thousands."""
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
    with path.open("rb") as file:
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
