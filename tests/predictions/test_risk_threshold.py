"""Thresholds with a guarantee: the procedure by hand, and the promise by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from sfumato.predictions import (
    class_risk_thresholds,
    decision_thresholds,
    decisions,
    risk_threshold,
    risk_threshold_of_counts,
)

RNG = np.random.default_rng


def test_own_thresholds_by_hand() -> None:
    """Two thresholds, level 0.05 each; the first, once passed, hands its level on."""
    confidence = np.array([0.95] * 40 + [0.6] * 60)
    correct = np.array([True] * 40 + [True] * 55 + [False] * 5)
    assert stats.binom.cdf(0, 40, 0.1) <= 0.05
    assert 0.05 < stats.binom.cdf(5, 100, 0.1) <= 0.1
    settings = {"target_risk": 0.1, "delta": 0.1, "thresholds": [0.9, 0.5]}
    found = risk_threshold(confidence, correct, **settings)
    assert (found.confidence, found.coverage, found.accepted, found.errors) == (0.5, 1.0, 100, 5)
    assert found.risk_bound == pytest.approx(stats.beta.ppf(0.9, 6, 95))
    correct[0], correct[-1] = False, True  # 1 of 40 fails and its level is lost: 5 of 100 is many
    found = risk_threshold(confidence, correct, **settings)
    assert (found.confidence, found.coverage, found.risk_bound) == (None, None, None)
    assert found.accept(np.array([0.99])).tolist() == [False]


def test_where_no_threshold_reaches_it() -> None:
    rng = RNG(0)
    found = risk_threshold(rng.uniform(size=500), rng.random(500) < 0.5, target_risk=0.1)
    assert found.confidence is None
    assert found.accepted == 0


def test_all_right_accepts_all() -> None:
    found = risk_threshold([0.2, 0.8] * 500, [1] * 1000, target_risk=0.02)
    assert found.confidence == 0.0
    assert found.coverage == 1.0
    assert found.risk_bound is not None
    assert found.risk_bound <= 0.02


@pytest.mark.parametrize("confidence", [0.2, 0.12, 0.03, 0.0])
def test_confidences_that_are_all_low(confidence: float) -> None:
    low = risk_threshold(np.full(500, confidence), np.ones(500), target_risk=0.1)
    assert (low.confidence, low.coverage) == (0.0, 1.0)
    rng = RNG(4)
    spread = 0.2 * rng.random(4000)
    correct = rng.random(4000) < np.where(spread > 0.06, 0.98, 0.2)
    found = risk_threshold(spread, correct, target_risk=0.1)
    assert found.confidence is not None
    assert 0.03 < found.confidence < 0.06


def _loop(kept: list[int], wrong: list[int], start: int, target: float, delta: float) -> int | None:
    """The last place of a fixed sequence from `start`, with SciPy's binomial."""
    found = None
    for place in range(start, len(kept)):
        if kept[place] == 0 or stats.binom.cdf(wrong[place], kept[place], target) > delta:
            break
        found = place
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_that_did_not_choose_test_downwards(seed: int) -> None:
    rng = RNG(seed)
    cells = rng.multinomial(1500, np.full(2102, 1 / 2102))
    errors = rng.binomial(cells, np.linspace(0, 0.3, 2102))
    kept, wrong = (torch.from_numpy(x.cumsum()) for x in (cells, errors))
    chosen = decisions._drawn_rows(kept, wrong)
    tested = (kept - chosen[0], wrong - chosen[1])
    starts = decisions._start_of_counts(*chosen, tested[0], 0.1, 0.05)
    ((start, level),) = starts.items()
    assert level == 0.05  # the whole of it, at one place
    place = _loop(*(x.tolist() for x in tested), start, 0.1, 0.05)
    found = risk_threshold_of_counts(kept, wrong, 1500, target_risk=0.1)
    assert place is not None
    assert found.confidence == decisions.THRESHOLDS[place]
    assert (found.accepted, found.errors) == (int(kept[place]), int(wrong[place]))
    exact = stats.beta.ppf(0.95, int(tested[1][place]) + 1, int((tested[0] - tested[1])[place]))
    assert found.risk_bound == pytest.approx(exact)


