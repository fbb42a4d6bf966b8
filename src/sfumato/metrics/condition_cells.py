"""The same images measured under many conditions (cells), such as corruptions, with few in each.

The ECE of a cell of 50 to 300 images is mostly the scatter of its bins: a perfect network shows
6 to 13 %. The mean over cells keeps that bias whatever their number. The mean *squared* gap has an
unbiased estimator (a mean over pairs of different images), whose noise the mean over cells does
remove, so the root of it is what can be trusted; it is about 0 for a perfect network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato.metrics.floor import floor_of_confidences
from sfumato.metrics.intervals import draw_in_parts
from sfumato.metrics.resampling import sparse

_PERFECT_NETWORKS = 100


class CellTable(NamedTuple):
    """What is measured in each cell, (K, R) each."""

    error: Tensor
    nll: Tensor
    ece: Tensor
    squared_gap: Tensor  # unbiased, so negative by chance where the network is calibrated


class CellScores(NamedTuple):
    """What is known of each image in each cell; (K, U) each, images in the same order.

    Args:
        confidence: probability of the predicted class.
        correct: whether that is the label, bool.
        log_likelihood: log probability of the label.
    """

    confidence: Tensor
    correct: Tensor
    log_likelihood: Tensor

    def table(self, num_bins: int = 15) -> CellTable:
        """Every cell measured on all images, (K,) each."""
        images = self.confidence.shape[1]
        weights = torch.ones(1, images, dtype=torch.float64)
        return CellTable(*(part[:, 0] for part in _CellSums(self, num_bins).measure(weights)))

    def measure(self, num_bins: int = 15) -> dict[str, float]:
        """Means over the cells: error, nll, ece; rmsce, free of the bias of few images.

        `ece_floor` and `rmsce_floor` are what a perfectly calibrated network with these
        confidences would show on average.
        """
        means = {name: part.mean(0) for name, part in self.table(num_bins)._asdict().items()}
        return {
            "error": float(means["error"]),
            "nll": float(means["nll"]),
            "ece": float(means["ece"]),
            "rmsce": float(_root(means["squared_gap"])),
            "ece_floor": float(floor_of_confidences(self.confidence, num_bins).mean()),
            "rmsce_floor": self._rmsce_floor(num_bins),
        }

    def resample(
        self, resamples: int, *, generator: torch.Generator, num_bins: int = 15
    ) -> dict[str, Tensor]:
        """error, nll, ece and rmsce of resamples of the images, (R,) each.

        An image is drawn with all its versions.
        """
        sums = _CellSums(self, num_bins)
        weights = draw_in_parts(self.confidence.shape[1], resamples, generator=generator)
        parts = [CellTable(*(each.mean(0) for each in sums.measure(part))) for part in weights]
        error, nll, ece, squared = (torch.cat(column) for column in zip(*parts, strict=True))
        return {"error": error, "nll": nll, "ece": ece, "rmsce": _root(squared)}

    def _rmsce_floor(self, num_bins: int) -> float:
        """Mean over perfect networks; an image is easy or hard in all of its versions."""
        place = _places(self.confidence, num_bins)
        size = self.confidence.shape[0] * num_bins
        count = torch.bincount(place, minlength=size).double()
        generator = torch.Generator().manual_seed(0)
        values = []
        for _ in range(_PERFECT_NETWORKS):
            ease = torch.rand(self.confidence.shape[1], generator=generator)
            gap = (self.confidence.double() - (ease < self.confidence).double()).flatten()
            total = torch.bincount(place, weights=gap, minlength=size)
            own = torch.bincount(place, weights=gap.square(), minlength=size)
            squared = ((total.square() - own) / (count - 1)).where(count > 1, 0.0)
            values.append(_root(squared.sum() / gap.numel()))
        return float(torch.stack(values).mean())


class _CellSums:
    """Sums over the bins of each cell, one sparse product away from those of any resample."""

    def __init__(self, scores: CellScores, num_bins: int) -> None:
        cells, images = scores.confidence.shape
        self.cells, self.num_bins = cells, num_bins
        place = _places(scores.confidence, num_bins)
        image = torch.arange(images).repeat(cells)
        gap = (scores.confidence.double() - scores.correct.double()).flatten()
        shape = (cells * num_bins, images)
        self.count = sparse(place, image, torch.ones_like(gap), shape)
        self.gap = sparse(place, image, gap, shape)
        self.square = sparse(place, image, gap.square(), shape)
        self.wrong = (~scores.correct).double()
        self.log_likelihood = scores.log_likelihood.double()

    def measure(self, weights: Tensor) -> CellTable:
        """Every cell of the resamples `weights` (R, U)."""
        drawn, total = weights.T.contiguous(), weights.sum(1)
        # An image that is drawn twice makes no pair with itself, so resamples stay unbiased too.
        twice = drawn.square()
        count, gap = self._sums(self.count, drawn), self._sums(self.gap, drawn)
        pairs = count.square() - self._sums(self.count, twice)
        squared = gap.square() - self._sums(self.square, twice)
        squared = (count * squared / pairs).where(pairs > 0, 0.0)
        return CellTable(
            self.wrong @ drawn / total,
            -(self.log_likelihood @ drawn) / total,
            gap.abs().sum(1) / total,
            squared.sum(1) / total,
        )

    def _sums(self, matrix: Tensor, drawn: Tensor) -> Tensor:
        """(K, B, R)."""
        return torch.sparse.mm(matrix, drawn).view(self.cells, self.num_bins, -1)


def _places(confidence: Tensor, num_bins: int) -> Tensor:
    """Number k B + b of the bin of each image in each cell, (K U,)."""
    offsets = torch.arange(len(confidence)).unsqueeze(1) * num_bins
    return (bin_index(confidence, num_bins) + offsets).flatten()


def _root(squared: Tensor) -> Tensor:
    return squared.clamp(min=0).sqrt()
