"""The page's data: everything that its script draws, as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from sfumato._core.metric_descriptions import describe_metric
from sfumato.report.columns import Column
from sfumato.report.curves import (
    corrupted_cells,
    ensemble_curves,
    frequency_curves,
    mean_of,
    perturbed_sequences,
)
from sfumato.report.export import seeds_text, to_csv, to_latex, to_markdown
from sfumato.report.findings import Findings, Row
from sfumato.report.inference import LEVEL
from sfumato.report.notes import note
from sfumato.report.read import MethodResults, RunResult, StudyResults
from sfumato.report.recommendation import recommend
from sfumato.report.statistics import Difference, Estimate
from sfumato.report.summary import pooled_bins

SAMPLES_SHOWN = 8
_LOGGED = "validation_"  # what the log puts before a metric of the validation set
_MOST_EPOCHS = 150  # points of a training curve
_DIGITS = 6


def payload(results: StudyResults, findings: Findings) -> dict[str, Any]:
    """All that the page shows, rounded to six significant digits; JSON has no NaN, so None."""
    advice = recommend(findings)
    methods = [_method(row, findings.columns) for row in findings.rows]
    content = {
        "title": results.title,
        "note": note(findings),
        "recommendation": {
            "method": advice.method,
            "headline": advice.headline,
            "reasons": advice.reasons,
            "cost": advice.cost,
            "certainty": advice.certainty,
        },
        "columns": [_column(column, findings) for column in findings.columns],
        "front_columns": [column.id for column in findings.front_columns],
        "methods": methods,
        "scores": _scores(methods),
        "profiles": results.profiles,
        "study": yaml.safe_dump(results.study, sort_keys=False, allow_unicode=True),
        "environment": results.environment,
        "downloads": {
            "results.csv": to_csv(findings),
            "results.tex": to_latex(findings),
            "results.md": to_markdown(findings),
        },
    }
    rounded: dict[str, Any] = _rounded(content)
    return rounded


def _scores(methods: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, bool]]:
    """Title of each metric in the figures, and whether it is shown in percent."""
    names: set[str] = set()
    for method in methods:
        names.update((method["corrupted"] or {}).get("cells", ()), method["ensemble"] or ())
        names.update(method["training"])
        for curves in (method["frequency"] or {}).values():
            names.update(curves.keys() - {"change", "at"})
    found = {}
    for name in sorted(names):
        key = name.removeprefix(_LOGGED)
        title, _, bounds = describe_metric(key)
        found[name] = (title if key == name else f"validation {title}", bounds == "share")
    return found


def _column(column: Column, findings: Findings) -> dict[str, Any]:
    made = [row.differences[column.id] for row in findings.rows if column.id in row.differences]
    sizes = sorted({each.compared for each in made if each.verdict and each.compared})
    return {
        "id": column.id,
        "title": column.title,
        "heading": column.heading,
        "better": column.better,
        "percent": column.percent,
        "main": column.is_main,
        "error": f"≤ {100 * LEVEL:.0f} % over {' and '.join(map(str, sizes))}" if sizes else "",
    }


def _method(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    runs = row.method.runs
    config = runs[0].config if runs else {}
    return {
        "name": row.name,
        "baseline": row.baseline,
        "seeds": seeds_text(row),
        "failures": [f"seed {seed}: {why}" for seed, why in row.method.failures.items()],
        "front": row.on_front,
        "values": {c.id: _value(row.values[c.id], c) for c in columns if c.id in row.values},
        "differences": {
            c.id: _difference(row.differences[c.id], c) for c in columns if c.id in row.differences
        },
        "cost": [row.cost.train_seconds, row.cost.seconds_per_image],
        "reliability": _reliability(row.method),
        "corrupted": corrupted_cells(runs),
        "frequency": frequency_curves(runs),
        "along": perturbed_sequences(runs),
        "ensemble": ensemble_curves(runs),
        "training": _training(runs),
        "samples": next((run.samples[:SAMPLES_SHOWN] for run in runs if run.samples), []),
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
    }


def _value(value: Estimate, column: Column) -> dict[str, Any]:
    return {
        "mean": value.mean,
        "low": value.low,
        "high": value.high,
        "over": value.over,
        "text": value.text(column),
        "perfect": value.floor_text(column),
    }


def _difference(found: Difference, column: Column) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "verdict": found.verdict,
        "over": found.over,
        "reason": found.reason(),
        "text": found.text(column),
    }


def _reliability(method: MethodResults) -> dict[str, Any] | None:
    bins = pooled_bins(method)
    if bins is None:
        return None
    return {"counts": bins.counts, "confidence": bins.confidence, "accuracy": bins.accuracy}


def _training(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Each logged number by epoch, mean over the seeds that have that epoch."""
    epochs = max((len(run.log) for run in runs), default=0)
    step = -(-epochs // _MOST_EPOCHS) or 1
    kept = sorted({*range(0, epochs, step), *([epochs - 1] if epochs else [])})
    names = dict.fromkeys(key for run in runs for record in run.log[:1] for key in record)
    curves: dict[str, list[Any]] = {"epoch": [epoch + 1 for epoch in kept]}
    for name in names:
        if name not in ("epoch", "seconds"):
            found = [[r.log[e].get(name) for r in runs if e < len(r.log)] for e in kept]
            curves[name] = [mean_of(values) for values in found]
    return curves


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value
