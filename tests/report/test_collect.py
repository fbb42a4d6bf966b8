"""What studies/collect.py keeps of a study: the baseline after a temperature is a method too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.report.read import MethodResults, RunResult, StudyResults

_FILE = Path(__file__).resolve().parents[2] / "studies" / "collect.py"


@pytest.fixture(scope="module")
def collect() -> Any:
    spec = importlib.util.spec_from_file_location("collect", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(seed: int, nll: float, scaled_nll: float) -> RunResult:
    generator = np.random.default_rng(7)  # all runs resample the same images
    noise = 0.01 * generator.standard_normal(200)
    replicates = {"test.units": np.array("images"), "scaled.units": np.array("images")}
    for name in ("test.accuracy", "test.nll", "scaled.nll"):
        replicates[name] = (0.8 if name == "test.accuracy" else nll) + noise
    scaled = {"temperature": 1.5, "nll": scaled_nll, "corrupted": {"error": 0.4}}
    test = {"accuracy": 0.8 + 0.01 * seed, "nll": nll}
    return RunResult(seed, {"test": test, "scaled": scaled}, {}, [], replicates=replicates)


def _study(*methods: MethodResults) -> StudyResults:
    return StudyResults("title", {"name": "study"}, list(methods))


def test_the_baseline_after_a_temperature_is_a_method(collect: Any) -> None:
    runs = [_run(seed, 1.5 + 0.01 * seed, 1.2 + 0.01 * seed) for seed in range(3)]
    plain, other = MethodResults("plain", runs), MethodResults("other", runs[:2])
    found = collect.with_temperature(_study(plain, other))
    assert [each.name for each in found.methods] == ["plain", "plain, temperature", "other"]
    scaled = found.methods[1].runs[2]
    assert scaled.metrics["test"] == pytest.approx(
        {"accuracy": 0.82, "temperature": 1.5, "nll": 1.22}
    )
    assert scaled.metrics["corrupted"] == {"error": 0.4}
    assert set(scaled.replicates) == {"test.accuracy", "test.nll", "test.units"}
    assert scaled.replicates["test.nll"] is runs[2].replicates["scaled.nll"]


def test_it_is_judged_like_the_others(collect: Any) -> None:
    runs = [_run(seed, 1.5 + 0.01 * seed, 1.2 + 0.01 * seed) for seed in range(3)]
    findings = collect.compare_methods(
        collect.with_temperature(_study(MethodResults("plain", runs)))
    )
    rows = {row["method"]: row["numbers"] for row in collect.judged(findings)}
    assert rows["plain, temperature"]["test.nll"][0] == pytest.approx(1.21)
    assert rows["plain, temperature"]["test.nll"][4] == "✓"
    assert rows["plain, temperature"]["test.accuracy"][4] == "?"


def test_without_temperatures_nothing_is_added(collect: Any) -> None:
    run = RunResult(0, {"test": {"accuracy": 0.8}}, {}, [])
    study = _study(MethodResults("plain", [run]))
    assert collect.with_temperature(study) is study
