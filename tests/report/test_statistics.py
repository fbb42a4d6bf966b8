"""Intervals, differences and verdicts: against scipy, by hand, and where there is little data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from sfumato.report.columns import Column, column, columns_of
from sfumato.report.findings import compare_methods, judge_column
from sfumato.report.read import MethodResults, RunResult, StudyResults
from sfumato.report.recommendation import recommend
from sfumato.report.statistics import Difference, verdict_of_interval

ACCURACY, NLL = column("accuracy"), column("nll")


def method(name: str, *runs: dict[str, Any], first_seed: int = 0) -> MethodResults:
    found = [
        RunResult(seed, {"test": values}, {"data": "same"}, [{"seconds": 2.0}])
        for seed, values in enumerate(runs, start=first_seed)
    ]
    return MethodResults(name, found)


def differences(*methods: MethodResults, of: Column = ACCURACY) -> dict[str, Difference]:
    return judge_column(methods, methods[0], of).differences


def test_one_method_is_the_paired_t_test_on_the_scale() -> None:
    """With a single method there is no pool; steady shares make logits all but linear."""
    ours, theirs = [0.803, 0.800, 0.806, 0.801], [0.800, 0.799, 0.802, 0.800]
    logits = [[math.log(v / (1 - v)) for v in each] for each in (ours, theirs)]
    found = differences(
        method("theirs", *({"accuracy": v} for v in theirs)),
        method("ours", *({"accuracy": v} for v in ours)),
    )["ours"]
    expected = stats.ttest_rel(*logits)
    assert found.p == pytest.approx(expected.pvalue, rel=0.02)
    assert (found.adjusted, found.compared) == (found.p, 1)
    assert found.mean == pytest.approx(0.00225)
    interval = expected.confidence_interval(0.95)
    mean = 0.80025
    start = math.log(mean / (1 - mean))
    bounds = [1 / (1 + math.exp(-start - bound)) - mean for bound in interval]
    assert (found.low, found.high) == pytest.approx(bounds, abs=5e-5)


def test_difference_uses_shared_seeds_only() -> None:
    ours = method("ours", {"nll": 1.0}, {"nll": 2.0}, {"nll": 9.0})
    theirs = method("theirs", {"nll": 4.0}, {"nll": 9.5}, {"nll": 7.0}, first_seed=1)
    found = differences(theirs, ours, of=NLL)["ours"]
    assert (found.seeds, found.mean) == (2, pytest.approx((2 - 4 + 9 - 9.5) / 2))
    assert differences(method("none", {"nll": 1.0}, first_seed=8), ours, of=NLL) == {}


def test_one_seed_has_the_interval_over_images_and_no_verdict() -> None:
    single = method("one", {"accuracy": 0.8, "accuracy_interval": [0.7, 0.9]})
    other = method("two", {"accuracy": 0.9})
    found = judge_column([single, other], single, ACCURACY)
    estimate, difference = found.estimates["one"], found.differences["two"]
    assert (estimate.low, estimate.high, estimate.over) == (0.7, 0.9, "images")
    assert found.estimates["two"].over == "nothing"
    assert (difference.low, difference.verdict) == (None, "inconclusive")
    assert (difference.p, difference.over) == (None, "nothing")


def test_bounds_are_respected_without_cutting() -> None:
    """Two seeds, whose t intervals on the metric itself would pass 100 % and an NLL of 0."""
    accuracy = [[0.7265, 0.742], [0.769, 0.809], [0.79, 0.788], [0.74, 0.73]]
    likelihood = [[1.06, 0.99], [0.749, 0.897], [0.72, 0.75], [0.98, 0.93]]
    methods = [
        method(f"{n}", *({"accuracy": a, "nll": v} for a, v in zip(*pair, strict=True)))
        for n, pair in enumerate(zip(accuracy, likelihood, strict=True))
    ]
    for column_ in (ACCURACY, NLL):
        for estimate in judge_column(methods, methods[0], column_).estimates.values():
            assert estimate.low is not None
            assert estimate.high is not None
            assert 0 < estimate.low < estimate.mean < estimate.high
            assert column_ is not ACCURACY or estimate.high < 1


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0, 1.0], [0.99, 0.98]), ([1.0, 1.0], [1.0, 1.0]), ([0.0, 0.001], [0.0, 0.5])],
)
def test_shares_at_their_bounds(first: list[float], second: list[float]) -> None:
    methods = [
        method(name, *({"accuracy": v} for v in values))
        for name, values in (("a", first), ("b", second))
    ]
    found = judge_column(methods, methods[0], ACCURACY)
    for estimate in found.estimates.values():
        assert estimate.low is not None
        assert estimate.high is not None
        rounding = 1e-12
        assert 0 <= estimate.low <= estimate.mean + rounding
        assert estimate.mean - rounding <= estimate.high <= 1
    difference = found.differences["b"]
    assert difference.p is not None
    assert 0 < difference.p <= 1


def test_values_beyond_the_known_bounds_need_no_scale() -> None:
    odd = [method(n, {"nll": v}, {"nll": v + 0.1}) for n, v in (("a", -1.0), ("b", 0.5))]
    found = judge_column(odd, odd[0], NLL).estimates["a"]
    assert found.low is not None
    assert found.low < -1


def _calibrated(name: str, values: Sequence[float], floor: float) -> MethodResults:
    return method(name, *({"ece": value, "ece_floor": floor} for value in values))


def test_no_verdict_below_what_perfect_networks_show() -> None:
    plain = _calibrated("plain", [0.0210, 0.0211, 0.0212], 0.022)
    lower = _calibrated("lower", [0.0150, 0.0151, 0.0152], 0.016)
    far = _calibrated("far", [0.0900, 0.0901, 0.0902], 0.022)
    found = judge_column([plain, lower, far], plain, column("ece"))
    within = found.differences["lower"]
    assert within.adjusted is not None
    assert within.adjusted < 0.05
    assert (within.verdict, within.within_floor) == ("inconclusive", True)
    assert found.differences["far"].verdict == "worse"
    assert found.estimates["plain"].floor_text(column("ece")) == "perfect: 2.2"
    assert found.estimates["far"].floor_text(column("ece")) == ""
    assert "test.ece_floor" not in {c.id for c in columns_of([plain.runs[0].metrics])}


def test_floors_that_differ_as_much_explain_a_difference() -> None:
    few = _calibrated("few", [0.0800, 0.0801, 0.0802], 0.05)
    many = _calibrated("many", [0.0600, 0.0601, 0.0602], 0.02)
    found = judge_column([few, many], few, column("ece")).differences["many"]
    assert (found.verdict, found.within_floor) == ("inconclusive", True)


def test_a_repeated_baseline_tells_nothing_of_noise() -> None:
    """Temperature scaling leaves the accuracy as it is, to the last bit."""
    noisy = [0.80, 0.82, 0.81]
    same = differences(
        method("plain", *({"accuracy": v} for v in noisy)),
        method("scaled", *({"accuracy": v} for v in noisy)),
        method("other", *({"accuracy": v + 0.01} for v in reversed(noisy))),
        method("third", *({"accuracy": v + 0.02} for v in noisy[1:] + noisy[:1])),
    )
    assert (same["scaled"].mean, same["scaled"].p) == (0.0, 1.0)
    assert same["other"].low is not None
    assert same["other"].low > -0.1


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (0.1, 0.2, "higher", "better"),
        (0.1, 0.2, "lower", "worse"),
        (-0.2, -0.1, "lower", "better"),
        (-0.1, 0.1, "higher", "inconclusive"),
        (0.0, 0.1, "higher", "inconclusive"),
        (math.nan, math.nan, "lower", "inconclusive"),
    ],
)
def test_verdict_knows_the_good_direction(
    low: float, high: float, better: Any, verdict: str
) -> None:
    assert verdict_of_interval(low, high, better) == verdict


def test_columns_show_whatever_scalars_there_are() -> None:
    metrics = {
        "validation": {"accuracy": 0.5},
        "test": {
            "mean_iou": 0.4,
            "samples": 7,
            "ap50": 0.3,
            "new_error": 1.5,
            "shade": 2,
            "nan": None,
        },
        "stream": {"consistency": 0.9, "curve": [1, 2]},
    }
    found = {each.id: each for each in columns_of([metrics])}
    assert list(found) == [
        *("test.mean_iou", "test.ap50", "test.new_error", "test.shade", "stream.consistency")
    ]
    assert found["test.new_error"].better is None  # nothing is guessed from words
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
        compare_methods(
            _study(plain=[0.6, 0.61, 0.62], smooth=[0.5, 0.511, 0.519], same=[0.6, 0.62, 0.61])
        )
    )
    assert found.method == "smooth"
    assert found.headline == "Use smooth."
    assert "significantly better in NLL (−0.100" in found.reasons[0]
    assert found.cost == (
        "Cost: 1x training time (measured during the study; other processes may have interfered)."
    )
    assert "3 shared seeds" in found.certainty


def test_recommendation_is_honest_where_nothing_is_sure() -> None:
    found = recommend(compare_methods(_study(plain=[0.6, 0.5], other=[0.5, 0.55])))
    assert found.method is None
    assert "stay with plain, or add seeds" in found.headline
    assert "chance could explain" in found.text
    assert "Two seeds make wide intervals" in found.certainty
    assert (
        recommend(compare_methods(_study(plain=[0.6]))).headline
        == "There is nothing to compare yet."
    )


def test_certainty_says_what_is_counted() -> None:
    study = _study(plain=[0.6, 0.61, 0.62], smooth=[0.5, 0.511, 0.519])
    found = recommend(compare_methods(study)).certainty
    assert "3 shared seeds only, not images" in found
    assert "at most 5 %, over the 2 columns that decide here at most 10 %" in found
    single = recommend(compare_methods(_study(plain=[0.6], smooth=[0.5])))
    assert "there are no verdicts. Add seeds." in single.certainty
    assert single.method is None


def test_recommendation_names_what_a_perfect_network_would_show() -> None:
    plain = _calibrated("plain", [0.100, 0.101, 0.102], 0.02)
    smooth = _calibrated("smooth", [0.030, 0.0301, 0.0303], 0.02)
    found = recommend(compare_methods(StudyResults("title", {}, [plain, smooth])))
    assert found.headline == "Use smooth."
    assert "3.0 % is near the 2.0 % expected for a perfectly calibrated model" in found.reasons[0]


def test_a_trade_is_no_recommendation() -> None:
    plain = method("plain", *({"nll": 0.6 + d, "accuracy": 0.8} for d in (0, 0.01, 0.02)))
    trade = method("trade", *({"nll": 0.5 + d, "accuracy": 0.7 + d / 9} for d in (0, 0.011, 0.02)))
    found = recommend(compare_methods(StudyResults("title", {}, [plain, trade])))
    assert found.method is None
    assert "trade is a trade: better in NLL, worse in accuracy." in found.reasons


def test_equal_trades_share_a_sentence() -> None:
    plain = method("plain", *({"nll": 0.6 + d, "accuracy": 0.8} for d in (0, 0.01, 0.02)))
    trades = [
        method(name, *({"nll": 0.5 + d, "accuracy": 0.7 + d / 9} for d in (0, 0.011, 0.02)))
        for name in ("one", "two")
    ]
    found = recommend(compare_methods(StudyResults("title", {}, [plain, *trades])))
    assert "one and two are trades: better in NLL, worse in accuracy." in found.reasons


def test_front_holds_what_nothing_dominates() -> None:
    rows = {"good": (0.9, 0.05), "honest": (0.8, 0.01), "dominated": (0.8, 0.05)}
    methods = [method(n, {"accuracy": a, "ece": e}) for n, (a, e) in rows.items()]
    findings = compare_methods(StudyResults("title", {}, methods))
    assert [row.name for row in findings.rows if row.on_front] == ["good", "honest"]
    assert findings.rows[0].cost.train_seconds == 2.0
    assert findings.rows[0].cost.seconds_per_image is None
    assert not math.isnan(findings.rows[0].values["test.ece"].mean)
