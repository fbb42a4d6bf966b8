"""How sure a number is: intervals over seeds, paired differences to a baseline, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

from sfumato._checks import check_integer
from sfumato.report.columns import Column
from sfumato.report.read import MethodResults

Verdict = Literal["better", "worse", "can't tell"]
SYMBOLS: dict[str | None, str] = {"better": "✓", "worse": "✗", "can't tell": "?", None: ""}

# The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T_TABLE = (
    *(12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041),
    *(2.2621572, 2.2281389, 2.2009852, 2.1788128, 2.1603687, 2.1447867, 2.1314495, 2.1199053),
    *(2.1098156, 2.1009220, 2.0930241, 2.0859634, 2.0796138, 2.0738731, 2.0686576, 2.0638986),
    *(2.0595386, 2.0555294, 2.0518305, 2.0484071, 2.0452296, 2.0422725),
)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, and what the interval is over."""

    mean: float
    low: float | None
    high: float | None
    seeds: int
    over: Literal["seeds", "images", "nothing"]

    def text(self, column: Column) -> str:
        """`83.1 [81.9, 84.2]`, or `83.1` where no interval is known."""
        if self.low is None or self.high is None:
            return column.number(self.mean)
        low, high = column.number(self.low), column.number(self.high)
        return f"{column.number(self.mean)} [{low}, {high}]"


@dataclass(frozen=True)
class Difference:
    """Method minus baseline over the seeds that both have; no interval with fewer than two.

    `verdict` is None for a metric that has no good direction.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    verdict: Verdict | None

    def text(self, column: Column) -> str:
        """`+1.2 [+0.3, +2.1]`, in percentage points for shares."""
        mean = column.number(self.mean, sign=True)
        if self.low is None or self.high is None:
            return mean
        bounds = (column.number(each, sign=True) for each in (self.low, self.high))
        return f"{mean} [{', '.join(bounds)}]"


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution.

    Example:
        >>> round(t_quantile(4), 3)
        2.776
    """
    check_integer("freedom", freedom, low=1)
    if freedom <= len(_T_TABLE):
        return _T_TABLE[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    # Cornish-Fisher expansion in 1 / freedom; beyond the table its error is below 1e-5.
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of the mean of independent values; None for fewer than two.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    middle = fmean(values)
    width = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle - width, middle + width


def estimate(method: MethodResults, column: Column) -> Estimate | None:
    """Mean over a method's finished seeds; the interval is over seeds, or over images for one."""
    runs = [run for run in method.runs if column.value(run.metrics) is not None]
    values = list(values_by_seed(method, column).values())
    if not values:
        return None
    over_seeds = t_interval(values)
    if over_seeds is not None:
        low, high = over_seeds
        if column.percent:
            low, high = max(low, 0.0), min(high, 1.0)
        return Estimate(fmean(values), low, high, len(values), "seeds")
    over_images = column.interval(runs[0].metrics)
    if over_images is None:
        return Estimate(values[0], None, None, 1, "nothing")
    return Estimate(values[0], *over_images, 1, "images")


def paired_difference(
    method: MethodResults, baseline: MethodResults, column: Column
) -> Difference | None:
    """Method minus baseline, seed by seed: what a seed does to both cancels."""
    if column.split in ("corrupted", "perturbed") and _damage(method) != _damage(baseline):
        return None  # means over other corruptions are other quantities
    ours, theirs = values_by_seed(method, column), values_by_seed(baseline, column)
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not differences:
        return None
    low, high = t_interval(differences) or (None, None)
    verdict = None if column.better is None else judge(low, high, column.better)
    return Difference(fmean(differences), low, high, len(differences), verdict)


def judge(low: float | None, high: float | None, better: Literal["higher", "lower"]) -> Verdict:
    """Better or worse only where the interval of the difference excludes zero."""
    if low is None or high is None or low <= 0 <= high:
        return "can't tell"
    return "better" if (low > 0) == (better == "higher") else "worse"


def values_by_seed(method: MethodResults, column: Column) -> dict[int, float]:
    """The metric of each finished seed that has it."""
    found = {run.seed: column.value(run.metrics) for run in method.runs}
    return {seed: value for seed, value in found.items() if value is not None}


def _damage(method: MethodResults) -> list[object]:
    """Which corruptions, severities and perturbations a method's means are over."""
    if not method.runs:
        return []
    metrics = method.runs[0].metrics
    corrupted, perturbed = (metrics.get(name) or {} for name in ("corrupted", "perturbed"))
    sequences = sorted(perturbed.get("cells", {}))
    return [corrupted.get("names"), corrupted.get("severities"), sequences]
