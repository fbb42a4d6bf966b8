"""Everything that a study's numbers say: judged once for page, tables and recommendation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from sfumato.report.columns import Column, columns_of
from sfumato.report.read import MethodResults, RunResult, StudyResults, baselines
from sfumato.report.statistics import (
    LEVEL,
    Difference,
    Estimate,
    ImageNoise,
    Intervals,
    Over,
    Scale,
    Variances,
    Verdict,
    compare_with_first,
    image_variance,
    method_intervals,
    scale_of,
)

Runs = dict[int, RunResult]  # by seed


class Judgement(NamedTuple):
    """Estimates and differences of one column, by method; a baseline has no difference."""

    estimates: dict[str, Estimate]
    differences: dict[str, Difference]


def judge_column(
    methods: Sequence[MethodResults], baseline: MethodResults | None, column: Column
) -> Judgement:
    """Estimates of all methods, and their differences to the baseline, which is one of them."""
    having = [method for method in methods if _runs(method, column)]
    having.sort(key=lambda method: method is not baseline)
    if not having:
        return Judgement({}, {})
    runs = {method.name: _runs(method, column) for method in having}  # the baseline's first
    seeds = sorted({seed for each in runs.values() for seed in each})
    values = np.array([[_value(each.get(s), column) for s in seeds] for each in runs.values()])
    floors = {
        name: _mean_known(column.floor(run.metrics) for run in each.values())
        for name, each in runs.items()
    }
    scale = scale_of(column, values, _mean_known(floors.values()))
    found = _estimates(list(runs.values()), values, scale, column)
    estimates = {
        name: replace(estimate, floor=floor)
        for (name, floor), estimate in zip(floors.items(), found, strict=True)
    }
    if having[0] is not baseline:
        return Judgement(estimates, {})
    first = estimates[baseline.name]
    differences = _differences(runs, values, scale, column)
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
    runs: Mapping[str, Runs], values: np.ndarray, scale: Scale, column: Column
) -> dict[str, Difference]:
    theirs, *others = runs.values()
    shared = [[seed for seed in each if seed in theirs] for each in others]
    images = _noise(
        image_variance([ours[s] for s in both], column, scale, [theirs[s] for s in both])
        for ours, both in zip(others, shared, strict=True)
    )
    found = compare_with_first(values, scale, images)
    compared = int(np.isfinite(found.p).sum())
    made = {}
    for place, (name, seeds) in enumerate(zip(list(runs)[1:], shared, strict=True)):
        if not seeds:
            continue
        mean, low, high = _numbers(found.intervals, place)
        p, adjusted = _number(found.p[place]), _number(found.adjusted[place])
        over = _over(len(seeds), has_images=not np.isnan(images.shared[place]))
        verdict = _verdict(mean, adjusted, column)
        made[name] = Difference(mean, low, high, len(seeds), verdict, over, p, adjusted, compared)
    return made


def _verdict(mean: float, adjusted: float | None, column: Column) -> Verdict | None:
    if column.better is None:
        return None
    if adjusted is None or adjusted >= LEVEL:
        return "inconclusive"
    return "better" if (mean > 0) == (column.better == "higher") else "worse"


def _above_floor(found: Difference, ours: Estimate, theirs: Estimate) -> Difference:
    """Withhold the verdict where perfectly calibrated models could differ as much, by chance."""
    if found.verdict not in ("better", "worse") or ours.floor is None or theirs.floor is None:
        return found
    larger = max(ours, theirs, key=lambda estimate: estimate.mean)
    if larger.is_above_floor and abs(found.mean) > abs(ours.floor - theirs.floor):
        return found
    return replace(found, verdict="inconclusive", within_floor=True)


def _runs(method: MethodResults, column: Column) -> Runs:
    return {run.seed: run for run in method.runs if column.value(run.metrics) is not None}


def _value(run: RunResult | None, column: Column) -> float:
    value = None if run is None else column.value(run.metrics)
    return np.nan if value is None else value


def _over(seeds: int, *, has_images: bool) -> Over:
    if seeds > 1:
        return "seeds and images" if has_images else "seeds"
    return "images" if has_images else "nothing"


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _noise(found: Iterable[Variances]) -> ImageNoise:
    return ImageNoise(*np.array(list(found)).reshape(-1, 2).T)


def _numbers(found: Intervals, place: int) -> tuple[float, float | None, float | None]:
    return float(found.mean[place]), _number(found.low[place]), _number(found.high[place])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def corrupted_cells(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """Cells of every type and severity, mean over the seeds that saw the same corruptions."""
    measured = (_part(run, "corrupted") for run in runs)
    parts = _alike((part for part in measured if "cells" in part), "names", "severities")
    if not parts:
        return None
    names = parts[0]["names"]
    cells = {
        metric: [
            _means([part["cells"][metric][row] for part in parts]) for row in range(len(names))
        ]
        for metric in parts[0]["cells"]
    }
    return {"names": names, "severities": parts[0]["severities"], "cells": cells}


def ensemble_curves(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """NLL, accuracy and ECE by the number of members or samples, mean over the seeds."""
    parts = _alike((_part(run, "ensemble") for run in runs), "sizes")
    if not parts:
        return None
    curves = {
        name: _means([part[name] for part in parts])
        for name in ("nll", "accuracy", "ece")
        if all(name in part for part in parts)
    }
    return {"sizes": parts[0]["sizes"], **curves}


def perturbed_sequences(runs: Sequence[RunResult]) -> dict[str, list[list[float]]] | None:
    """Relative confidence along the frames of the first images, by perturbation; the first seed."""
    cells = _part(runs[0], "perturbed").get("cells", {}) if runs else {}
    return {name: cell["along"] for name, cell in cells.items() if "along" in cell} or None


def frequency_curves(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """Scores by band of frequencies under noise and under attack, mean over the seeds."""
    found = {}
    for kind in ("noise", "attack"):
        found_parts = (_part(run, "frequency").get(kind, {}) for run in runs)
        if parts := _alike(found_parts, "frequencies", "change"):
            cells = parts[0]["cells"]
            scores = {name: _means([part["cells"][name] for part in parts]) for name in cells}
            found[kind] = {"change": parts[0]["change"], "at": parts[0]["frequencies"], **scores}
    return found or None


def _part(run: RunResult, name: str) -> dict[str, Any]:
    part = run.metrics.get(name)
    return part if isinstance(part, dict) else {}


def _alike(parts: Iterable[dict[str, Any]], key: str, *others: str) -> list[dict[str, Any]]:
    """Those that have a key, as far as it and others are the same as in the first of them."""
    having = [part for part in parts if key in part]
    return [p for p in having if all(p[each] == having[0][each] for each in (key, *others))]


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [mean_of(values) for values in zip(*rows, strict=True)]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is there."""
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None


