"""Keep a study's numbers as one small JSON file.

Run: python tools/evidence/collect.py FOLDER studies/results/NAME.json [--temperature] [--effects]
       [--steps]
Every table of docs/results comes from such a file; reliability bins are left out. `curves` has
what was measured after each epoch, `judged` what `sfumato report` says of every method and metric:
mean, interval, floor and verdict. With --temperature the baseline after its temperature is a method
among others there: for studies whose methods are to replace one. With --effects, `effects` has what
each part of a study of combinations changes (effects.py); with --steps, `steps` what each method
changes beside the one that it extends (steps.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from effects import effects
from steps import steps

from sfumato.report import read_study
from sfumato.report.findings import Findings, Row, compare_methods
from sfumato.report.read import with_temperature
from sfumato.report.statistics import SYMBOLS

OPTIONS = {"--temperature", "--effects", "--steps"}
LEFT_OUT = ("reliability",)
CURVES = ("train_accuracy", "validation_accuracy", "validation_ece")


def collect(folder: Path, options: Container[str] = ()) -> dict[str, Any]:
    results = read_study(folder)
    runs = [
        {
            "method": method.name,
            "seed": run.seed,
            "metrics": _small(run.metrics),
            "curves": _curves(run.log),
        }
        for method in results.methods
        for run in method.runs
        if run.metrics.get("test")
    ]
    compared = with_temperature(results) if "--temperature" in options else results
    kept = {"study": results.study, "runs": runs, "judged": judged(compare_methods(compared))}
    if "--effects" in options:
        kept["effects"] = _small(effects(results))
    if "--steps" in options:
        kept["steps"] = _small(steps(compared))
    return kept


def judged(findings: Findings) -> list[dict[str, Any]]:
    """Every method with its seeds, seconds of training, and numbers by metric."""
    return [
        {
            "method": row.name,
            "seeds": len(row.method.runs),
            "train_seconds": row.cost.train_seconds,
            "numbers": {
                key: _small([found.mean, found.low, found.high, found.floor, _mark(row, key)])
                for key, found in row.values.items()
            },
        }
        for row in findings.rows
    ]


def as_text(content: dict[str, Any]) -> str:
    """JSON with one run, one judged method and one change a line."""
    study, *lists = content.items()
    parts = [f'"study": {json.dumps(study[1])}']
    for key, rows in lists:
        lines = ",\n".join(map(json.dumps, rows))
        parts.append(f'"{key}": [\n{lines}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def _curves(log: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Of the numbers that every epoch has."""
    return {
        name: [round(record[name], 4) for record in log]
        for name in CURVES
        if log and all(name in record for record in log)
    }


def _mark(row: Row, key: str) -> str:
    """The sign of the verdict on a difference; empty for the baseline."""
    difference = row.differences.get(key)
    return SYMBOLS[difference.verdict] if difference else ""


def _small(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _small(item) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_small(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    source, target, *options = sys.argv[1:]
    if unknown := set(options) - OPTIONS:
        raise SystemExit(f"unknown options {sorted(unknown)}; there are {sorted(OPTIONS)}")
    Path(target).write_text(as_text(collect(Path(source), options)))
