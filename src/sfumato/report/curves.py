"""What a method's runs measured along an axis, as means over its seeds: data of figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.report.read import RunResult


def corrupted_cells(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """Cells of every type and severity, mean over the seeds that saw the same damage."""
    parts = [run.metrics["corrupted"] for run in runs if "cells" in _part(run, "corrupted")]
    parts = [p for p in parts if _same(p, parts[0], ("names", "severities"))]
    if not parts:
        return None
    cells = {
        metric: [
            _means([part["cells"][metric][row] for part in parts])
            for row in range(len(parts[0]["names"]))
        ]
        for metric in parts[0]["cells"]
    }
    return {"names": parts[0]["names"], "severities": parts[0]["severities"], "cells": cells}


def ensemble_curves(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """NLL, accuracy and ECE by the number of members or samples, mean over the seeds."""
    parts = [run.metrics["ensemble"] for run in runs if "sizes" in _part(run, "ensemble")]
    parts = [p for p in parts if _same(p, parts[0], ("sizes",))]
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
        parts = [_part(run, "frequency").get(kind, {}) for run in runs]
        parts = [part for part in parts if "frequencies" in part]
        parts = [part for part in parts if _same(part, parts[0], ("frequencies", "change"))]
        if parts:
            cells = parts[0]["cells"]
            scores = {name: _means([part["cells"][name] for part in parts]) for name in cells}
            found[kind] = {"change": parts[0]["change"], "at": parts[0]["frequencies"], **scores}
    return found or None


def _part(run: RunResult, name: str) -> dict[str, Any]:
    part = run.metrics.get(name)
    return part if isinstance(part, dict) else {}


def _same(part: dict[str, Any], first: dict[str, Any], keys: Sequence[str]) -> bool:
    return all(part[key] == first[key] for key in keys)


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [mean_of(values) for values in zip(*rows, strict=True)]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is there."""
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None
