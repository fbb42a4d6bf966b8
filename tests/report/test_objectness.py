"""The report's diagrams of confidence against objectness."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato.report.objectness import objectness_section, pooled_curve
from sfumato.report.read import MethodResults, RunResult, StudyResults


def finished(seed: int, counts: list[int], confidence: list[float | None]) -> RunResult:
    curve: dict[str, Any] = {"counts": counts, "confidence": confidence, "accuracy": confidence}
    measured = {"objectness": {"objectness_deviation": 0.25, "curve": curve}}
    return RunResult(seed, measured, {}, [])


def test_seeds_are_pooled_by_their_counts() -> None:
    runs = [finished(0, [3, 0, 1], [0.2, None, 0.6]), finished(1, [1, 0, 1], [0.6, None, 0.8])]
    curve = pooled_curve(MethodResults("ALS", runs))
    assert curve is not None
    assert curve.counts == [4, 0, 2]
    assert curve.confidence == pytest.approx([0.3, 0.0, 0.7])


def test_section_names_methods_and_escapes_them() -> None:
    method = MethodResults("<ALS>", [finished(0, [3, 0, 1], [0.2, None, 0.6])])
    page = objectness_section(StudyResults("title", {}, [method]))
    assert "&lt;ALS&gt;" in page
    assert "<ALS>" not in page
    assert "mean deviation 0.250" in page
    assert page.count("<circle") == 2  # the empty bin has no dot


def test_nothing_where_nothing_was_measured() -> None:
    plain = MethodResults("hard", [RunResult(0, {"test": {}}, {}, [])])
    assert objectness_section(StudyResults("title", {}, [plain])) == ""
