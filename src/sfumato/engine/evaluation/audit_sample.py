"""A sample of the rows of files of any size: the same in whatever parts and order they are read.

Each row has a number that looks random and depends on its place alone: on its image where rows have
one, on its `index`, or else on file and row. The rows with the smallest numbers are the sample, so
that the samples of parts merge into that of the whole, and two models that were run on the same
rows have the same ones drawn.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    file_numbers,
)

ROWS = 20_000
_ENTRIES = 4_000_000  # that the sample holds at most
_FEWEST = 200
_ROWS_PER_FILE = 2**40


def row_numbers(file: AnyPredictions, number: int) -> Tensor:
    """A number below 2^63 for each row that is as good as random, (N,), int64.

    Args:
        file: the rows.
        number: which of a model's files they are from.
    """
    return _mixed(_places(file, number))


def _places(file: AnyPredictions, number: int) -> Tensor:
    if isinstance(file, ConfidenceFile) and file.images is not None:
        codes = {name: zlib.crc32(name.encode()) for name in set(file.images)}
        return torch.tensor([codes[name] for name in file.images])
    if file.index is not None:
        return file.index
    rows = torch.arange(len(file)) if file.rows is None else file.rows
    numbers = file_numbers(file) if file.origins else number
    return rows + numbers * _ROWS_PER_FILE


def _mixed(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014), which leaves no pattern of its input."""
    bits = values.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return torch.from_numpy((bits >> np.uint64(1)).astype(np.int64))


class RowSample:
    """Up to 20,000 rows with the probabilities or logits of all classes, at most 4 million numbers.

    Label maps and files of confidences have none.
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []  # numbers, places, labels, predictions of the sampled rows
        self.are_logits = False
        self.classes: list[str] | None = None

    def add(self, file: AnyPredictions, numbers: Tensor, number: int) -> None:
        """Add the rows of a file, or of a part of it, that belong to the sample."""
        if not isinstance(file, PredictionFile) or file.predictions.ndim != 2:
            return
        chosen = (numbers < self._limit(file.predictions.shape[1])).nonzero().flatten()
        size = _size(file.predictions.shape[1])
        if len(chosen) > size:
            chosen = chosen[numbers[chosen].topk(size, largest=False).indices]
        self.are_logits, self.classes = file.logits is not None, file.classes
        columns = (numbers, _places(file, number), file.labels, file.predictions)
        self._put([column[chosen] for column in columns])

    def merge(self, other: RowSample) -> None:
        """Add the sample of other rows."""
        if other.parts:
            self.are_logits, self.classes = other.are_logits, other.classes
            self._put(other.parts)

    def rows(self, name: str) -> PredictionFile | None:
        """The sampled rows in the order of the file; None where there are none."""
        if not self.parts:
            return None
        _, places, labels, predictions = (part[self.parts[1].argsort()] for part in self.parts)
        kind = "logits" if self.are_logits else "probs"
        return PredictionFile(
            name,
            labels,
            index=places,
            classes=self.classes,
            **{kind: predictions},  # type: ignore[arg-type]
        )

    def _limit(self, classes: int) -> int:
        """Below which a number belongs to the sample, as far as it is known."""
        full = bool(self.parts) and len(self.parts[0]) == _size(classes)
        return int(self.parts[0].max()) if full else 2**63 - 1

    def _put(self, parts: list[Tensor]) -> None:
        if self.parts:
            parts = [torch.cat(pair) for pair in zip(self.parts, parts, strict=True)]
        size = _size(parts[-1].shape[1])
        if len(parts[0]) > size:
            kept = parts[0].topk(size, largest=False).indices
            parts = [part[kept] for part in parts]
        self.parts = parts


def _size(classes: int) -> int:
    return max(_FEWEST, min(ROWS, _ENTRIES // classes))
