"""One metric of all methods on the same problem: what each shows, and which differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from sfumato.report.columns import Column
from sfumato.report.inference import (
    LEVEL,
    ImageNoise,
    Intervals,
    compare_with_first,
    method_intervals,
)
from sfumato.report.read import MethodResults, RunResult
from sfumato.report.replicates import Variances, image_variance, paired_image_variance
from sfumato.report.scales import Scale, scale_of
from sfumato.report.statistics import Difference, Estimate, Over, Verdict

Runs = dict[int, RunResult]  # by seed


@dataclass(frozen=True)
class Judgement:
    """Of one column, by the names of the methods that have it; no difference of a baseline."""

    estimates: dict[str, Estimate]
    differences: dict[str, Difference]


def judge_column(
    methods: Sequence[MethodResults], baseline: MethodResults | None, column: Column
) -> Judgement:
    """Estimates of all methods, and their differences to the baseline, which is one of them.

    Args:
        methods: those on the same task and data, whose noise is pooled.
        baseline: what the others are compared with, or None to compare nothing.
        column: the metric.
    """
    having = [method for method in methods if _runs(method, column)]
    having.sort(key=lambda method: method is not baseline)
    if not having:
        return Judgement({}, {})
    runs = [_runs(method, column) for method in having]  # the baseline's first
    seeds = sorted({seed for each in runs for seed in each})
    values = np.array([[_value(each.get(seed), column) for seed in seeds] for each in runs])
    floors = [_mean_floor(each, column) for each in runs]
    known = [floor for floor in floors if floor is not None]
    scale = scale_of(column, values, fmean(known) if known else None)
    found = _estimates(runs, values, scale, column)
    estimates = {
        method.name: replace(estimate, floor=floor)
        for method, estimate, floor in zip(having, found, floors, strict=True)
    }
    if having[0] is not baseline:
        return Judgement(estimates, {})
    differences = _differences(having, runs, values, scale, column)
    first = estimates[having[0].name]
    return Judgement(
        estimates,
        {name: _above_floor(each, estimates[name], first) for name, each in differences.items()},
    )


def _estimates(
    runs: Sequence[Runs], values: np.ndarray, scale: Scale, column: Column
) -> list[Estimate]:
    images = _noise(image_variance(list(each.values()), column, scale) for each in runs)
    found = method_intervals(values, scale, images)
    made = []
    for place, each in enumerate(runs):
        mean, low, high = _numbers(found, place)
        over = _over(len(each), has_images=not np.isnan(images.shared[place]))
        if len(each) == 1:  # the run's own percentiles know the shape of the distribution
            stored = column.interval(next(iter(each.values())).metrics)
            low, high, over = (*stored, "images") if stored else (low, high, over)
        made.append(Estimate(mean, low, high, len(each), over))
    return made


def _differences(
    methods: Sequence[MethodResults],
    runs: Sequence[Runs],
    values: np.ndarray,
    scale: Scale,
    column: Column,
) -> dict[str, Difference]:
    theirs, *others = runs
    shared = [[seed for seed in each if seed in theirs] for each in others]
    images = _noise(
        paired_image_variance([ours[s] for s in both], [theirs[s] for s in both], column, scale)
        for ours, both in zip(others, shared, strict=True)
    )
    found = compare_with_first(values, scale, images)
    compared = int(np.isfinite(found.p).sum())
    made = {}
    for place, (method, seeds) in enumerate(zip(methods[1:], shared, strict=True)):
        if not seeds:
            continue
        mean, low, high = _numbers(found.intervals, place)
        p, adjusted = _number(found.p[place]), _number(found.adjusted[place])
        over = _over(len(seeds), has_images=not np.isnan(images.shared[place]))
        verdict = _verdict(mean, adjusted, column)
        made[method.name] = Difference(
            mean, low, high, len(seeds), verdict, over, p, adjusted, compared
        )
    return made


def _verdict(mean: float, adjusted: float | None, column: Column) -> Verdict | None:
    if column.better is None:
        return None
    if adjusted is None or adjusted >= LEVEL:
        return "can't tell"
    return "better" if (mean > 0) == (column.better == "higher") else "worse"


def _above_floor(found: Difference, ours: Estimate, theirs: Estimate) -> Difference:
    """Without its verdict where perfect networks with as many images could differ as much."""
    if found.verdict not in ("better", "worse") or ours.floor is None or theirs.floor is None:
        return found
    larger = max(ours, theirs, key=lambda estimate: estimate.mean)
    if larger.is_above_floor and abs(found.mean) > abs(ours.floor - theirs.floor):
        return found
    return replace(found, verdict="can't tell", within_floor=True)


def _runs(method: MethodResults, column: Column) -> Runs:
    return {run.seed: run for run in method.runs if column.value(run.metrics) is not None}


def _value(run: RunResult | None, column: Column) -> float:
    value = None if run is None else column.value(run.metrics)
    return np.nan if value is None else value


def _mean_floor(runs: Runs, column: Column) -> float | None:
    found = [column.floor(run.metrics) for run in runs.values()]
    known = [floor for floor in found if floor is not None]
    return fmean(known) if known else None


def _over(seeds: int, *, has_images: bool) -> Over:
    if seeds > 1:
        return "seeds and images" if has_images else "seeds"
    return "images" if has_images else "nothing"


def _noise(found: Iterable[Variances]) -> ImageNoise:
    return ImageNoise(*np.array(list(found)).reshape(-1, 2).T)


def _numbers(found: Intervals, place: int) -> tuple[float, float | None, float | None]:
    return float(found.mean[place]), _number(found.low[place]), _number(found.high[place])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