def test_who_chooses_is_binomial_and_the_same_for_the_same_counts() -> None:
    """A fifth of each cell, right ones and wrong ones alike, whatever the order of rows was."""
    right, wrong = torch.full((2102,), 4), torch.full((2102,), 2)
    drawn = [decisions._drawn_rows((right + wrong + n).cumsum(0), wrong.cumsum(0)) for n in (0, 0)]
    assert torch.equal(drawn[0][0], drawn[1][0])
    share = 0.2 * (2000 / (6 * 2102)) ** 0.5
    for counts, each in zip((6, 2), drawn[0], strict=True):
        cells = each.diff(prepend=torch.zeros(1, dtype=torch.int64))
        assert int(cells.min()) >= 0
        assert int(cells.max()) <= counts
        mean, spread = 2102 * counts * share, (2102 * counts * share * (1 - share)) ** 0.5
        assert abs(int(each[-1]) - mean) < 4 * spread
    rng = RNG(5)
    confidence = rng.random(3000)
    correct = rng.random(3000) < confidence
    order = rng.permutation(3000)
    found = risk_threshold(confidence, correct, target_risk=0.2)
    assert found == risk_threshold(confidence[order], correct[order], target_risk=0.2)


def test_the_fitted_curve_is_the_maximum_of_the_likelihood() -> None:
    rng = RNG(6)
    count = rng.integers(0, 4, 500)
    errors = rng.binomial(count, 1 / (1 + np.exp(2 - 0.008 * np.arange(500))))
    found = decisions._fitted_errors(torch.tensor(count).double(), torch.tensor(errors).double())
    place = np.arange(500) / 300
    place -= (place * count).sum() / count.sum()

    def loss(x: np.ndarray) -> float:
        line = x[0] + x[1] * place
        return float((count * np.logaddexp(0, line) - errors * line).sum() + 0.05 * x[1] ** 2)

    best = optimize.minimize(loss, np.zeros(2), tol=1e-12).x
    expected = count / (1 + np.exp(-best[0] - best[1] * place))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


def test_counts_and_kinds_of_arrays_agree() -> None:
    rng = RNG(1)
    confidence = rng.beta(5, 1, 4000).astype(np.float32)
    correct = rng.random(4000) < confidence
    found = risk_threshold(confidence, correct, target_risk=0.1)
    assert found == risk_threshold(torch.tensor(confidence), torch.tensor(correct), target_risk=0.1)
    assert found.confidence is not None
    kept = confidence.astype(np.float64) >= found.confidence
    assert found.coverage == kept.mean()
    assert found.errors == (~correct[kept]).sum()
    assert (found.accept(confidence) == kept).all()
    assert isinstance(found.accept(torch.tensor(confidence)), torch.Tensor)


def _breaks(draw: str, trial: int) -> bool:
    """Whether the true risk above the chosen threshold is larger than was promised."""
    rng = RNG(trial)
    n, target = 200, 0.1
    confidence = rng.uniform(size=n)
    if draw == "low, and just above the target everywhere":
        confidence, chance, risk = 0.2 * confidence, np.full(n, 0.899), lambda _: 0.101
    elif draw == "two confidences":  # one of them twice as often, both just above the target
        confidence = np.where(confidence < 1 / 3, 0.99, 0.9)
        chance, risk = np.full(n, 0.899), lambda _: 0.101
    elif draw == "calibrated":
        chance, risk = confidence, lambda t: (1 - t) / 2
    elif draw == "just above the target everywhere":
        chance, risk = np.full(n, 0.899), lambda _: 0.101
    else:  # good below 0.95, bad above it: confidences that mislead
        chance = np.where(confidence > 0.95, 0.3, 0.93)
        risk = lambda t: (0.07 * max(0.95 - t, 0) + 0.7 * min(0.05, 1 - t)) / (1 - t)  # noqa: E731
    found = risk_threshold(confidence, rng.random(n) < chance, target_risk=target)
    return found.confidence is not None and found.confidence < 1 and risk(found.confidence) > target


