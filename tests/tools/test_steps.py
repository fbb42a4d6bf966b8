"""What each method changes beside the one that it extends: `tools/evidence/steps.py`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.report.read import MethodResults, RunResult, StudyResults

CHANGES = {"a": 0.0, "b": 0.2, "fine": 0.1, "coarse": -0.1, "vain": 0.0}
NAMES = ("a", "a + fine", "a + fine, coarse", "b", "b + vain", "b + fine")
_FOUND = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "evidence" / "steps.py"))


def measured(name: str, seed: int) -> RunResult:
    """Accuracy to which every part adds its change, with noise of the seed and of the images."""
    rng = np.random.default_rng(seed)
    value = 0.4 + 0.02 * rng.standard_normal()
    images = 0.01 * rng.standard_normal(200)  # the same of all methods of a seed
    value += sum(CHANGES[part] for part in name.replace(", ", " + ").split(" + "))
    own = np.random.default_rng([seed, NAMES.index(name)])
    value += 0.004 * own.standard_normal()
    draws = {"test.accuracy": value + images, "test.units": np.array(1000)}
    return RunResult(seed, {"test": {"accuracy": value}}, {}, [], replicates=draws)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    methods = [MethodResults(name, [measured(name, seed) for seed in range(5)]) for name in NAMES]
    return {row["method"]: row for row in _FOUND["steps"](StudyResults("steps", {}, methods))}


def test_a_method_stands_beside_the_longest_name_that_it_extends(
    rows: dict[str, dict[str, Any]],
) -> None:
    assert {name: row["beside"] for name, row in rows.items()} == {
        "a + fine": "a",
        "a + fine, coarse": "a + fine",
        "b + vain": "b",
        "b + fine": "b",
    }
    assert _FOUND["extended"](["a", "ab", "a, x, y", "a, z"]) == {"a, x, y": "a", "a, z": "a"}


def test_a_change_is_that_of_the_last_part(rows: dict[str, dict[str, Any]]) -> None:
    found = {name: row["numbers"]["test.accuracy"] for name, row in rows.items()}
    for name, part in zip(found, ("fine", "coarse", "vain", "fine"), strict=True):
        mean, low, high, _ = found[name]
        assert mean == pytest.approx(CHANGES[part], abs=0.01)
        assert low < mean < high
    assert [mark for *_, mark in found.values()] == ["✓", "✗", "?", "✓"]


def test_a_verdict_holds_over_all_comparisons() -> None:
    """What one comparison alone calls better is withheld among many that are not."""

    def method(name: str, change: float) -> MethodResults:
        noise = (-0.02, 0.02, -0.01, 0.01, 0.0)
        values = [0.5 + change + (0 if change == 0 else shift) for shift in noise]
        return MethodResults(
            name,
            [RunResult(seed, {"test": {"accuracy": v}}, {}, []) for seed, v in enumerate(values)],
        )

    one = [method("x0", 0.0), method("x0 + y", 0.03)]
    many = [m for k in range(12) for m in (method(f"x{k}", 0.0), method(f"x{k} + y", 0.001))]
    marks = {}
    for title, methods in (("alone", one), ("among many", [*one, *many[2:]])):
        found = _FOUND["steps"](StudyResults(title, {}, methods))[0]
        marks[title] = found["numbers"]["test.accuracy"][-1]
    assert marks == {"alone": "✓", "among many": "?"}
