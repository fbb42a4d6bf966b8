"""Calibration error with a sign, and without its bias."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato.metrics.calibration import Binning
from sfumato.metrics.histogram import (
    Bins,
    Groups,
    group_by_bin,
    group_by_value,
    mass_bins,
    width_bins,
)
from sfumato.metrics.scored_samples import score


class SignedError(NamedTuple):
    """ECE split by direction: over + under = ECE, over - under = net."""

    over: Tensor
    under: Tensor
    net: Tensor


def signed_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
    validate: bool = True,
) -> SignedError:
    """Where the calibration error comes from: bins too confident, bins too modest.

    over = sum_b |B_b| / N max(conf(B_b) - acc(B_b), 0), under the same with the sign turned,
    net = over - under = mean confidence - accuracy.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        num_bins: number of equal-width bins.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> error = signed_calibration_error(probs, torch.tensor([0, 0, 1, 1]), num_bins=5)
        >>> [round(float(part), 4) for part in error]
        [0.125, 0.125, 0.0]
    """
    check_integer("num_bins", num_bins, low=1)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return signed_error_of_groups(group_by_bin(samples, num_bins), num_bins)


def signed_error_of_groups(groups: Groups, num_bins: int) -> SignedError:
    """`signed_calibration_error` of grouped predictions, (...) each."""
    gap, total = width_bins(groups, num_bins).gap, groups.count.sum(-1)
    over, under = gap.clamp(min=0).sum(-1) / total, (-gap).clamp(min=0).sum(-1) / total
    return SignedError(over, under, over - under)


def debiased_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    norm: Literal["l1", "l2"] = "l1",
    binning: Binning = "width",
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Calibration error less what the chance of the labels alone adds to it.

    A calibrated model has a positive ECE on finite data, because accuracies scatter around
    confidences with variance s_b^2 = acc (1 - acc) / n_b.
    l2: sqrt(max(0, sum_b n_b/N [gap_b^2 - acc (1 - acc) / (n_b - 1)])).
    l1: max(0, sum_b n_b/N [2 |gap_b| - E|gap_b + s_b z|]), z standard normal: a folded normal.
    A bin with a single sample says nothing about its own scatter and adds nothing.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        num_bins: number of bins.
        norm: how the gaps of the bins are put together.
        binning: bins of equal width, or of equal mass.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25]] * 8)
        >>> target = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
        >>> debiased_calibration_error(probs, target)  # calibration_error: 0.1250
        tensor(0.1079, dtype=torch.float64)

    Reference: Kumar et al., Verified Uncertainty Calibration (NeurIPS 2019), Sec. 5.

    Differs: their released code draws normals to estimate the bias of l1; here in closed form.
    """
    check_integer("num_bins", num_bins, low=1)
    check_choice("norm", norm, ("l1", "l2"))
    check_choice("binning", binning, ("width", "mass"))
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    if binning == "width":
        return debiased_error_of_bins(width_bins(group_by_bin(samples, num_bins), num_bins), norm)
    return debiased_error_of_bins(mass_bins(group_by_value(samples), num_bins), norm)


def debiased_error_of_bins(bins: Bins, norm: Literal["l1", "l2"]) -> Tensor:
    """`debiased_calibration_error` of filled bins, (...)."""
    count = bins.count.clamp(min=2)
    weight = bins.count.where(bins.count > 1, 0) / bins.count.sum(-1, keepdim=True)
    gap, accuracy = (bins.gap / count).abs(), bins.correct / count
    scatter = accuracy * (1 - accuracy)
    if norm == "l2":
        square = gap.square() - scatter / (count - 1)
        return (weight * square).sum(-1).clamp(min=0).sqrt()
    deviation = (scatter / count).sqrt().clamp(min=1e-30)
    ratio = gap / deviation
    folded = deviation * math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2)
    folded = folded + gap * torch.erf(ratio / math.sqrt(2))
    return (weight * (2 * gap - folded)).sum(-1).clamp(min=0)
