"""Beta draws against SciPy's distribution, also where parameters are tiny or huge."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from sfumato._core.seeds import sample_beta


@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(1.0, 2.0), (1.0, 1.0), (3.0, 1.0), (0.3, 0.3), (0.05, 2.0), (5.0, 9.0), (200.0, 30.0)],
)
def test_follows_the_distribution(alpha: float, beta: float) -> None:
    drawn = sample_beta(20_000, alpha, beta, generator=torch.Generator().manual_seed(0)).double()
    fit = stats.kstest(drawn.numpy(), stats.beta(alpha, beta).cdf)
    assert fit.pvalue > 1e-3
    assert float(drawn.mean()) == pytest.approx(alpha / (alpha + beta), abs=0.01)
    assert ((drawn >= 0) & (drawn <= 1)).all()


def test_tiny_parameters_are_a_coin() -> None:
    drawn = sample_beta(10_000, 1e-6, 3e-6, generator=torch.Generator().manual_seed(0))
    assert ((drawn < 1e-3) | (drawn > 1 - 1e-3)).float().mean() > 0.999
    assert float(drawn.mean()) == pytest.approx(0.25, abs=0.02)


def test_generator_decides() -> None:
    first, again, other = (
        sample_beta(5, 1.0, 2.0, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sample_beta(0, 1.0, 2.0).shape == (0,)


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, inf\), got 0"):
        sample_beta(1, 0.0, 1.0)
    with pytest.raises(ValueError, match="beta must be in"):
        sample_beta(1, 1.0, -2.0)
    with pytest.raises(ValueError, match="count must be at least 0"):
        sample_beta(-1, 1.0, 1.0)
