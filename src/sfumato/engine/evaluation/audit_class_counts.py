"""How many predictions of each class lie at or above each threshold, as sums that add up.

The thresholds are those that `risk_threshold` tests, which are fixed beforehand: the thresholds per
class that follow from these counts are exactly those of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.predictions.risk_threshold import THRESHOLDS

_PLACES = len(THRESHOLDS) + 1


class ClassCounts:
    """Right and wrong predictions of each class between two thresholds, 34 kB for each class."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def add(
        self, classes: Sequence[str], predicted: Tensor, confidence: Tensor, correct: Tensor
    ) -> None:
        """Add predictions, whose classes are places in `classes`."""
        grid = torch.tensor(THRESHOLDS, dtype=torch.float64).flip(0)
        reached = torch.searchsorted(grid, confidence.double(), right=True)  # thresholds
        place = (predicted * _PLACES + reached) * 2 + ~correct
        counts = torch.bincount(place, minlength=len(classes) * _PLACES * 2)
        self._put(dict(zip(classes, counts.view(len(classes), _PLACES, 2), strict=True)))

    def merge(self, other: ClassCounts) -> None:
        """Add the counts of other rows."""
        self._put(other.parts)

    def kept(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each class that was predicted: how many reach each threshold, and are wrong there."""
        found = {}
        for name, counts in self.parts.items():
            if int(counts.sum()):
                above = counts.flip(0).cumsum(0)[:-1]  # from the highest threshold down
                found[name] = (above.sum(1), above[:, 1])
        return found

    def _put(self, parts: dict[str, Tensor]) -> None:
        for name, counts in parts.items():
            there = self.parts.get(name)
            self.parts[name] = counts.clone() if there is None else there + counts
