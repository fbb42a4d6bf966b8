"""Binomial tails and Clopper-Pearson bounds against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sfumato._core.statistics import binomial_tail, clopper_pearson_upper


@pytest.mark.parametrize("largest", [10, 1000, 10**5, 10**8])
def test_against_scipy(largest: int) -> None:
    rng = np.random.default_rng(0)
    trials = rng.integers(1, largest + 1, 40)
    rate = rng.uniform(0, 1, 40) ** 3
    errors = rng.binomial(trials, rate)
    rounding = 1e-12 if largest <= 1000 else 1e-6  # of the logarithm of the gamma function
    found = binomial_tail(torch.tensor(errors), torch.tensor(trials), torch.tensor(rate))
    assert found.numpy() == pytest.approx(stats.binom.cdf(errors, trials, rate), abs=rounding)
    bound = clopper_pearson_upper(torch.tensor(errors), torch.tensor(trials), 0.01).numpy()
    some = errors < trials
    exact = stats.beta.ppf(0.99, errors[some] + 1, trials[some] - errors[some])
    assert bound[some] == pytest.approx(exact, rel=1e-8)
    assert (bound[~some] == 1).all()


def test_edges() -> None:
    errors, trials = torch.tensor([0, 0, 5]), torch.tensor([0, 100, 5])
    bound = clopper_pearson_upper(errors, trials, 0.05)
    assert bound.tolist() == pytest.approx([1.0, 1 - 0.05**0.01, 1.0])
    assert clopper_pearson_upper(errors, trials, 0.0).tolist() == [1.0, 1.0, 1.0]
    assert binomial_tail(errors, trials, 0.0).tolist() == [1.0, 1.0, 1.0]
