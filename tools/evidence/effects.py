"""What each part of a study of combinations changes, averaged over all that it is combined with.

Methods are named by their parts, `label smoothing + spatial`, and the first one has none. The mean
change by a part is put on top of the first method, run by run and resample by resample, so that the
rule of `sfumato report` judges all parts together, over seeds and images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato.report.findings import compare_methods
from sfumato.report.read import MethodResults, RunResult, StudyResults
from sfumato.report.statistics import SYMBOLS

JOIN = " + "
Pairs = list[tuple[str, str]]  # a method, and the same without a part


def effects(results: StudyResults) -> list[dict[str, Any]]:
    """A row for each part: how many pairs, and by metric the change, its interval and its mark."""
    first, *others = results.methods
    found = pairs_by_part(first.name, [method.name for method in others])
    runs = {method.name: {run.seed: run for run in method.runs} for method in results.methods}
    changed = [
        MethodResults(part, [_changed(run, runs, pairs) for run in first.runs])
        for part, pairs in found.items()
    ]
    judged = compare_methods(replace(results, methods=[first, *changed]))
    return [
        {
            "part": row.name,
            "pairs": len(found[row.name]),
            "numbers": {
                key: [each.mean, each.low, each.high, SYMBOLS[each.verdict]]
                for key, each in row.differences.items()
                if key in first.runs[0].replicates
            },
        }
        for row in judged.rows[1:]
    ]


def pairs_by_part(first: str, names: Sequence[str]) -> dict[str, Pairs]:
    """By part, every method that has it beside the one that has all its other parts.

    Example:
        >>> pairs_by_part("plain", ["a", "b", "a + b"])
        {'a': [('a', 'plain'), ('a + b', 'b')], 'b': [('b', 'plain'), ('a + b', 'a')]}
    """
    found: dict[str, Pairs] = {}
    for name in names:
        parts = name.split(JOIN)
        for part in parts:
            rest = JOIN.join(each for each in parts if each != part) or first
            found.setdefault(part, []).append((name, rest))
    return found


def _changed(
    run: RunResult, runs: Mapping[str, Mapping[int, RunResult]], pairs: Pairs
) -> RunResult:
    """The run with the mean change of the pairs, of the same seed, added to what it measured."""
    both = [(runs[with_it][run.seed], runs[without][run.seed]) for with_it, without in pairs]

    def change(read: Callable[[RunResult], Any]) -> Any:
        return sum(read(with_it) - read(without) for with_it, without in both) / len(both)

    metrics, draws = copy.deepcopy(run.metrics), dict(run.replicates)
    for key, values in run.replicates.items():
        split, _, name = key.rpartition(".")
        found = _at(metrics, split)
        if name in found:  # else it is the number of images, which stays
            found[name] += change(lambda each, at=split, key=name: _at(each.metrics, at)[key])
            draws[key] = values + change(lambda each, key=key: each.replicates[key])
    return replace(run, metrics=metrics, replicates=draws)


def _at(metrics: dict[str, Any], split: str) -> dict[str, Any]:
    for part in split.split("."):
        metrics = metrics[part]
    return metrics
