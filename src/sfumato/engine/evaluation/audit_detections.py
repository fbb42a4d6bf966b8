"""D-ECE of files of any size: sums of each cell and block of images, which add up over parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_blocks import BLOCKS
from sfumato.engine.evaluation.audit_outcomes import Outcomes
from sfumato.engine.evaluation.detection_calibration import KINDS, errors_of_cells
from sfumato.metrics.detection import detection_cells


class DetectionSums:
    """Detections, matched ones and summed confidence of each cell that occurs in a block.

    At most 500 blocks of 20 and of 3,125 cells: 50 MB where every one is filled.
    """

    def __init__(self) -> None:
        self.parts: dict[str, tuple[Tensor, Tensor]] = {}  # block and cell as one number; sums

    def add(self, found: Outcomes, boxes: Tensor, numbers: Tensor) -> None:
        """Add detections whose rows have these numbers."""
        for name, kind in KINDS.items():
            places = boxes if kind.by_place else None
            cell, rows = detection_cells(found.confidence, found.correct, places, kind.sizes)
            self._put(name, cell * BLOCKS + numbers % BLOCKS, rows)

    def merge(self, other: DetectionSums) -> None:
        """Add the sums of other rows."""
        for name, (keys, sums) in other.parts.items():
            self._put(name, keys, sums)

    def errors(self, resamples: int) -> dict[str, Any]:
        """`d_ece` and `d_ece_by_place` with their intervals; those that can't be told left out."""
        found: dict[str, Any] = {}
        for name, (keys, sums) in self.parts.items():
            found |= errors_of_cells(name, keys // BLOCKS, keys % BLOCKS, sums, BLOCKS, resamples)
        return {name: value for name, value in found.items() if value is not None}

    def _put(self, name: str, keys: Tensor, rows: Tensor) -> None:
        if name in self.parts:
            keys = torch.cat([self.parts[name][0], keys])
            rows = torch.cat([self.parts[name][1], rows])
        keys, place = keys.unique(return_inverse=True)
        self.parts[name] = (keys, rows.new_zeros(len(keys), 3).index_add_(0, place, rows))
