"""What each part of a study of combinations changes: `tools/evidence/effects.py`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.report.read import MethodResults, RunResult, StudyResults

CHANGES = {"sharp": 0.1, "wide": -0.05, "deep": 0.0}
NAMES = ("plain", "sharp", "wide", "sharp + wide", "deep", "deep + sharp", "deep + wide")


@pytest.fixture(scope="module")
def effects() -> Callable[[StudyResults], list[dict[str, Any]]]:
    file = Path(__file__).parents[2] / "tools" / "evidence" / "effects.py"
    found: Callable[[StudyResults], list[dict[str, Any]]] = runpy.run_path(str(file))["effects"]
    return found


def measured(name: str, seed: int) -> RunResult:
    """Accuracy to which every part adds its change, with noise of the seed and of the images."""
    rng = np.random.default_rng(seed)
    value = 0.5 + 0.02 * rng.standard_normal()
    images = 0.01 * rng.standard_normal(200)  # the same of all methods of a seed
    value += sum(CHANGES.get(part, 0.0) for part in name.split(" + "))
    own = np.random.default_rng([seed, NAMES.index(name)])
    value += 0.004 * own.standard_normal()
    draws = {"test.accuracy": value + images, "test.units": np.array(1000)}
    return RunResult(seed, {"test": {"accuracy": value}}, {}, [], replicates=draws)


def test_each_part_changes_what_it_adds(
    effects: Callable[[StudyResults], list[dict[str, Any]]],
) -> None:
    methods = [MethodResults(name, [measured(name, seed) for seed in range(5)]) for name in NAMES]
    rows = effects(StudyResults("parts", {}, methods))
    assert [(row["part"], row["pairs"]) for row in rows] == [("sharp", 3), ("wide", 3), ("deep", 3)]
    marks = {}
    for row in rows:
        mean, low, high, marks[row["part"]] = row["numbers"]["test.accuracy"]
        assert mean == pytest.approx(CHANGES[row["part"]], abs=0.01)
        assert low < mean < high
    assert marks == {"sharp": "✓", "wide": "✗", "deep": "?"}


def test_a_mean_change_is_that_of_the_runs(
    effects: Callable[[StudyResults], list[dict[str, Any]]],
) -> None:
    methods = [MethodResults(name, [measured(name, seed) for seed in range(3)]) for name in NAMES]
    value = {m.name: np.mean([r.metrics["test"]["accuracy"] for r in m.runs]) for m in methods}
    found = effects(StudyResults("parts", {}, methods))[0]["numbers"]["test.accuracy"][0]
    with_it = value["sharp"] + value["sharp + wide"] + value["deep + sharp"]
    without = value["plain"] + value["wide"] + value["deep"]
    assert found == pytest.approx((with_it - without) / 3)
