"""Calibration error without bins: kernel-smoothed, and by cumulative distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.metrics.histogram import Groups, group_by_value
from sfumato.metrics.scored_samples import score

_MESH = 2000
_NARROWEST = 1e-3
_HALVINGS = 30


def smooth_calibration_error(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Calibration error smoothed by a Gaussian kernel that chooses its own width.

    smECE_s = int_0^1 |1/N sum_n K_s(t, p_n) (p_n - 1[correct_n])| dt with K_s a Gaussian of
    standard deviation s, reflected at 0 and 1; smECE is the s at which smECE_s = s. No bin edge
    can be hit or missed, and the value changes continuously with the predictions.
    The integral is taken on a mesh of 2,000 points, and s is at least 0.001.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
        >>> smooth_calibration_error(probs, torch.arange(100) // 60)
        tensor(0.2000, dtype=torch.float64)

    Reference: Blasiok & Nakkiran, Smooth ECE: Principled Reliability Diagrams (ICLR 2024).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return smooth_error_of_groups(group_by_value(samples))


def smooth_error_of_groups(groups: Groups) -> Tensor:
    """`smooth_calibration_error` of grouped predictions, (...)."""
    place = (groups.upper.double() * _MESH).ceil().long().sub_(1).clamp_(0, _MESH - 1)
    total = groups.count.sum(-1, keepdim=True)
    residual = groups.count.new_zeros(*groups.count.shape[:-1], _MESH)
    residual.index_add_(-1, place, groups.gap / total)
    spectrum = torch.fft.rfft(torch.cat([residual, residual.flip(-1)], -1))
    frequency = torch.arange(_MESH + 1, dtype=residual.dtype, device=residual.device)
    low = torch.full_like(total, _NARROWEST)
    high = torch.ones_like(total)
    for _ in range(_HALVINGS):
        width = (low + high) / 2
        # The mirrored mesh has period 2: reflection at both ends is a periodic convolution.
        kernel = torch.exp(-(torch.pi * frequency * width).square() / 2)
        smoothed = torch.fft.irfft(spectrum * kernel, n=2 * _MESH)[..., :_MESH]
        wider = smoothed.abs().sum(-1, keepdim=True) > width
        low, high = torch.where(wider, width, low), torch.where(wider, high, width)
    return ((low + high) / 2).squeeze(-1).where(total.squeeze(-1) > 0, torch.nan)


def ks_calibration_error(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Kolmogorov-Smirnov calibration error: largest gap of the cumulative sums.

    KS = max_t |1/N sum_{p_n <= t} (p_n - 1[correct_n])|. Needs no bins; errors of opposite
    sign at neighbouring confidences cancel, as they do within a bin.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> ks_calibration_error(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.1000, dtype=torch.float64)

    Reference: Gupta et al., Calibration of Neural Networks using Splines (ICLR 2021).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return ks_error_of_groups(group_by_value(samples))


def ks_error_of_groups(groups: Groups) -> Tensor:
    """`ks_calibration_error` of grouped predictions, (...)."""
    if not groups.count.shape[-1]:
        return groups.count.new_full(groups.count.shape[:-1], torch.nan)
    return groups.gap.cumsum(-1).abs().amax(-1) / groups.count.sum(-1)
