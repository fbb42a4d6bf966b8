"""Calibration error of the predicted class: equal width or equal mass; l1, l2 or maximum."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.confidence_bins import bin_edges
from sfumato.metrics.histogram import (
    Bins,
    Groups,
    group_by_bin,
    group_by_value,
    mass_bins,
    mass_ends,
    width_bins,
)
from sfumato.metrics.scored_samples import score

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]


def calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "width",
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Expected calibration error: how far confidence and accuracy are apart, bin by bin.

    ECE = sum_b |B_b| / N |acc(B_b) - conf(B_b)|, with conf the probability of the predicted class.
    Bins are right-closed, (lo, hi]; confidence 0 falls in the first and 1 in the last.
    `norm="l2"` gives the root of the weighted mean square gap, `norm="max"` the maximum calibration
    error (MCE). `binning="mass"` gives adaptive ECE (AECE): every bin holds about N / B samples.

    Args:
        probs: class probabilities.
        target: class indices.
        num_bins: number of bins B; 15 in all papers here, 100 beside it in adaptive smoothing.
        norm: how the gaps of the bins are put together.
        binning: bins of equal width, or of equal mass.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Shape:
        probs: (N, C) or (N, C, d1, ...); target: (N,) or (N, d1, ...); output: scalar, float64;
        NaN where no sample counts.

    Raises:
        ValueError: for rows that don't sum to one, NaN, labels out of range; with the position.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> calibration_error(probs, target, num_bins=5)
        tensor(0.2500, dtype=torch.float64)

    Reference: Park et al., ACLS (ICCV 2023), S2.1, Eq. (23); Naeini et al. (AAAI 2015).

    Differs: the code released with MbLS and ACLS opens the first equal-mass bin on the left and so
    loses the smallest confidence; here it is kept.
    """
    check_binning(num_bins, norm, binning)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    by_bin = binning == "width"
    groups = group_by_bin(samples, num_bins) if by_bin else group_by_value(samples)
    return error_of_groups(groups, num_bins, norm, binning)


def error_of_groups(groups: Groups, num_bins: int, norm: Norm, binning: Binning) -> Tensor:
    """Calibration error of grouped predictions, (...); NaN where there are none."""
    make_bins = width_bins if binning == "width" else mass_bins
    return error_of_bins(make_bins(groups, num_bins), norm)


def error_of_bins(bins: Bins, norm: Norm) -> Tensor:
    """Calibration error of filled bins, (...)."""
    total = bins.count.sum(-1)
    if norm == "l1":
        return bins.gap.abs().sum(-1) / total  # ACLS Eq. (23)
    mean_gap = bins.gap / bins.count.clamp(min=1)
    if norm == "max":
        return mean_gap.abs().amax(-1).where(total > 0, torch.nan)
    return ((mean_gap.square() * bins.count).sum(-1) / total).sqrt()


def mass_error_bound(groups: Groups, lower: Tensor, num_bins: int) -> Tensor:
    """How far the equal-mass error of groups can be from that of their ungrouped predictions.

    Grouping only moves predictions of the cells that hold an edge between neighbouring bins.
    Moving a wrong prediction changes a gap by its confidence, a correct one by 1 - confidence, in
    two bins: 2/N sum over those cells of (wrong * upper + correct * (1 - lower)).
    """
    cells = (mass_ends(groups.count, num_bins)[:-1] - 1).unique()
    cells = cells[groups.count[cells] > 1]
    moved = groups.wrong[cells] * groups.upper[cells] + groups.correct[cells] * (1 - lower[cells])
    return 2 * moved.sum() / groups.count.sum()


class ReliabilityBins(NamedTuple):
    """What a reliability diagram shows; empty bins have mean confidence and accuracy NaN."""

    edges: Tensor  # (B + 1,)
    counts: Tensor  # (B,)
    confidences: Tensor  # (B,) mean confidence of the predictions in the bin
    accuracies: Tensor  # (B,)


def reliability(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
    validate: bool = True,
) -> ReliabilityBins:
    """Count, mean confidence and accuracy of each equal-width bin: the reliability diagram.

    Args, Shape and Raises as in `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> reliability(probs, torch.tensor([0, 0, 1, 1]), num_bins=5).counts
        tensor([0., 0., 1., 2., 1.], dtype=torch.float64)
    """
    check_integer("num_bins", num_bins, low=1)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return reliability_of_groups(group_by_bin(samples, num_bins), num_bins)


def reliability_of_groups(groups: Groups, num_bins: int) -> ReliabilityBins:
    """The reliability diagram of grouped predictions."""
    bins = width_bins(groups, num_bins)
    edges = bin_edges(num_bins, bins.count)
    edges = torch.cat([torch.zeros_like(edges[:1]), edges])
    return ReliabilityBins(
        edges, bins.count, bins.confidence / bins.count, bins.correct / bins.count
    )


def check_binning(num_bins: int, norm: str, binning: str) -> None:
    check_integer("num_bins", num_bins, low=1)
    check_choice("norm", norm, ("l1", "l2", "max"))
    check_choice("binning", binning, ("width", "mass"))
