"""Sums from which the gap between confidence and accuracy of any part of the data follows.

Parts are classes, groups or periods. The sums of two sets of predictions add up to those of both,
so that parts of a file, files, processes and machines are put together by addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Of each part: predictions, right ones, confidence; then over units, with n predictions and an
# excess of confidence e each: e^2, e n, n^2, and their number.
WIDTH = 7
PERIODS = 96


def part_sums(
    part: Tensor, parts: int, confidence: Tensor, correct: Tensor, unit: Tensor | None
) -> Tensor:
    """Sums of each part, (P, 7), float64.

    Args:
        part: number of the part of each prediction, (M,).
        parts: number of parts P.
        confidence, correct: of each prediction, (M,).
        unit: image of each prediction, where those of one image are not independent.
    """
    sure, right = confidence.double(), correct.double()
    if unit is None:
        excess = sure - right
        columns = [_sums(part, weights, parts) for weights in (None, right, sure, excess.square())]
        count, hits, mass, squares = columns
        return torch.stack([count, hits, mass, squares, mass - hits, count, count], 1)
    # Only pairs of image and part that occur: all pairs of many images and classes fill memory.
    pairs, pair = (unit * parts + part).unique(return_inverse=True)
    count, hits, mass = (_sums(pair, weights, len(pairs)) for weights in (None, right, sure))
    excess = mass - hits
    over = (count, hits, mass, excess**2, excess * count, count**2, torch.ones_like(count))
    return torch.stack([_sums(pairs % parts, each, parts) for each in over], 1)


def whole_sums(confidence: Tensor, correct: Tensor, unit: Tensor | None) -> Tensor:
    """`part_sums` of everything as one part, (7,)."""
    if unit is not None:
        return part_sums(torch.zeros_like(unit), 1, confidence, correct, unit)[0]
    excess = confidence.double() - correct.double()
    count, hits, gap = float(len(excess)), float(correct.sum()), float(excess.sum())
    squares = float(excess.dot(excess))
    sums = [count, hits, hits + gap, squares, gap, count, count]
    return torch.tensor(sums, dtype=torch.float64)


def _sums(part: Tensor, weights: Tensor | None, parts: int) -> Tensor:
    return torch.bincount(part, weights=weights, minlength=parts).double()


def gap_of(name: str, sums: Tensor, *, tests: int = 1) -> dict[str, Any]:
    """Mean of confidence minus correctness, with Student's interval that allows for `tests`.

    A normal one would call a model wrong on the evidence of two predictions. Where all were right,
    or all wrong, how much outcomes vary was not seen: one more unit of the other kind is assumed.
    """
    from scipy.special import stdtrit

    count, hits, mass, squares, products, sizes, units = sums.tolist()
    gap = (mass - hits) / count if count else math.nan
    low = high = math.nan
    if units > 1:
        spread = max(squares - 2 * gap * products + gap**2 * sizes, 0.0)
        spread += (count / units) ** 2 if hits in (0, count) else 0.0
        error = math.sqrt(spread * units / (units - 1)) / count
        width = float(stdtrit(units - 1, 1 - 0.025 / tests)) * error
        low, high = max(gap - width, -1.0), min(gap + width, 1.0)
    direction = "overconfident" if low > 0 else "underconfident" if high < 0 else "can't tell"
    return {
        "name": name,
        "count": int(count),
        "accuracy": hits / count if count else math.nan,
        "confidence": mass / count if count else math.nan,
        "gap": gap,
        "interval": [low, high],
        "direction": direction,
    }


def gaps_of(parts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Every part, largest gap first; intervals hold for all parts together (95 %)."""
    filled = {name: sums for name, sums in parts.items() if sums[0] > 0}
    rows = [gap_of(name, sums, tests=len(filled)) for name, sums in filled.items()]
    return sorted(rows, key=lambda row: -abs(row["gap"]))


class NamedSums:
    """Sums of parts that are known by name."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def add(self, names: Sequence[str], sums: Tensor) -> None:
        for place in sums[:, 0].nonzero().flatten().tolist():
            self._put(names[place], sums[place])

    def merge(self, other: NamedSums) -> None:
        for name, sums in other.parts.items():
            self._put(name, sums)

    def _put(self, name: str, sums: Tensor) -> None:
        self.parts[name] = self.parts[name] + sums if name in self.parts else sums.clone()


class TimeSums:
    """Sums of equal periods, at most 96 of them, whatever the times turn out to be.

    A period is 2^k long and begins at a multiple of that; k is the least with which all times fit.
    It depends on the first and the last time alone, so that parts merge into the same periods in
    any order.
    """

    def __init__(self) -> None:
        self.power = -1074  # of the smallest number that there is
        self.periods: dict[int, Tensor] = {}
        self.low, self.high = math.inf, -math.inf

    def add(
        self, times: Tensor, confidence: Tensor, correct: Tensor, unit: Tensor | None = None
    ) -> None:
        self._widen(float(times.min()), float(times.max()))
        start = self._period(self.low)
        part = (times / 2.0**self.power).floor().long() - start
        sums = part_sums(part, int(part.max()) + 1, confidence, correct, unit)
        for place in sums[:, 0].nonzero().flatten().tolist():
            self._put(start + place, sums[place])

    def merge(self, other: TimeSums) -> None:
        if not other.periods:
            return
        self._widen(other.low, other.high)
        for period, sums in other.periods.items():
            self._put(period >> (self.power - other.power), sums)

    def starts(self) -> list[tuple[float, Tensor]]:
        """Beginning and sums of each period that holds predictions, in their order."""
        return [(period * 2.0**self.power, self.periods[period]) for period in sorted(self.periods)]

    def _widen(self, low: float, high: float) -> None:
        before = self.power
        self.low, self.high = min(self.low, low), max(self.high, high)
        size = max(abs(self.low), abs(self.high), 2.0**-900)
        # Below this, periods could not be told apart in double precision.
        self.power = max(self.power, math.frexp(size)[1] - 52)
        while self._period(self.high) - self._period(self.low) >= PERIODS:
            self.power += 1
        old, self.periods = self.periods, {}
        for period, sums in old.items():
            self._put(period >> (self.power - before), sums)

    def _period(self, time: float) -> int:
        return math.floor(time / 2.0**self.power)

    def _put(self, period: int, sums: Tensor) -> None:
        there = self.periods.get(period)
        self.periods[period] = sums.clone() if there is None else there + sums
