"""Calibration of a stream of detections: sums over cells of fixed number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sfumato._core.checks import check_integer
from sfumato.metrics.detection import check_bins, detection_sums, error_of_cells
from sfumato.metrics.intervals import centred_interval, check_resampling


class DetectionCalibrationError(Metric):
    """`detection_calibration_error` of a stream, exactly.

    Args:
        bins: of equal width on each axis, or five numbers with boxes.
        with_boxes: whether position and size count too; `update` then takes boxes.
        least: cells with fewer detections count for nothing.
        kwargs: `torchmetrics.Metric` options.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    sums: Tensor

    def __init__(
        self,
        *,
        bins: int | Sequence[int] = 20,
        with_boxes: bool = False,
        least: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("least", least, low=1)
        self.sizes = check_bins(bins, with_boxes=with_boxes)
        self.with_boxes, self.least = with_boxes, least
        zeros = torch.zeros(math.prod(self.sizes), 3, dtype=torch.float64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")

    def update(self, confidence: Any, matched: Any, boxes: Any = None) -> None:
        """Add a batch: confidence (N,), matched (N,), boxes (N, 4) where they count."""
        if (boxes is not None) != self.with_boxes:
            raise ValueError(f"boxes must be {'given' if self.with_boxes else 'left out'} here")
        self.sums += detection_sums(confidence, matched, boxes, self.sizes).to(self.sums)

    def compute(self) -> Tensor:
        """The error of everything seen so far."""
        return error_of_cells(self.sums, self.least)

    def interval(
        self,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> tuple[float, float]:
        """Bootstrap interval (low, high), as if detections were independent.

        Counts of matched and other detections of each cell are drawn from Poisson distributions;
        confidences follow at the mean of their cell.
        """
        count, hits, total = self.sums[self.sums[:, 0] > 0].unbind(1)
        check_resampling(int(count.sum()), resamples, level)
        found = torch.poisson(hits.expand(resamples, -1), generator=generator)
        drawn = found + torch.poisson((count - hits).expand(resamples, -1), generator=generator)
        sums = torch.stack([drawn, found, drawn * (total / count)], -1)
        return centred_interval(
            error_of_cells(sums, self.least), float(self.compute()), level=level
        )
