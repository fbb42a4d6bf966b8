"""Metrics of dense predictions from sums over frames, so that no pixel is kept.

A frame becomes a row of a few hundred numbers: summed log likelihood, calibration bins of all
pixels and of the foreground, a finer ranking by confidence, the confusion matrix, and how many
pixels agree with the frame before. All metrics are functions of such sums, and so are those of
bootstrap resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato.metrics.calibration import error_of_bins
from sfumato.metrics.histogram import Groups, mass_bins
from sfumato.metrics.intervals import check_resampling, draw_weights, intervals_of
from sfumato.metrics.scored_samples import score
from sfumato.metrics.selective import (
    accuracy_at_coverage_of_groups,
    augrc_of_groups,
    aurc_of_groups,
)

NO_VOID = -100
# Cells of the ranking: confidences by -log(1 - p), which tells .9999 from .99999, in steps of 1/16.
RANKS = 256
RANKS_PER_UNIT = 16


@dataclass
class PixelSums:
    """Sums of dense predictions, a row for each unit that resamples draw as a whole.

    Args:
        num_classes: number of classes C.
        background: classes that `foreground_ece` leaves out; none leaves that metric out.
        void: label of pixels that count for nothing.
        num_bins: bins of the calibration errors.
    """

    num_classes: int
    background: tuple[int, ...] = ()
    void: int = NO_VOID
    num_bins: int = 15
    rows: dict[int, Tensor] = field(default_factory=dict)
    _last: tuple[int, Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of sums in a row."""
        return sum(self._parts)

    @property
    def _parts(self) -> list[int]:
        """Lengths of the parts of a row: likelihood, bins, ranks, confusion, frames."""
        bins, ranks = 3 * self.num_bins, 3 * RANKS
        return [1, bins, bins, ranks, ranks, self.num_classes**2, 4]

    def add(self, logits: Tensor, labels: Tensor, unit: int = 0) -> None:
        """Add frames (N, C, H, W) with labels (N, H, W) to a unit."""
        found = score(logits, labels, from_logits=True, ignore_index=self.void)
        known = labels != self.void
        target, predicted = labels[known], logits.argmax(1)[known]
        foreground = ~torch.isin(target, labels.new_tensor(self.background))
        pairs = target * self.num_classes + predicted
        parts = (
            -found.log_likelihood.double().sum().reshape(1),
            self._bins(found.confidence, found.correct),
            self._bins(found.confidence[foreground], found.correct[foreground]),
            _ranks(found.confidence, found.correct),
            _ranks(found.confidence[foreground], found.correct[foreground]),
            torch.bincount(pairs, minlength=self.num_classes**2).double(),
            torch.zeros(4, device=logits.device, dtype=torch.float64),
        )
        row = torch.cat(parts).cpu()
        self.rows[unit] = self.rows[unit] + row if unit in self.rows else row

    def add_frame(self, logits: Tensor, labels: Tensor, unit: int, stream: int | None) -> None:
        """Add one frame (1, C, H, W), and compare it with the one before of the same stream."""
        self.add(logits, labels, unit)
        if stream is None:
            return
        predicted = logits.argmax(1)
        if self._last is not None and self._last[0] == stream:
            _, before, labels_before = self._last
            known = (labels != self.void) & (labels_before != self.void)
            same = (labels == labels_before) & known
            agree = predicted == before
            counts = [int(agree.sum()), agree.numel(), int(same.sum()), int(known.sum())]
            self.rows[unit][-4:] += torch.tensor(counts)
        self._last = (stream, predicted, labels)

    def as_dict(self) -> dict[str, list[float]]:
        """The rows as plain data, by unit."""
        return {str(unit): row.tolist() for unit, row in self.rows.items()}

    def restore(self, rows: Mapping[str, Sequence[float]]) -> PixelSums:
        """Take the rows that `as_dict` gave."""
        self.rows = {
            int(unit): torch.tensor(row, dtype=torch.float64) for unit, row in rows.items()
        }
        return self

    def total(self) -> Tensor:
        """Sums over all units, (K,)."""
        return torch.stack(list(self.rows.values())).sum(0)

    def measure(self, sums: Tensor) -> dict[str, Tensor]:
        """Every metric for sums (..., K); NaN where there is nothing to measure.

        accuracy, nll, ece, foreground_ece, mean_iou; aece, foreground_aece, aurc, augrc and
        accuracy_at_80, up to the order inside the cells of the ranking; consistency, Eq. (38) for
        every pixel: the share that keeps the class of the frame before; label_consistency, the
        same of the labels, which a perfect prediction would have.
        """
        parts = sums.split(self._parts, -1)
        nll, every, foreground, ranks, foreground_ranks, confusion, frames = parts
        matrix = confusion.unflatten(-1, (self.num_classes, self.num_classes))
        overlap, total = matrix.diagonal(dim1=-2, dim2=-1), confusion.sum(-1)
        iou = overlap / (matrix.sum(-1) + matrix.sum(-2) - overlap)
        found = {
            "accuracy": overlap.sum(-1) / total,
            "nll": nll[..., 0] / total,
            "ece": self._ece(every),
            "aece": self._aece(ranks),
            "mean_iou": iou.nanmean(-1),
            "aurc": aurc_of_groups(_groups(ranks)),
            "augrc": augrc_of_groups(_groups(ranks)),
            "accuracy_at_80": accuracy_at_coverage_of_groups(_groups(ranks), 0.8),
            "consistency": frames[..., 0] / frames[..., 1],  # Eq. (38)
            "label_consistency": frames[..., 2] / frames[..., 3],
        }
        if self.background:
            found["foreground_ece"] = self._ece(foreground)
            found["foreground_aece"] = self._aece(foreground_ranks)
        return found

    def resample(self, resamples: int, *, generator: torch.Generator) -> dict[str, Tensor]:
        """Every metric of resamples of the units that could be measured on all, (R,) each."""
        table = torch.stack(list(self.rows.values()))
        check_resampling(len(table), resamples, 0.95)
        drawn = self.measure(
            draw_weights(len(table), resamples, generator=generator, device=table.device) @ table
        )
        return {name: drawn[name] for name in self.values()}

    def values(self) -> dict[str, float]:
        """The metrics that there is something to measure for."""
        found = {name: float(value) for name, value in self.measure(self.total()).items()}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def summary(
        self, *, classes: Sequence[str], draws: Mapping[str, Tensor] | None = None
    ) -> dict[str, Any]:
        """All metrics, their intervals from resampled ones, IoU by class, reliability bins."""
        values = self.values()
        intervals = intervals_of(values, draws or {})
        return {**values, **intervals, **self._details(self.total(), classes)}

    def _details(self, total: Tensor, classes: Sequence[str]) -> dict[str, Any]:
        _, every, *_, confusion, _ = total.split(self._parts)
        bins, matrix = every.view(3, self.num_bins), confusion.view(self.num_classes, -1)
        overlap = matrix.diagonal()
        iou = (overlap / (matrix.sum(0) + matrix.sum(1) - overlap)).tolist()
        return {
            "pixels": int(matrix.sum()),
            "units": len(self.rows),
            "class_iou": dict(zip(classes, iou, strict=True)),
            "reliability": {
                "counts": bins[0].long().tolist(),
                "confidence": (bins[2] / bins[0]).tolist(),
                "accuracy": (bins[1] / bins[0]).tolist(),
            },
        }

    def _bins(self, confidence: Tensor, correct: Tensor) -> Tensor:
        """Count, number of correct ones and sum of confidences in each bin, (3 B,)."""
        member = bin_index(confidence, self.num_bins)
        columns = (torch.ones_like(confidence), correct, confidence)
        sums = [
            torch.bincount(member, weights=column.double(), minlength=self.num_bins)
            for column in columns
        ]
        return torch.cat(sums)

    def _ece(self, bins: Tensor) -> Tensor:
        count, correct, confidence = bins.unflatten(-1, (3, self.num_bins)).unbind(-2)
        return (confidence - correct).abs().sum(-1) / count.sum(-1)

    def _aece(self, ranks: Tensor) -> Tensor:
        """In bins of equal mass, made of whole cells of the ranking."""
        error = error_of_bins(mass_bins(_groups(ranks), self.num_bins), "l1")
        return error.where(ranks[..., :RANKS].sum(-1) > 0, torch.nan)


def _ranks(confidence: Tensor, correct: Tensor) -> Tensor:
    """Count, number of correct ones and sum of confidences in each cell of the ranking, (3 R,)."""
    depth = -torch.log1p(-confidence.double())
    cell = (depth * RANKS_PER_UNIT).clamp_(max=RANKS - 1).long()
    columns = (torch.ones_like(confidence), correct, confidence)
    sums = [torch.bincount(cell, weights=each.double(), minlength=RANKS) for each in columns]
    return torch.cat(sums)


def _groups(ranks: Tensor) -> Groups:
    """The ranking as groups; the confidences of correct ones, which nothing needs, are 0."""
    count, correct, confidence = ranks.unflatten(-1, (3, RANKS)).unbind(-2)
    depth = torch.arange(1, RANKS + 1, dtype=ranks.dtype, device=ranks.device) / RANKS_PER_UNIT
    return Groups(count, correct, confidence, torch.zeros_like(count), -torch.expm1(-depth))
