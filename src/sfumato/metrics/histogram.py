"""Predictions grouped by confidence: what every calibration and ranking metric is computed from.

A `Groups` holds, in ascending order of confidence, how many predictions share a confidence, how
many of them are correct, and the sum of their confidences. Exact functions make one group for each
distinct confidence; streams make one for each of the fixed cells of `fine_cells.py`, which keeps
the memory constant. The kernels in the other files take either, with any leading axes, so a
function, its streaming class and a thousand bootstrap resamples are one piece of code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_edges, bin_index
from sfumato.metrics.scored_samples import Samples


@dataclass(frozen=True)
class Groups:
    """Predictions grouped by confidence, ascending; float64.

    Args:
        count: number of predictions in each group.
        correct: number of correct ones.
        confidence: sum of the confidences.
        confidence_correct: sum of the confidences of the correct ones.
        upper: the largest confidence that belongs to the group.
    """

    count: Tensor  # (..., G)
    correct: Tensor  # (..., G)
    confidence: Tensor  # (..., G)
    confidence_correct: Tensor  # (..., G)
    upper: Tensor  # (G,)

    @property
    def wrong(self) -> Tensor:
        """Number of wrong predictions in each group."""
        return self.count - self.correct

    @property
    def gap(self) -> Tensor:
        """Sum of confidence minus number of correct predictions, per group."""
        return self.confidence - self.correct


def group_by_value(samples: Samples) -> Groups:
    """One group for each distinct confidence."""
    known = samples.confidence.nan_to_num(nan=0.0)
    upper, member = torch.unique(known, return_inverse=True)
    return _group(samples, member, upper)


def group_by_bin(samples: Samples, num_bins: int) -> Groups:
    """One group for each equal-width bin; no sorting."""
    edges = bin_edges(num_bins, samples.confidence)
    return _group(samples, bin_index(samples.confidence, num_bins), edges)


def _group(samples: Samples, member: Tensor, upper: Tensor) -> Groups:
    confidence, correct = samples.confidence.double(), samples.correct.double()
    size = len(upper)
    # A confidence of NaN makes the count NaN, and so every metric.
    one = torch.ones_like(correct).where(~confidence.isnan(), torch.nan)
    return Groups(
        count=_sum_by(one, member, size),
        correct=_sum_by(correct, member, size),
        confidence=_sum_by(confidence, member, size),
        confidence_correct=_sum_by(confidence * correct, member, size),
        upper=upper,
    )


@dataclass(frozen=True)
class Bins:
    """Sums over the bins of a calibration error, (..., B) each."""

    count: Tensor
    correct: Tensor
    confidence: Tensor

    @property
    def gap(self) -> Tensor:
        """Sum of confidence minus number of correct predictions, per bin."""
        return self.confidence - self.correct


def width_bins(groups: Groups, num_bins: int) -> Bins:
    """Equal-width bins (lo, hi]; the groups must not straddle an edge."""
    bins = torch.arange(num_bins, device=groups.upper.device)
    ends = torch.searchsorted(bin_index(groups.upper, num_bins), bins, right=True)
    return _sum_stretches(groups, ends.expand(*groups.count.shape[:-1], -1))


def mass_bins(groups: Groups, num_bins: int) -> Bins:
    """Equal-mass bins; groups stay whole."""
    return _sum_stretches(groups, mass_ends(groups.count, num_bins))


def mass_ends(count: Tensor, num_bins: int) -> Tensor:
    """Number of groups up to the end of each equal-mass bin, (..., B).

    The k-th edge is the confidence of the sample at position floor(N k / B), counted from 0 in
    ascending order.
    """
    total = count.sum(-1, keepdim=True)
    steps = torch.arange(1, num_bins, dtype=count.dtype, device=count.device)
    position = torch.floor(total * steps / num_bins)  # (..., B - 1)
    ends = torch.searchsorted(count.cumsum(-1), position, right=True) + 1
    last = torch.full_like(total, count.shape[-1], dtype=ends.dtype)
    return torch.cat([ends.clamp_(max=count.shape[-1]), last], -1)


def _sum_stretches(groups: Groups, ends: Tensor) -> Bins:
    """Sums over the stretches of groups that end before `ends`, (..., B)."""
    columns = (groups.count, groups.correct, groups.confidence)
    if not groups.count.shape[-1]:
        return Bins(*(torch.zeros_like(ends, dtype=column.dtype) for column in columns))
    last, filled = (ends - 1).clamp(min=0), ends > 0
    reached = [column.cumsum(-1).gather(-1, last).where(filled, 0) for column in columns]
    return Bins(*(torch.diff(r, dim=-1, prepend=torch.zeros_like(r[..., :1])) for r in reached))


def _sum_by(values: Tensor, member: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, dtype=values.dtype, device=values.device)
    return out.index_add_(0, member, values)
