"""How likely few errors are, and the largest error rate that they leave possible, without SciPy."""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-300
_STEPS = 10_000  # of the continued fraction; it needs about the root of the number of trials


def binomial_tail(errors: Tensor, trials: Tensor, rate: Tensor | float) -> Tensor:
    """P(X <= errors) of a binomial X with `trials` draws of probability `rate`; float64.

    P(X <= k) = I_(1-p)(n - k, k + 1), the regularised incomplete beta function.
    """
    k, n = errors.double(), trials.double()
    p = torch.as_tensor(rate, dtype=torch.float64, device=k.device).expand_as(k)
    inside = k < n
    share = _incomplete_beta((n - k).where(inside, 1.0), k + 1, 1 - p)
    return share.where(inside, 1.0)


def clopper_pearson_upper(errors: Tensor, trials: Tensor, level: Tensor | float) -> Tensor:
    """The error rate that is exceeded with probability at most `level`, given these errors.

    The largest p with P(X <= errors | p) >= level; 1 where all trials failed or there are none.
    Exact: it covers the true rate with at least 1 - level whatever that is.

    Args:
        errors: failures, (...).
        trials: draws, (...).
        level: probability that the bound is below the truth, (...) or a number; 0 gives 1.

    Reference:
        Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 1934.
    """
    k, n = errors.double(), trials.double()
    alpha = torch.as_tensor(level, dtype=torch.float64, device=k.device).expand_as(k)
    low, high = k / n.clamp(min=1), torch.ones_like(k)
    # Chernoff's bound lies above the root. The logarithm of the tail is concave, so that Newton's
    # steps come down to the root without passing it; where a step leaves (low, high), halve.
    rarity = -alpha.clamp(min=_TINY).log()
    above = (k + rarity + (rarity * (rarity + 2 * k)).sqrt()) / n.clamp(min=1)
    rate = above.where(above < 1, (low + high) / 2)
    for _ in range(100):
        tail = binomial_tail(k, n, rate)
        low, high = rate.where(tail > alpha, low), rate.where(tail <= alpha, high)
        step = rate + (tail.log() + rarity) * tail / _slope(k, n, rate)
        step = step.where((step >= low) & (step <= high), (low + high) / 2)
        settled = (step - rate).abs() <= 1e-12 * rate
        rate = step
        if bool(settled.all()):
            break
    return rate.where((k < n) & (alpha > 0), 1.0)


def _slope(k: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """How fast P(X <= k) falls with p: n times the probability of k among n - 1."""
    left = (n - k).clamp(min=1)
    choices = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(left)
    return (choices + torch.xlogy(k, p) + torch.xlogy(left - 1, 1 - p)).exp()


def _incomplete_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """I_x(a, b) by its continued fraction, on the side of the mean where that converges."""
    swap = x > (a + 1) / (a + b + 2)
    first, second = b.where(swap, a), a.where(swap, b)
    z = (1 - x).where(swap, x)
    scale = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    front = (scale + torch.xlogy(first, z) + torch.xlogy(second, 1 - z)).exp() / first
    share = front * _continued_fraction(first, second, z)
    return (1 - share).where(swap, share).clamp(0, 1)


def _continued_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Lentz's evaluation of the fraction of I_x(a, b); DLMF 8.17.22."""
    lower = _away_from_zero(1 - (a + b) * x / (a + 1)).reciprocal()
    upper, value = torch.ones_like(a), lower
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = _away_from_zero(1 + term * lower).reciprocal()
            upper = _away_from_zero(1 + term / upper)
            change = lower * upper
            value = value * change
        # Rounding lets it come no nearer to 1 than about 1e-13 with a hundred million trials.
        if bool(((change - 1).abs() < 1e-12).all()):
            break
    return value


def _away_from_zero(value: Tensor) -> Tensor:
    return value.where(value.abs() > _TINY, _TINY)