_RATIOS = {"error": "mean_ce", "nll": "mean_cnll", "ece": "mean_cece"}


def with_relative_scores(results: StudyResults) -> StudyResults:
    """The same results; what runs measured of corrupted images, also relative to the baseline.

    The reference is the mean over the baseline's seeds, so that its own runs scatter around 1.
    """
    references = {
        name: corrupted_cells(first.runs) for name, first in baselines(results.methods).items()
    }
    methods = [
        replace(m, runs=[_with_ratios(run, references.get(m.name)) for run in m.runs])
        for m in results.methods
    ]
    return replace(results, methods=methods)


def _with_ratios(run: RunResult, reference: Mapping[str, Any] | None) -> RunResult:
    part = _part(run, "corrupted")
    if reference is None or any(part.get(k) != reference[k] for k in ("names", "severities")):
        return run
    ratios = {}
    for metric, name in _RATIOS.items():
        rows = [part["cells"].get(metric), reference["cells"].get(metric)]
        found = None if None in rows else _mean_ratio(*rows)
        if found is not None:
            ratios[name] = found
    corrupted = {**part, "relative_to_baseline": ratios}
    return replace(run, metrics={**run.metrics, "corrupted": corrupted})


def _mean_ratio(own: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> float | None:
    """Mean over types of the sums over severities; None where a sum of the baseline is 0."""
    totals = [sum(row) for row in base]
    if min(totals) <= 0:
        return None
    ratios = [sum(row) / total for row, total in zip(own, totals, strict=True)]  # Eq. (35)-(37)
    return sum(ratios) / len(ratios)


PARETO_IDS = ("test.accuracy", "test.ece", "corrupted.error")


@dataclass(frozen=True)
class Cost:
    """Means over seeds, None where not recorded: seconds of training, and of one prediction."""

    train_seconds: float | None
    seconds_per_image: float | None


@dataclass(frozen=True)
class Row:
    """One method: its numbers, and how they differ from the baseline's (None for a baseline)."""

    method: MethodResults
    baseline: str | None
    values: dict[str, Estimate]
    differences: dict[str, Difference]
    cost: Cost
    on_front: bool = False

    @property
    def name(self) -> str:
        return self.method.name


@dataclass(frozen=True)
class Findings:
    """A study's rows in the order of its methods, and the metrics that they have."""

    title: str
    columns: list[Column]
    rows: list[Row]
    front_columns: list[Column]

    def row(self, name: str) -> Row:
        """The row of a method."""
        return next(row for row in self.rows if row.name == name)


def compare_methods(results: StudyResults) -> Findings:
    """Estimates, paired differences, costs and the Pareto front of a study."""
    results = with_relative_scores(results)
    columns = columns_of(run.metrics for method in results.methods for run in method.runs)
    chosen = baselines(results.methods)
    rows = []
    for method in results.methods:
        name = chosen[method.name].name
        rows.append(Row(method, None if name == method.name else name, {}, {}, _cost(method)))
    for baseline in {id(each): each for each in chosen.values()}.values():
        group = [m for m in results.methods if chosen[m.name] is baseline]
        for column in columns:
            _fill({row.name: row for row in rows}, group, baseline, column)
    front_columns = [c for c in columns if c.id in PARETO_IDS]
    front = pareto_front(rows, front_columns)
    rows = [replace(row, on_front=row.name in front) for row in rows]
    return Findings(results.title, columns, rows, front_columns)


def pareto_front(rows: Sequence[Row], columns: Sequence[Column]) -> set[str]:
    """Names of the methods that no other one beats or equals in all of `columns` on average."""
    if len(columns) < 2:
        return set()
    points = {
        row.name: [row.values[c.id].mean * (1 if c.better == "higher" else -1) for c in columns]
        for row in rows
        if all(c.id in row.values for c in columns)
    }
    return {
        name
        for name, point in points.items()
        if not any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True))
            for other in points.values()
        )
    }


