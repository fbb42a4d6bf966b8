"""`calibration_floor`: the calibration error that a perfectly calibrated network would show."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_floating, check_integer
from sfumato._core.confidence_bins import bin_index
from sfumato.metrics.scored_samples import check_distribution


def calibration_floor(probs: Tensor, *, num_bins: int = 15, validate: bool = True) -> Tensor:
    """ECE that these confidences would have on average if every one of them were true.

    On finitely many samples the accuracy of a bin scatters around its confidence even where the
    network is perfect, so an ECE is to be read against this number, not against zero. With n_b
    predictions of mean confidence p_b in a bin, the number of correct ones is binomial, and
    floor = sum_b E|X_b - n_b p_b| / N with De Moivre's mean deviation
    E|X - n p| = 2 k C(n, k) p^k (1 - p)^(n - k + 1), k = floor(n p) + 1.

    Args:
        probs: class probabilities of independent samples, (N, C). Pixels of one image are not.
        num_bins: number of equal-width bins, as in `calibration_error`.
        validate: check that rows sum to one.

    Shape:
        probs: (N, C); output: scalar, float64; NaN where there is no sample.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
        >>> calibration_floor(probs)  # all four right with probability 0.66, an ECE of 0.1 even so
        tensor(0.1312, dtype=torch.float64)

    Reference: Diaconis & Zabell, Closed Form Summation for Classical Distributions (1991).
    """
    check_integer("num_bins", num_bins, low=1)
    check_floating("probs", probs)
    if probs.ndim != 2:
        raise ValueError(f"probs must be (N, C), got {tuple(probs.shape)}")
    if validate:
        check_distribution("probs", probs)
    return floor_of_confidences(probs.amax(1), num_bins)


def floor_of_confidences(confidence: Tensor, num_bins: int) -> Tensor:
    """`calibration_floor` of the confidences along the last axis, (...) from (..., N)."""
    member = bin_index(confidence, num_bins)
    shape = (*confidence.shape[:-1], num_bins)
    count = torch.zeros(shape, dtype=torch.float64, device=confidence.device)
    total = torch.zeros_like(count)
    count.scatter_add_(-1, member, torch.ones_like(confidence, dtype=torch.float64))
    total.scatter_add_(-1, member, confidence.double())
    deviation = binomial_deviation(count, total / count.clamp(min=1))
    return deviation.sum(-1) / count.sum(-1)


def binomial_deviation(count: Tensor, probability: Tensor) -> Tensor:
    """E|X - n p| of binomial numbers: De Moivre's formula, in logarithms; float64."""
    inside = (probability > 0) & (probability < 1) & (count > 0)
    p, n = probability.where(inside, 0.5), count.where(inside, 1.0)
    k = torch.minimum(torch.floor(n * p) + 1, n)
    choices = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log = choices + k.log() + k * p.log() + (n - k + 1) * torch.log1p(-p)
    return (2 * log.exp()).where(inside, 0.0)
