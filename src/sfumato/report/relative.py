"""Corruption errors relative to the study's baseline: mCE, mCNLL and mCECE.

Reference: Park and Kim, Blurs Behave Like Ensembles, ICML 2022, appendix E.1, Eq. (35)-(37), with
the study's baseline in the place of AlexNet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato.report.curves import corrupted_cells
from sfumato.report.merge import baselines
from sfumato.report.read import MethodResults, RunResult, StudyResults

RELATIVE = "relative_to_baseline"
_RATIOS = {"error": "mean_ce", "nll": "mean_cnll", "ece": "mean_cece"}


def with_relative_scores(results: StudyResults) -> StudyResults:
    """The same results; what runs measured of corrupted images, also relative to the baseline.

    The reference is the mean over the baseline's seeds, so that its own runs scatter around 1.
    """
    chosen = baselines(results.methods)
    references = {
        name: corrupted_cells(baseline.runs) for name, baseline in chosen.items() if baseline.runs
    }
    methods = [_relative(method, references.get(method.name)) for method in results.methods]
    return replace(results, methods=methods)


def _relative(method: MethodResults, reference: Mapping[str, Any] | None) -> MethodResults:
    if reference is None:
        return method
    return replace(method, runs=[_with_ratios(run, reference) for run in method.runs])


def _with_ratios(run: RunResult, reference: Mapping[str, Any]) -> RunResult:
    part = run.metrics.get("corrupted")
    same = isinstance(part, dict) and all(
        part.get(key) == reference[key] for key in ("names", "severities")
    )
    if not same or part is None:
        return run
    ratios = {}
    for metric, name in _RATIOS.items():
        rows = [part["cells"].get(metric), reference["cells"].get(metric)]
        found = None if None in rows else _mean_ratio(*rows)
        if found is not None:
            ratios[name] = found
    changed = {**part, RELATIVE: ratios}
    return replace(run, metrics={**run.metrics, "corrupted": changed})


def _mean_ratio(own: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> float | None:
    """Mean over types of the sums over severities; None where a sum of the baseline is 0."""
    totals = [sum(row) for row in base]
    if min(totals) <= 0:
        return None
    ratios = [sum(row) / total for row, total in zip(own, totals, strict=True)]  # Eq. (35)-(37)
    return sum(ratios) / len(ratios)
