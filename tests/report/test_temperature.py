"""The baseline after a temperature: a method that others have to be better than."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sfumato.report import compare_methods, recommend
from sfumato.report.read import (
    MethodResults,
    RunResult,
    StudyResults,
    after_temperature,
    with_temperature,
)

SEEDS = range(3)


def _run(
    name: str, seed: int, accuracy: float, nll: float, scaled: float | None = None
) -> RunResult:
    """Each number with a little noise of its own, and resamples of the same images."""
    noise = 0.003 * np.random.default_rng([seed, *map(ord, name)]).standard_normal(3)
    draws = 0.001 * np.random.default_rng(7).standard_normal(200)
    metrics: dict[str, Any] = {"test": {"accuracy": accuracy + noise[0], "nll": nll + noise[1]}}
    replicates = {"test.units": np.array("images"), "test.accuracy": accuracy + draws}
    replicates["test.nll"] = nll + draws
    if scaled is not None:
        metrics["scaled"] = {"temperature": 1.5, "nll": scaled + noise[2]}
        replicates |= {"scaled.units": np.array("images"), "scaled.nll": scaled + draws}
    return RunResult(seed, metrics, {}, [], replicates=replicates)


def _method(name: str, accuracy: float, nll: float, scaled: float | None = None) -> MethodResults:
    return MethodResults(name, [_run(name, seed, accuracy, nll, scaled) for seed in SEEDS])


def _study(*methods: MethodResults) -> StudyResults:
    return StudyResults("title", {"name": "study"}, list(methods))


def test_it_has_the_scaled_numbers_and_their_resamples() -> None:
    plain = _method("plain", 0.8, 0.7, 0.6)
    damaged = {"error": 0.4, "nll": 1.1}
    plain.runs[0].metrics["scaled"]["corrupted"] = damaged
    plain.runs[0].replicates["scaled.corrupted.error"] = np.zeros(2)
    found = after_temperature(plain)
    assert found is not None
    assert found.name == "plain, temperature"
    first, theirs = found.runs[0], plain.runs[0]
    assert first.metrics["test"]["accuracy"] == theirs.metrics["test"]["accuracy"]
    assert first.metrics["test"]["nll"] == theirs.metrics["scaled"]["nll"]
    assert "temperature" not in first.metrics["test"]
    assert first.metrics["corrupted"] == damaged
    assert set(first.replicates) == {
        *("test.accuracy", "test.nll", "test.units", "corrupted.error"),
    }
    assert first.replicates["test.nll"] is theirs.replicates["scaled.nll"]


def test_without_temperatures_there_is_none() -> None:
    study = _study(_method("plain", 0.8, 0.7))
    assert after_temperature(study.methods[0]) is None
    assert after_temperature(MethodResults("empty")) is None
    assert with_temperature(study) is study


def test_it_is_judged_like_other_methods() -> None:
    study = with_temperature(_study(_method("plain", 0.8, 0.7, 0.6), _method("other", 0.81, 0.7)))
    rows = {row.name: row for row in compare_methods(study).rows}
    assert list(rows) == ["plain", "plain, temperature", "other"]
    found = rows["plain, temperature"].differences
    assert found["test.nll"].verdict == "better"
    assert found["test.accuracy"].verdict == "inconclusive"


def test_a_temperature_is_recommended_where_nothing_is_better() -> None:
    study = _study(_method("plain", 0.8, 0.7, 0.6), _method("loss", 0.8, 0.62))
    found = recommend(compare_methods(study))
    assert found.method == "plain, temperature"
    assert found.headline == "Fit one temperature to plain."
    assert "significantly better in NLL (−0." in found.reasons[0]
    assert "No method is significantly better than that anywhere." in found.reasons[0]
    assert found.reasons[1].startswith("loss is also significantly better")
    assert found.cost.startswith("It costs a few seconds")


def test_what_trains_has_to_be_better_than_a_temperature() -> None:
    study = _study(_method("plain", 0.8, 0.7, 0.6), _method("smooth", 0.85, 0.65))
    found = recommend(compare_methods(study))
    assert found.headline == "Use smooth."
    assert "against that smooth is significantly better in accuracy (+4." in found.reasons[1]
    assert "significantly worse in NLL (+0.05" in found.reasons[1]


def test_a_trade_that_is_better_somewhere_is_named() -> None:
    study = _study(_method("plain", 0.8, 0.7, 0.6), _method("trade", 0.7, 0.5))
    found = recommend(compare_methods(study))
    assert found.headline == "Fit one temperature to plain."
    assert "No method but trade is significantly better than that anywhere." in found.reasons[0]


def test_a_method_of_that_name_is_the_study_s_own() -> None:
    own = _method("plain, temperature", 0.8, 0.9)
    found = recommend(compare_methods(_study(_method("plain", 0.8, 0.7, 0.6), own)))
    assert "stay with plain" in found.headline
    assert "One temperature" not in found.text


def test_a_temperature_that_changes_nothing_is_not_recommended() -> None:
    study = _study(_method("plain", 0.8, 0.7, 0.7), _method("loss", 0.8, 0.62))
    found = recommend(compare_methods(study))
    assert found.headline == "Use loss."
    assert "which trains nothing, is not significantly different; against that" in found.reasons[1]


@pytest.mark.parametrize("scaled", [None, 0.9])
def test_where_nothing_helps_the_baseline_stays(scaled: float | None) -> None:
    study = _study(_method("plain", 0.8, 0.7, scaled), _method("other", 0.8, 0.7))
    assert "stay with plain" in recommend(compare_methods(study)).headline
