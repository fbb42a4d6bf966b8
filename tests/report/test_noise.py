"""The pool of spreads: against formulas written out, and where its truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sfumato.report.statistics import (
    MOST_PRIOR_FREEDOM,
    Spread,
    own_spread,
    prior_freedom,
    residual_variance,
    spread_of_differences,
    step_down,
)


def test_residual_of_a_full_layout_by_hand() -> None:
    values = np.random.default_rng(0).normal(size=(4, 3))
    total = 0.0
    for m in range(4):
        for s in range(3):
            rest = values[m, s] - values[m].mean() - values[:, s].mean() + values.mean()
            total += rest**2
    found, freedom = residual_variance(values)
    assert freedom == 6
    assert found == pytest.approx(total / 6)


def test_residual_with_missing_runs_is_that_of_least_squares() -> None:
    """A method with one seed and a seed with one method are fitted exactly and tell nothing."""
    values = np.random.default_rng(1).normal(size=(3, 4))
    smaller = values[:2, :3]
    values[2, 1:] = np.nan
    values[:, 3] = np.nan
    assert residual_variance(values)[0] == pytest.approx(residual_variance(smaller)[0])
    assert residual_variance(values)[1] == 2


@pytest.mark.parametrize("true", [2.0, 4.0])
def test_prior_freedom_is_recovered_from_many_methods(true: float) -> None:
    rng = np.random.default_rng(2)
    variances = true / rng.chisquare(true, 20_000)
    seen = variances * rng.chisquare(3, 20_000) / 3
    found = prior_freedom(Spread(seen, np.full(20_000, 3.0)))
    assert found == pytest.approx(true, rel=0.05)


def test_equal_spreads_count_as_much_as_the_limit_and_one_alone_nothing() -> None:
    equal = prior_freedom(Spread(np.ones(6), np.full(6, 2.0)))
    assert equal == pytest.approx(MOST_PRIOR_FREEDOM)
    assert prior_freedom(Spread(np.ones(1), np.ones(1))) == 0
    repeated = Spread(np.array([1.0, 1.0, 0.0]), np.full(3, 2.0))
    assert prior_freedom(repeated) == pytest.approx(MOST_PRIOR_FREEDOM)


def test_one_method_is_left_to_itself() -> None:
    values = np.random.default_rng(3).normal(size=(2, 5))
    found = spread_of_differences(values)
    assert found.variance == pytest.approx(stats.sem(values[1] - values[0]) ** 2)
    assert found.freedom == pytest.approx(4)
    alone = own_spread(values)
    assert alone.variance == pytest.approx(stats.sem(values, axis=-1) ** 2)
    assert (alone.freedom == 4).all()


def test_a_batch_is_its_studies_one_by_one() -> None:
    values = np.random.default_rng(4).normal(size=(5, 4, 3))
    values[:, 1, 2] = np.nan
    for spread in (own_spread, spread_of_differences):
        batch = spread(values)
        for place in range(5):
            single = spread(values[place])
            np.testing.assert_allclose(batch.variance[place], single.variance)
            np.testing.assert_allclose(batch.freedom[place], single.freedom)


def test_differences_that_share_a_noisy_baseline_count_as_one() -> None:
    """The baseline's noise is in all seven; where all scatter alike they are worth 2.8 of one."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(500, 8, 4))
    assert np.median(spread_of_differences(values).freedom) == pytest.approx(7 * 3 / 2.5, abs=0.1)
    values[:, 0] *= 1000
    assert spread_of_differences(values).freedom == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("freedom", [2.0, 6.5, np.inf])
def test_step_down_by_drawing(freedom: float) -> None:
    """The largest of four |t| with one denominator and one baseline, then of the three left."""
    rng = np.random.default_rng(6)
    noise = rng.normal(size=(400_000, 5))
    spread = 1.0 if np.isinf(freedom) else np.sqrt(rng.chisquare(freedom, 400_000) / freedom)
    drawn = np.abs(noise[:, 1:] - noise[:, :1]) / np.sqrt(2)
    ratio = np.array([2.5, np.nan, 3.5, 0.0, 1.0])
    found = step_down(ratio, np.full(5, freedom))
    assert np.isnan(found[1])
    for place, left in ((2, 4), (0, 3), (4, 2), (3, 1)):
        expected = (drawn[:, :left].max(-1) / spread > ratio[place]).mean()
        assert found[place] == pytest.approx(expected, abs=0.002)


def test_step_down_of_one_is_the_t_test() -> None:
    ratio = np.array([[0.3], [2.0], [12.7]])
    found = step_down(ratio, np.full((3, 1), 1.0))
    assert found == pytest.approx(2 * stats.t.sf(ratio, 1), rel=1e-3)
