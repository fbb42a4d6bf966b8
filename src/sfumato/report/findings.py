"""Everything that a study's numbers say, computed once for page, tables and recommendation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sfumato.report.columns import Column, columns_of
from sfumato.report.judgement import judge_column
from sfumato.report.merge import baselines
from sfumato.report.read import MethodResults, StudyResults
from sfumato.report.relative import with_relative_scores
from sfumato.report.statistics import Difference, Estimate

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
    rows = [_row(method, chosen[method.name]) for method in results.methods]
    for baseline in {id(each): each for each in chosen.values()}.values():
        group = [m for m in results.methods if chosen[m.name] is baseline]
        for column in columns:
            _fill({row.name: row for row in rows}, group, baseline, column)
    front_columns = [c for c in columns if c.id in PARETO_IDS]
    front = pareto_front(rows, front_columns)
    rows = [
        Row(r.method, r.baseline, r.values, r.differences, r.cost, r.name in front) for r in rows
    ]
    return Findings(results.title, columns, rows, front_columns)


def pareto_front(rows: Sequence[Row], columns: Sequence[Column]) -> set[str]:
    """Names of the methods that no other one beats or equals in all of `columns` by the means."""
    if len(columns) < 2:
        return set()
    points = {}
    for row in rows:
        found = [row.values.get(column.id) for column in columns]
        if all(each is not None for each in found):
            signs = [1 if column.better == "higher" else -1 for column in columns]
            pairs = zip(signs, found, strict=True)
            points[row.name] = [sign * each.mean for sign, each in pairs if each is not None]
    return {
        name
        for name, point in points.items()
        if not any(_dominates(other, point) for other in points.values())
    }


def _dominates(other: Sequence[float], point: Sequence[float]) -> bool:
    return other != point and all(a >= b for a, b in zip(other, point, strict=True))


def _row(method: MethodResults, baseline: MethodResults) -> Row:
    name = None if baseline.name == method.name else baseline.name
    return Row(method, name, {}, {}, _cost(method))


def _fill(
    rows: Mapping[str, Row],
    group: Sequence[MethodResults],
    baseline: MethodResults,
    column: Column,
) -> None:
    """One column of the methods that share a baseline, apart where they saw other damage."""
    by_damage: dict[str, list[MethodResults]] = {}
    for method in group:
        by_damage.setdefault(_damage(method, column), []).append(method)
    for methods in by_damage.values():
        found = judge_column(methods, baseline, column)
        for name, estimate in found.estimates.items():
            rows[name].values[column.id] = estimate
        for name, difference in found.differences.items():
            rows[name].differences[column.id] = difference


def _damage(method: MethodResults, column: Column) -> str:
    """Which corruptions and perturbations a mean is over: over others it is another quantity.

    The same of an attack, and of a change in bands of frequencies, with another setting, and of
    another test set that has the same name.
    """
    split = set(column.split.split("."))
    if method.runs and column.is_of_other_set:
        sets = method.runs[0].config.get("evaluate", {}).get("also", {})
        return json.dumps(sets.get(column.unscaled_split), sort_keys=True)
    if not method.runs or not {"corrupted", "perturbed", "attacked", "frequency"} & split:
        return ""
    metrics = method.runs[0].metrics
    if column.split.startswith(("attacked.", "frequency.")):
        kind, _, title = column.split.partition(".")
        found = (metrics.get(kind) or {}).get(title) or {}
        return json.dumps([found.get(key) for key in ("attack", "change", "frequencies")])
    corrupted, perturbed = (metrics.get(name) or {} for name in ("corrupted", "perturbed"))
    sequences = sorted(perturbed.get("cells", {}))
    return json.dumps([corrupted.get("names"), corrupted.get("severities"), sequences])


def _cost(method: MethodResults) -> Cost:
    """Training from the log, which every run that trains has; else, and prediction, `cost.json`.

    A network that was trained elsewhere has neither.
    """
    logs = [[record["seconds"] for record in r.log if "seconds" in record] for r in method.runs]
    known_costs = [run.cost.get("training_seconds") for run in method.runs]
    found = [sum(log) or cost for log, cost in zip(logs, known_costs, strict=True)]
    trained = [seconds for seconds in found if seconds]
    predicted = [run.cost.get("inference_seconds_per_image") for run in method.runs]
    known = [seconds for seconds in predicted if seconds is not None]
    return Cost(fmean(trained) if trained else None, fmean(known) if known else None)
