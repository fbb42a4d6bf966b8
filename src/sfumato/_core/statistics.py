"""Bins of confidences, and exact bounds of an error rate without SciPy.

There is one rule for every calibration error and diagram. Bins of equal width are closed on the
right: (0, 1/B], (1/B, 2/B], ..., ((B - 1)/B, 1], and 0 is in the first. A confidence within two
roundings above an edge counts as the edge, and so belongs to the bin below it: 0.2 in float32 is a
little above 0.2, and is to be in (0.1, 0.2] as written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import float64_device, to_float64, to_float64_device, to_tensor


def bin_edges(num_bins: int, like: Tensor) -> Tensor:
    """Upper edges 1/B, 2/B, ..., 1 of equal-width bins, float64."""
    device = float64_device(like.device)
    steps = torch.arange(1, num_bins + 1, dtype=torch.float64, device=device)
    return steps / num_bins


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Number of the bin of each confidence, from 0: floor(p B (1 - slack)).

    NaN is in the first bin, whose sums become NaN: without a bin, a plausible number would be left.

    Example:
        >>> bin_index(torch.tensor([0.0, 0.1, 0.2, 0.21, 1.0]), 5)
        tensor([0, 0, 0, 1, 4])
    """
    scale = num_bins * (1 - edge_slack(confidence.dtype))
    place = (to_float64(confidence) * scale).nan_to_num_(nan=0.0)
    return place.long().clamp_(max=num_bins - 1).to(confidence.device)


def edge_slack(dtype: torch.dtype) -> float:
    """Two roundings of `dtype`, by which a confidence may exceed an edge and still be the edge."""
    return 2.0**-51 if dtype == torch.float64 else 2.0**-23


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


def clopper_pearson(hits: float, trials: float, level: float) -> tuple[float, float]:
    """Interval that covers a share with at least `level`, given `hits` among `trials`.

    Never a point: 50 of 50 leave (0.929, 1). Numbers need not be whole, as of dependent trials.
    """
    k = torch.tensor([trials - hits, hits], dtype=torch.float64).clamp(0, trials)
    n = torch.full_like(k, trials)
    wrong, right = clopper_pearson_upper(k, n, (1 - level) / 2).tolist()
    return 1 - wrong, right


def _slope(k: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Return -d P(X <= k) / dp: n times the probability of k among n - 1."""
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


def spread_evenly(total: int, count: int | None) -> Tensor:
    """At most `count` positions among `total`, in order and evenly spread; all of them for None.

    Example:
        >>> spread_evenly(10, 4).tolist()
        [0, 2, 5, 7]
    """
    count = total if count is None else min(total, count)
    return torch.arange(count) * total // max(1, count)


def row_weights(
    sample_weight: Any, target: Tensor, ignore_index: int, *, is_stream: bool = False
) -> Tensor | None:
    """Count how often each entry was seen, (M,) float64; None where all were once.

    Whole numbers are counts. Others are shares, and scaled to 1 on average (of those above 0), so
    that weights that sum to 1 don't look like a single sample; `is_stream` leaves them as they are.
    """
    if sample_weight is None:
        return None
    target = to_float64_device(target)
    weight = to_tensor("sample_weight", sample_weight).to(target.device).double()
    if weight.shape != target.shape[: weight.ndim] or not weight.ndim:
        raise ValueError(
            f"sample_weight must be one number for each sample, ({len(target)},), got "
            f"{tuple(weight.shape)}"
        )
    weight = weight.view(*weight.shape, *[1] * (target.ndim - weight.ndim)).expand_as(target)
    weight = weight.reshape(-1)[
        target.reshape(-1).long() != ignore_index
    ]  # in uint8, 156 equals -100
    is_sound = bool(((weight >= 0) & weight.isfinite()).all())
    if not is_sound or not (is_stream or not len(weight) or float(weight.sum()) > 0):
        raise ValueError("sample_weight must be finite, not negative, and not 0 everywhere")
    if is_stream or bool((weight == weight.round()).all()):
        return weight
    counts = weight * ((weight > 0).sum() / weight.sum())
    whole = counts.round()
    # Equal shares are counts of 1, and no number next to it: sums of counts decide on bins.
    return torch.where((counts - whole).abs() < 1e-9 * counts, whole, counts)
