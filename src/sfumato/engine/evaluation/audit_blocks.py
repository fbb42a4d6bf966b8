"""Sums over blocks of rows, from which two models are compared without any row in memory.

A row belongs to one of 500 blocks by the number that its place has (`audit_sample.py`), in every
model alike; rows of one image are in one block. Blocks are drawn instead of rows, with the same
weights for both models: a paired bootstrap of all rows (`metrics/grouped_bootstrap.py` says how far
that is the same; with 500 blocks the width of an interval is off by 3 %). Confidences are rounded
to 1/960, but for the differences themselves, on which the intervals are centred.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato._core.seeds import draw_seed
from sfumato.engine.evaluation.audit_outcomes import Outcomes
from sfumato.engine.runs.prediction_rows import AnyPredictions, ConfidenceFile, PredictionFile
from sfumato.metrics.histogram import Groups
from sfumato.metrics.intervals import Comparison, centred_interval, draw_in_parts
from sfumato.metrics.resampling import metrics_of_groups

BLOCKS = 500
CELLS = 960  # edges of 15 bins are edges of cells
_IMPOSSIBLE = -1e300


class BlockSums:
    """Histograms of confidence and sums of both scores of each block, 8 MB; parts add up."""

    def __init__(self) -> None:
        self.counts = torch.zeros(BLOCKS * CELLS * 2, dtype=torch.int64)  # wrong and right ones
        self.mass = torch.zeros(CELLS, dtype=torch.float64)
        self.scores = torch.zeros(BLOCKS, 2, dtype=torch.float64)  # likelihood, squared error
        # Checksums of the labels, by the numbers of their classes and by the names.
        self.labels = torch.zeros(2, BLOCKS, dtype=torch.int64)
        self.knows_labels = [True, True]
        self.classes: frozenset[str] | None = frozenset()  # None where they have no names
        self.has_scores = True

    def add(self, file: AnyPredictions, found: Outcomes, numbers: Tensor) -> None:
        """Add predictions whose rows have these numbers."""
        if found.place is not None:
            numbers = numbers[found.place]
        block = numbers % BLOCKS
        cell = bin_index(found.confidence, CELLS)
        place = (block * CELLS + cell) * 2 + found.correct
        self.counts += torch.bincount(place, minlength=len(self.counts))
        self.mass += torch.bincount(cell, weights=found.confidence.double(), minlength=CELLS)
        self._add_scores(block, found)
        for spelling, codes in enumerate(_label_codes(file, found)):
            if codes is None:
                self.knows_labels[spelling] = False
            else:
                self.labels[spelling].index_add_(0, block, numbers * codes)
        named = isinstance(file, PredictionFile) and file.classes is not None
        self.classes = _union(self.classes, frozenset(file.classes or ()) if named else None)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def merge(self, other: BlockSums) -> None:
        """Add the sums of other rows."""
        self.counts += other.counts
        self.mass += other.mass
        self.scores += other.scores
        self.labels += other.labels
        self.has_scores = self.has_scores and other.has_scores
        both = zip(self.knows_labels, other.knows_labels, strict=True)
        self.knows_labels = [ours and theirs for ours, theirs in both]
        self.classes = _union(self.classes, other.classes)

    def agrees_with(self, other: BlockSums) -> bool:
        """Whether both were summed up over the same rows, with the same labels where known.

        Labels are those of the same names where both know the same classes, in whatever order; else
        the same numbers or the same names will do.
        """
        ours, theirs = (each.counts.view(BLOCKS, -1).sum(1) for each in (self, other))
        if not torch.equal(ours, theirs):
            return False
        same = [
            torch.equal(self.labels[spelling], other.labels[spelling])
            for spelling in ((1,) if self.classes and self.classes == other.classes else (0, 1))
            if self.knows_labels[spelling] and other.knows_labels[spelling]
        ]
        return not same or any(same)

    def whole(self) -> Tensor:
        """`audit_sums.whole_sums` with blocks as units, (7,)."""
        wrong, right = self.counts.view(BLOCKS, CELLS, 2).double().unbind(2)
        count, hits = (wrong + right).sum(1), right.sum(1)
        means = self.mass / (wrong + right).sum(0).clamp(min=1)
        excess = (wrong + right) @ means - hits
        filled = (count > 0).double()
        columns = (count, hits, hits + excess, excess**2, excess * count, count**2, filled)
        return torch.stack([each.sum() for each in columns])

    def resample(
        self, num_bins: int, resamples: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Every metric of every resample, (R,) each."""
        counts = self.counts.view(BLOCKS, CELLS, 2).double()
        means = self.mass / counts.sum((0, 2)).clamp(min=1)
        upper = (torch.arange(CELLS, dtype=torch.float64) + 1) / CELLS
        parts = []
        for weights in draw_in_parts(BLOCKS, resamples, generator=generator):
            wrong, right = (weights @ counts.flatten(1)).view(-1, CELLS, 2).unbind(2)
            count = wrong + right
            groups = Groups(count, right, count * means, right * means, upper)
            found = metrics_of_groups(groups, num_bins)
            if self.has_scores:
                likelihood, squares = (weights @ self.scores / count.sum(1, True)).unbind(1)
                found["nll"] = (-likelihood).where(likelihood > _IMPOSSIBLE / 1e30, torch.inf)
                found["brier"] = squares
            parts.append(found)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _add_scores(self, block: Tensor, found: Outcomes) -> None:
        if found.log_likelihood is None or found.squared_error is None:
            self.has_scores = False
            return
        likelihood = found.log_likelihood.double().clamp(min=_IMPOSSIBLE)
        scores = (likelihood, found.squared_error.double())
        sums = [torch.bincount(block, weights=each, minlength=BLOCKS) for each in scores]
        self.scores += torch.stack(sums, 1)


def compare_blocks(
    first: tuple[BlockSums, dict[str, float]],
    second: tuple[BlockSums, dict[str, float]],
    *,
    num_bins: int,
    resamples: int,
    generator: torch.Generator,
) -> dict[str, Comparison]:
    """Two models, each with its metrics, on the same rows; see `compare_predictions`."""
    seed = draw_seed(generator)
    draws = [
        sums.resample(num_bins, resamples, torch.Generator().manual_seed(seed))
        for sums, _ in (first, second)
    ]
    result = {}
    for name in draws[0].keys() & draws[1].keys():
        before, after = first[1][name], second[1][name]
        low, high = centred_interval(draws[1][name] - draws[0][name], after - before, level=0.95)
        result[name] = Comparison(before, after, after - before, low, high)
    return result


def _label_codes(file: AnyPredictions, found: Outcomes) -> tuple[Tensor | None, Tensor | None]:
    """A number for each true class, from the text of its number and from its name.

    A file of confidences holds one of the two as text, which stands for either.
    """
    if isinstance(file, ConfidenceFile):
        if file.truth is None:
            return None, None
        codes = {name: _code(name) for name in set(file.truth)}
        of_rows = torch.tensor([codes[name] for name in file.truth])
        return of_rows, of_rows
    if found.label is None:
        return None, None
    numbers = [_code(str(number)) for number in range(file.predictions.shape[1])]
    by_number = torch.tensor(numbers)[found.label]
    if file.classes is None:
        return by_number, None
    return by_number, torch.tensor([_code(name) for name in file.classes])[found.label]


def _code(name: str) -> int:
    return zlib.crc32(name.encode())


def _union(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    return None if first is None or second is None else first | second
