"""Intervals, differences and verdicts: against scipy, by hand, and where there is little data."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from sfumato.report.columns import column, columns_of
from sfumato.report.findings import analyse
from sfumato.report.read import MethodResults, RunResult, StudyResults
from sfumato.report.recommendation import recommend
from sfumato.report.statistics import (
    estimate,
    judge,
    paired_difference,
    t_interval,
    t_quantile,
)

ACCURACY, NLL = column("accuracy"), column("nll")


def method(name: str, *runs: dict[str, Any], first_seed: int = 0) -> MethodResults:
    found = [
        RunResult(seed, {"test": values}, {"data": "same"}, [{"seconds": 2.0}])
        for seed, values in enumerate(runs, start=first_seed)
    ]
    return MethodResults(name, found)


@pytest.mark.parametrize("freedom", [1, 2, 5, 17, 30, 31, 60, 500])
def test_quantile_is_scipys(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=2e-5)


def test_interval_is_scipys() -> None:
    values = [0.81, 0.79, 0.84, 0.80]
    expected = stats.t.interval(0.95, 3, stats.tmean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)
    assert t_interval([0.8]) is None


def test_difference_is_the_paired_t_test() -> None:
    ours, theirs = [0.83, 0.80, 0.86, 0.81], [0.80, 0.79, 0.82, 0.80]
    found = paired_difference(
        method("ours", *({"accuracy": v} for v in ours)),
        method("theirs", *({"accuracy": v} for v in theirs)),
        ACCURACY,
    )
    assert found is not None
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.verdict == ("better" if expected.low > 0 else "can't tell")


def test_difference_uses_shared_seeds_only() -> None:
    ours = method("ours", {"nll": 1.0}, {"nll": 2.0}, {"nll": 9.0})
    theirs = method("theirs", {"nll": 4.0}, {"nll": 9.5}, {"nll": 7.0}, first_seed=1)
    found = paired_difference(ours, theirs, NLL)
    assert found is not None
    assert (found.seeds, found.mean) == (2, pytest.approx((2 - 4 + 9 - 9.5) / 2))
    assert paired_difference(ours, method("none", {"nll": 1.0}, first_seed=8), NLL) is None


def test_one_seed_has_the_interval_over_images_and_no_verdict() -> None:
    single = method("one", {"accuracy": 0.8, "accuracy_interval": [0.7, 0.9]})
    found = estimate(single, ACCURACY)
    assert found is not None
    assert (found.low, found.high, found.over) == (0.7, 0.9, "images")
    difference = paired_difference(method("two", {"accuracy": 0.9}), single, ACCURACY)
    assert difference is not None
    assert (difference.low, difference.verdict) == (None, "can't tell")


def test_shares_stay_shares() -> None:
    found = estimate(method("wide", {"accuracy": 0.99}, {"accuracy": 0.9}), ACCURACY)
    assert found is not None
    assert found.high == 1.0


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (0.1, 0.2, "higher", "better"),
        (0.1, 0.2, "lower", "worse"),
        (-0.2, -0.1, "lower", "better"),
        (-0.1, 0.1, "higher", "can't tell"),
        (0.0, 0.1, "higher", "can't tell"),
    ],
)
def test_verdict_knows_the_good_direction(
    low: float, high: float, better: Any, verdict: str
) -> None:
    assert judge(low, high, better) == verdict


def test_columns_show_whatever_scalars_there_are() -> None:
    metrics = {
        "validation": {"accuracy": 0.5},
        "test": {"miou": 0.4, "samples": 7, "ap50": 0.3, "new_error": 1.5, "shade": 2, "nan": None},
        "stream": {"consistency": 0.9, "curve": [1, 2]},
    }
    found = {each.id: each for each in columns_of([metrics])}
    assert list(found) == [
        *("test.miou", "test.ap50", "test.new_error", "test.shade", "stream.consistency")
    ]
    assert found["test.new_error"].better == "lower"
    assert found["test.shade"].better is None
    assert found["stream.consistency"].heading == "stream consistency % ↑"


def test_known_metric_with_a_setting_is_known() -> None:
    found = column("ece_100", "objectness")
    assert (found.heading, found.percent) == ("objectness ECE 100 % ↓", True)
    assert column("objectness_gap", "objectness").title == "objectness gap"
    assert not column("mce", "context").is_main
    assert column("rmsce", "scaled.corrupted").is_main
    assert not column("ece", "scaled.corrupted").is_main
    assert not column("error", "scaled.corrupted").is_main


def test_numbers_by_class_are_told_but_not_first() -> None:
    found = columns_of(
        [{"test": {"pixels": 9, "class_iou": {"cat": 0.5, "x.y": 0.1, "none": None}}}]
    )
    assert [each.id for each in found] == ["test.class_iou.cat", "test.class_iou.x.y"]
    assert found[0].heading == "IoU cat % ↑"
    assert not found[0].is_main
    assert found[1].value({"test": {"class_iou": {"x.y": 0.1}}}) == 0.1


def _study(**losses: list[float]) -> StudyResults:
    """NLL as given; accuracy is 0.8, with noise of its own, for all."""
    noise = [0.0, 0.01, 0.02, 0.005]
    methods = [
        method(
            name, *({"nll": v, "accuracy": 0.8 + n} for v, n in zip(values, noise, strict=False))
        )
        for name, values in losses.items()
    ]
    return StudyResults("title", {}, methods)


def test_recommendation_names_the_sure_one_and_its_cost() -> None:
    found = recommend(
        analyse(_study(plain=[0.6, 0.61, 0.62], smooth=[0.5, 0.511, 0.519], same=[0.6, 0.62, 0.61]))
    )
    assert found.method == "smooth"
    assert found.headline == "Use smooth."
    assert "measurably better in NLL (−0.100" in found.reasons[0]
    assert found.cost == (
        "It takes the same training time, as far as a busy machine lets one measure."
    )
    assert "3 shared seeds" in found.certainty


def test_recommendation_is_honest_where_nothing_is_sure() -> None:
    found = recommend(analyse(_study(plain=[0.6, 0.5], other=[0.5, 0.55])))
    assert found.method is None
    assert "stay with plain, or add seeds" in found.headline
    assert "chance could explain" in found.text
    assert "Two seeds make very wide intervals" in found.certainty
    assert recommend(analyse(_study(plain=[0.6]))).headline == "There is nothing to compare yet."


def test_a_trade_is_no_recommendation() -> None:
    plain = method("plain", *({"nll": 0.6 + d, "accuracy": 0.8} for d in (0, 0.01, 0.02)))
    trade = method("trade", *({"nll": 0.5 + d, "accuracy": 0.7 + d / 9} for d in (0, 0.011, 0.02)))
    found = recommend(analyse(StudyResults("title", {}, [plain, trade])))
    assert found.method is None
    assert "trade is a trade: better in NLL, worse in accuracy." in found.reasons


def test_front_holds_what_nothing_dominates() -> None:
    rows = {"good": (0.9, 0.05), "honest": (0.8, 0.01), "dominated": (0.8, 0.05)}
    methods = [method(n, {"accuracy": a, "ece": e}) for n, (a, e) in rows.items()]
    findings = analyse(StudyResults("title", {}, methods))
    assert [row.name for row in findings.rows if row.on_front] == ["good", "honest"]
    assert findings.rows[0].cost.train_seconds == 2.0
    assert findings.rows[0].cost.seconds_per_image is None
    assert not math.isnan(findings.rows[0].values["test.ece"].mean)
