"""mCE, mCNLL and mCECE relative to the baseline, which no single run can know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfumato.report.findings import compare_methods
from sfumato.report.read import MethodResults, RunResult, StudyResults, read_study
from sfumato.report.recommendation import note


def _run(seed: int, rows: list[list[float]], **config: Any) -> RunResult:
    cells = {"error": rows, "nll": rows, "ece": rows}
    part = {"error": 0.5, "names": ["fog", "frost"], "severities": [1, 5], "cells": cells}
    data = {"task": "classify", "data": "same", **config}
    return RunResult(seed, {"test": {"accuracy": 0.5}, "corrupted": part}, data, [])


def test_by_hand() -> None:
    """fog (0.1 + 0.3) / (0.2 + 0.2), frost 0.8 / 0.4; the baseline is the mean of its seeds."""
    base = [_run(0, [[0.1, 0.3], [0.2, 0.2]]), _run(1, [[0.3, 0.1], [0.2, 0.2]])]
    other = [_run(0, [[0.1, 0.3], [0.4, 0.4]]), _run(1, [[0.1, 0.3], [0.4, 0.4]])]
    methods = [MethodResults("base", base), MethodResults("other", other)]
    found = compare_methods(StudyResults("title", {}, methods))
    for key in ("mean_ce", "mean_cnll", "mean_cece"):
        name = f"corrupted.relative_to_baseline.{key}"
        assert found.row("other").values[name].mean == pytest.approx(1.5)
        assert found.row("base").values[name].mean == pytest.approx(1.0)


def test_other_damage_and_perfect_baselines_have_none() -> None:
    base = MethodResults("base", [_run(0, [[0.0, 0.0], [0.2, 0.2]])])
    changed = _run(0, [[0.1, 0.3], [0.4, 0.4]])
    changed.metrics["corrupted"]["severities"] = [1, 3]
    methods = [base, MethodResults("other", [changed])]
    ids = {column.id for column in compare_methods(StudyResults("title", {}, methods)).columns}
    assert not any("relative_to_baseline" in each for each in ids)


def test_number_of_bins_is_said() -> None:
    runs = [_run(0, [[0.1, 0.3], [0.2, 0.2]], evaluate={"bins": [25, 10]})]
    study = StudyResults("title", {}, [MethodResults("base", runs)])
    assert "Calibration errors have 25 bins." in note(compare_methods(study))


def test_files_are_not_changed(tmp_path: Path) -> None:
    run = _run(0, [[0.1, 0.3], [0.2, 0.2]])
    (tmp_path / "metrics.json").write_text(json.dumps(run.metrics))
    (tmp_path / "config.yaml").write_text("task: classify\n")
    results = read_study(tmp_path)
    compare_methods(results)
    assert "relative_to_baseline" not in results.methods[0].runs[0].metrics["corrupted"]