def _fill(
    rows: Mapping[str, Row],
    group: Sequence[MethodResults],
    baseline: MethodResults,
    column: Column,
) -> None:
    """One column of the methods that share a baseline, apart where they saw other corruptions."""
    alike: dict[str, list[MethodResults]] = {}
    for method in group:
        alike.setdefault(_measured_on(method, column), []).append(method)
    for methods in alike.values():
        estimates, differences = judge_column(methods, baseline, column)
        for name, estimate in estimates.items():
            rows[name].values[column.id] = estimate
        for name, difference in differences.items():
            rows[name].differences[column.id] = difference


def _measured_on(method: MethodResults, column: Column) -> str:
    """Name what a mean is over: over other corruptions or perturbations it is another quantity.

    So is that of an attack or of a change in bands of frequencies with other settings, and that
    of another test set with the same name.
    """
    if not method.runs:
        return ""
    evaluate, metrics = method.runs[0].config.get("evaluate", {}), method.runs[0].metrics
    kind, _, title = column.split.partition(".")
    sources = column.unscaled_split.split(".")
    found: Any = None
    if column.is_of_other_set:
        found = evaluate.get("also", {}).get(column.unscaled_split)
    elif sources[0] == "ood" and len(sources) > 1:
        found = evaluate.get("ood", {}).get(sources[1])
    elif kind in ("attacked", "frequency") and title:
        settings = (metrics.get(kind) or {}).get(title) or {}
        found = [settings.get(key) for key in ("attack", "change", "frequencies")]
    elif {"corrupted", "perturbed", "attacked", "frequency"}.intersection(column.split.split(".")):
        corrupted, perturbed = (metrics.get(name) or {} for name in ("corrupted", "perturbed"))
        sequences = sorted(perturbed.get("cells", {}))
        found = [corrupted.get("names"), corrupted.get("severities"), sequences]
    return json.dumps(found, sort_keys=True)


def _cost(method: MethodResults) -> Cost:
    """Training from the log, which every run that trains has; else, and prediction, `cost.json`.

    A network that was trained elsewhere has neither.
    """
    training = (
        sum(record["seconds"] for record in run.log if "seconds" in record)
        or run.cost.get("training_seconds")
        or None
        for run in method.runs
    )
    prediction = (run.cost.get("inference_seconds_per_image") for run in method.runs)
    return Cost(_mean_known(training), _mean_known(prediction))