@pytest.mark.parametrize("where", ["", "low, and "])
def test_promise_is_kept_where_every_threshold_is_a_little_too_risky(where: str) -> None:
    draw = f"{where}just above the target everywhere"
    broken = sum(_breaks(draw, trial) for trial in range(200))
    assert broken <= 18  # of 10 promised; more than that once in 200 times


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        "calibrated",
        "just above the target everywhere",
        "low, and just above the target everywhere",
        "misleading at the top",
        "two confidences",
    ],
)
def test_promise_is_broken_in_at_most_delta_of_a_thousand_draws(draw: str) -> None:
    broken = sum(_breaks(draw, trial) for trial in range(1000))
    # 50 are promised; a binomial number of 1,000 with that mean exceeds 68 once in 200 times.
    assert broken <= 68


def test_classes_share_delta() -> None:
    rng = RNG(2)
    confidence = rng.uniform(0.5, 1, 3000)
    predicted = rng.integers(0, 2, 3000)
    correct = rng.random(3000) < np.where(predicted == 0, 0.99, 0.5)
    found = class_risk_thresholds(confidence, correct, predicted=predicted, target_risk=0.05)
    assert set(found) == {0, 1}
    assert found[0].coverage == 1.0
    assert found[1].confidence is None
    assert found[0].delta == 0.025


def test_accept_escalate_reject() -> None:
    rng = RNG(3)
    confidence = rng.uniform(0.3, 1, 5000)
    correct = rng.random(5000) < confidence
    found = decision_thresholds(confidence, correct, accept_risk=0.1, escalate_risk=0.3)
    assert found.accept.confidence is not None
    assert found.escalate.confidence is not None
    assert found.escalate.confidence < found.accept.confidence
    middle = (found.accept.confidence + found.escalate.confidence) / 2
    assert found.decide(np.array([0.999, middle, 0.3])).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="escalate_risk must be at least accept_risk"):
        decision_thresholds(confidence, correct, accept_risk=0.2, escalate_risk=0.1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"confidence must be numbers in \[0, 1\], got 1.5 at"):
        risk_threshold([0.5, 1.5], [1, 1], target_risk=0.1)
    with pytest.raises(ValueError, match="got nan at position 1"):
        risk_threshold([0.5, float("nan")], [1, 1], target_risk=0.1)
    with pytest.raises(ValueError, match=r"correct must be \(2,\), got \(1,\)"):
        risk_threshold([0.5, 0.6], [1], target_risk=0.1)
    with pytest.raises(ValueError, match="correct must be true or false"):
        risk_threshold([0.5, 0.6], [1, 3], target_risk=0.1)
    with pytest.raises(ValueError, match=r"confidence must be \(N,\) with N >= 1"):
        risk_threshold([], [], target_risk=0.1)
    with pytest.raises(ValueError, match="delta must be below 1"):
        risk_threshold([0.5], [1], target_risk=0.1, delta=1.0)
    with pytest.raises(ValueError, match="thresholds must be descending"):
        risk_threshold([0.5], [1], target_risk=0.1, thresholds=[0.5, 0.9])
    with pytest.raises(ValueError, match="one number for each of the 2102 thresholds"):
        risk_threshold_of_counts(torch.tensor([1]), torch.tensor([0]), 1, target_risk=0.1)
    with pytest.raises(TypeError, match="confidence must be numbers"):
        risk_threshold(["high"], [1], target_risk=0.1)
    with pytest.raises(ValueError, match="thresholds must be finite, got nan at position 1"):
        risk_threshold([0.5], [1], target_risk=0.1, thresholds=[0.9, float("nan"), 0.5])
    with pytest.raises(ValueError, match="images must be names or numbers, got nan at position 0"):
        risk_threshold([0.5, 0.6], [1, 1], target_risk=0.1, images=[float("nan"), 1.0])
