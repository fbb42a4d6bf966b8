"""How sure a number is: estimates, differences to a baseline, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from sfumato.report.columns import Column

Verdict = Literal["better", "worse", "can't tell"]
Over = Literal["seeds and images", "seeds", "images", "nothing"]
SYMBOLS: dict[str | None, str] = {"better": "✓", "worse": "✗", "can't tell": "?", None: ""}
_NEAR_FLOOR = 2.0


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, and what the interval is over.

    `floor` is what a perfectly calibrated network would show, for a calibration error.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    over: Over
    floor: float | None = None

    @property
    def is_near_floor(self) -> bool:
        """Whether the number is largely what a perfect network would show, too."""
        return self.floor is not None and self.mean < _NEAR_FLOOR * self.floor

    @property
    def is_above_floor(self) -> bool:
        """Whether a perfect network can be excluded."""
        return self.floor is None or (self.low is not None and self.low > self.floor)

    def text(self, column: Column) -> str:
        """`83.1 [81.9, 84.2]`, or `83.1` where no interval is known."""
        if self.low is None or self.high is None:
            return column.number(self.mean)
        low, high = column.number(self.low), column.number(self.high)
        return f"{column.number(self.mean)} [{low}, {high}]"

    def floor_text(self, column: Column) -> str:
        """`perfect: 1.9` where the number is near its floor, else nothing."""
        if self.floor is None or not self.is_near_floor:
            return ""
        return f"perfect: {column.number(self.floor)}"


@dataclass(frozen=True)
class Difference:
    """Method minus baseline over the seeds that both have.

    `low` and `high` bound its single 95 % interval; `p` belongs to that, and `adjusted` to all
    `compared` methods of the column together: the verdict follows `adjusted`. With one seed there
    is an interval over images at most, about these networks, and no p-value. `verdict` is None for
    a metric that has no good direction; `within_floor` says that it was withheld because perfect
    networks could differ as much.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    verdict: Verdict | None
    over: Over = "seeds"
    p: float | None = None
    adjusted: float | None = None
    compared: int = 0
    within_floor: bool = False

    def text(self, column: Column) -> str:
        """`+1.2 [+0.3, +2.1]`, in percentage points for shares."""
        mean = column.number(self.mean, sign=True)
        if self.low is None or self.high is None:
            return mean
        bounds = (column.number(each, sign=True) for each in (self.low, self.high))
        return f"{mean} [{', '.join(bounds)}]"

    def reason(self) -> str:
        """Why the verdict is what it is, in a few words."""
        if self.within_floor:
            return "perfect networks could differ as much"
        if self.adjusted is None:
            return "one shared seed tells nothing about methods"
        return f"p = {self.adjusted:.2g}, adjusted for {self.compared} compared"


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of the mean of independent values; None for fewer than two.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    from scipy import special

    middle = fmean(values)
    quantile = float(special.stdtrit(len(values) - 1, 0.975))
    width = quantile * stdev(values) / math.sqrt(len(values))
    return middle - width, middle + width


def verdict_of_interval(
    low: float | None, high: float | None, better: Literal["higher", "lower"]
) -> Verdict:
    """Better or worse only where the interval of a single difference excludes zero."""
    if low is None or high is None or not (low > 0 or high < 0):  # NaN tells nothing
        return "can't tell"
    return "better" if (low > 0) == (better == "higher") else "worse"
