"""Calibration errors and their floor; mean, over- and underconfidence; uncertainty."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import (
    by_convention,
    check_choice,
    check_floating,
    check_integer,
    numpy_to_tensor,
)
from sfumato._core.statistics import bin_edges, bin_index, row_weights
from sfumato.metrics.groups import (
    Bins,
    Groups,
    Samples,
    all_in_one,
    check_distribution,
    divisor,
    flat_rows,
    group_by_bin,
    group_by_value,
    mass_bins,
    mass_ends,
    of_predictions,
    score,
    width_bins,
)

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]
BINS = {"width": width_bins, "mass": mass_bins}


@by_convention
def calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "width",
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Expected calibration error: how far confidence and accuracy are apart, bin by bin.

    ECE = sum_b |B_b| / N |acc(B_b) - conf(B_b)|, with conf the probability of the predicted class.
    Bins are right-closed, (lo, hi]; confidence 0 falls in the first and 1 in the last. NaN where no
    sample counts.

    Args:
        probs: class probabilities, (N, C) or (N, C, d1, ...).
        target: class indices, (N,) or (N, d1, ...).
        num_bins: number of bins B; 15 in all papers here, 100 beside it in adaptive smoothing.
        norm: "l1" as above; "l2" for the root of the weighted mean square gap; "max" for the
            maximum calibration error (MCE).
        binning: bins of equal "width"; or of equal "mass", about N / B samples each: adaptive ECE.
        sample_weight: how often each sample counts, (N,) or as `target`: whole numbers do what as
            many copies do, others are scaled to 1 on average.
        class_dim: dimension of the classes.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

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
    samples = score(probs, target, class_dim, ignore_index, validate, sample_weight=sample_weight)
    return error_of_bins(_bins(samples, num_bins, binning), norm)


def _bins(samples: Samples, num_bins: int, binning: Binning) -> Bins:
    if binning == "width":  # no sorting
        return width_bins(group_by_bin(samples, num_bins), num_bins)
    return mass_bins(group_by_value(samples), num_bins)


def error_of_groups(groups: Groups, num_bins: int, norm: Norm, binning: Binning) -> Tensor:
    """Calibration error of grouped predictions, (...); NaN where there are none."""
    return error_of_bins(BINS[binning](groups, num_bins), norm)


def error_of_bins(bins: Bins, norm: Norm) -> Tensor:
    """Calibration error of filled bins, (...)."""
    total = bins.count.sum(-1)
    if norm == "l1":
        return bins.gap.abs().sum(-1) / total  # ACLS Eq. (23)
    mean_gap = bins.gap / divisor(bins.count)
    if norm == "max":
        return mean_gap.abs().amax(-1).where(total > 0, torch.nan)
    return ((mean_gap.square() * bins.count).sum(-1) / total).sqrt()


def mass_error_bound(groups: Groups, lower: Tensor, num_bins: int) -> Tensor:
    """Bound of the distance between the equal-mass error of groups and that of their predictions.

    Grouping only moves predictions of the cells that hold an edge between neighbouring bins.
    Moving a wrong prediction changes a gap by its confidence, a correct one by 1 - confidence, in
    two bins: 2/N sum over those cells of (wrong * upper + correct * (1 - lower)).
    """
    # The last edge ends the list of groups and can't cut one.
    cells = (mass_ends(groups.count, num_bins)[:-1] - 1).unique()
    cells = cells[groups.count[cells] > 1]
    moved = groups.wrong[cells] * groups.upper[cells] + groups.correct[cells] * (1 - lower[cells])
    return 2 * moved.sum() / groups.count.sum()


class ReliabilityBins(NamedTuple):
    """Bins of a reliability diagram; empty bins have mean confidence and accuracy NaN."""

    edges: Tensor  # (B + 1,)
    counts: Tensor  # (B,)
    confidences: Tensor  # (B,) mean confidence of the predictions in the bin
    accuracies: Tensor  # (B,)


@by_convention
def reliability(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> ReliabilityBins:
    """Count, mean confidence and accuracy of each equal-width bin: the reliability diagram.

    Args and Shape as in `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> reliability(probs, torch.tensor([0, 0, 1, 1]), num_bins=5).counts
        tensor([0., 0., 1., 2., 1.], dtype=torch.float64)
    """
    check_integer("num_bins", num_bins, low=1)
    samples = score(probs, target, class_dim, ignore_index, validate, sample_weight=sample_weight)
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


class SignedError(NamedTuple):
    """ECE split by direction: over + under = ECE, over - under = net."""

    over: Tensor
    under: Tensor
    net: Tensor


@by_convention
def signed_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> SignedError:
    """Calibration error of overconfident bins and of underconfident bins.

    over = sum_b |B_b| / N max(conf(B_b) - acc(B_b), 0), under the same with the sign turned,
    net = over - under = mean confidence - accuracy. Bins have equal width; Args as in
    `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> error = signed_calibration_error(probs, torch.tensor([0, 0, 1, 1]), num_bins=5)
        >>> [round(float(part), 4) for part in error]
        [0.125, 0.125, 0.0]
    """
    check_integer("num_bins", num_bins, low=1)
    samples = score(probs, target, class_dim, ignore_index, validate, sample_weight=sample_weight)
    return signed_error_of_groups(group_by_bin(samples, num_bins), num_bins)


def signed_error_of_groups(groups: Groups, num_bins: int) -> SignedError:
    """`signed_calibration_error` of grouped predictions, (...) each."""
    gap, total = width_bins(groups, num_bins).gap, groups.count.sum(-1)
    over, under = gap.clamp(min=0).sum(-1) / total, (-gap).clamp(min=0).sum(-1) / total
    return SignedError(over, under, over - under)


@by_convention
def debiased_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    norm: Literal["l1", "l2"] = "l1",
    binning: Binning = "width",
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Calibration error less what the chance of the labels alone adds to it.

    Accuracies of a calibrated model scatter around confidences with variance
    s_b^2 = acc (1 - acc) / n_b, so that its ECE is positive. Args as in `calibration_error`.
    l2: sqrt(max(0, sum_b n_b/N [gap_b^2 - acc (1 - acc) / (n_b - 1)])).
    l1: max(0, sum_b n_b/N [2 |gap_b| - E|gap_b + s_b z|]), z standard normal: a folded normal.
    A bin with a single sample says nothing about its own scatter and adds nothing.

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
    samples = score(probs, target, class_dim, ignore_index, validate)
    return debiased_error_of_bins(_bins(samples, num_bins, binning), norm)


def debiased_error_of_bins(bins: Bins, norm: Literal["l1", "l2"]) -> Tensor:
    """`debiased_calibration_error` of filled bins, (...)."""
    # A lone sample has weight 0 below; the clamp only keeps its quotients finite.
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


_MESH = 2000
_NARROWEST = 1e-3
_HALVINGS = 30


@of_predictions(group_by_value)
def smooth_calibration_error(groups: Groups) -> Tensor:
    """Calibration error smoothed by a Gaussian kernel that chooses its own width.

    smECE_s = int_0^1 |1/N sum_n K_s(t, p_n) (p_n - 1[correct_n])| dt with K_s a Gaussian of
    standard deviation s, reflected at 0 and 1; smECE is the s at which smECE_s = s. No bin edge
    can be hit or missed, and the value changes continuously with the predictions.
    The integral is taken on a mesh of 2,000 points, and s is at least 0.001. Args as in
    `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
        >>> smooth_calibration_error(probs, torch.arange(100) // 60)
        tensor(0.2000, dtype=torch.float64)

    Reference: Blasiok & Nakkiran, Smooth ECE: Principled Reliability Diagrams (ICLR 2024).
    """
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


@of_predictions(group_by_value)
def ks_calibration_error(groups: Groups) -> Tensor:
    """Kolmogorov-Smirnov calibration error: largest gap of the cumulative sums.

    KS = max_t |1/N sum_{p_n <= t} (p_n - 1[correct_n])|. Needs no bins; errors of opposite
    sign at neighbouring confidences cancel, as they do within a bin. Args as in
    `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> ks_calibration_error(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.1000, dtype=torch.float64)

    Reference: Gupta et al., Calibration of Neural Networks using Splines (ICLR 2021).
    """
    if not groups.count.shape[-1]:
        return groups.count.new_full(groups.count.shape[:-1], torch.nan)
    return groups.gap.cumsum(-1).abs().amax(-1) / groups.count.sum(-1)


Reduction = Literal["mean", "none"]
CELLS = 4000
_REACH = 20.0  # log-odds of the outermost cells


@by_convention
def classwise_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    binning: Binning = "width",
    reduction: Reduction = "mean",
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean over all classes of the calibration error of that class's probability.

    cwECE = 1/C sum_c sum_b |sum_{n in B_bc} (p_nc - 1[y_n = c])| / N, bins right-closed,
    probability 0 in the first.

    Args:
        binning: "width" for bins of equal width; "mass" for equal numbers of samples (classwise
            ACE), which also see the small probabilities that one wide bin swallows. Equal
            probabilities stay together.
        reduction: "mean" over the classes, or "none" for one value per class, (C,).
        probs, target, num_bins, sample_weight, class_dim, ignore_index, validate: as in
            `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> classwise_calibration_error(probs, torch.tensor([0, 0, 1, 1]), num_bins=5)
        tensor(0.3000, dtype=torch.float64)

    Reference: Nixon et al., Measuring Calibration in Deep Learning (CVPR workshops 2019) for ACE.

    Differs: the code released with MbLS averages over max(label) + 1 classes and skips entries of
    probability exactly 0; here all classes and all entries count.
    """
    check_integer("num_bins", num_bins, low=1)
    check_choice("reduction", reduction, ("mean", "none"))
    check_choice("binning", binning, ("width", "mass"))
    rows, labels = flat_rows(probs, target, class_dim, ignore_index, validate)
    weight = row_weights(sample_weight, target, ignore_index)
    gaps = class_gaps(rows, labels, num_bins, binning, weight=weight)
    return reduce_classes(gaps, len(labels) if weight is None else weight.sum(), reduction)


def class_gaps(
    rows: Tensor,
    labels: Tensor,
    num_bins: int,
    binning: Binning = "width",
    *,
    weight: Tensor | None = None,
) -> Tensor:
    """Sums of p_nc - 1[y_n = c] over each class and its bins, (C, B)."""
    if binning == "width":
        member = class_bin_index(rows, num_bins)  # (M, C)
    else:
        member = class_mass_index(rows, num_bins, weight)
    gaps = torch.zeros(rows.shape[1] * num_bins, dtype=torch.float64, device=rows.device)
    gaps.index_add_(0, member.flatten(), _weighted(rows, weight).flatten())
    # A label lowers one cell by 1: counting cells is cheaper than a one-hot table.
    own = member.gather(1, labels.unsqueeze(1)).flatten()
    counted = torch.bincount(own, weights=weight, minlength=len(gaps))
    return (gaps - counted).view(rows.shape[1], num_bins)


def _weighted(rows: Tensor, weight: Tensor | None) -> Tensor:
    """The rows in float64, each times its weight."""
    return rows.double() if weight is None else rows.double() * weight.unsqueeze(1)


def class_cells(rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Entries, labels and summed probabilities in fine cells of each class, (C, 4000, 3).

    The cells are equal in log-odds, so that small probabilities are told apart as large ones are.
    """
    place = (torch.logit(rows.double()) + _REACH) * (CELLS / (2 * _REACH))
    offsets = torch.arange(rows.shape[1], device=rows.device) * CELLS
    return _class_sums(rows, labels, place.clamp(0, CELLS - 1).long() + offsets, CELLS, weight)


def mass_gaps_of_cells(sums: Tensor, num_bins: int) -> Tensor:
    """`class_mass_gaps` of what `class_cells` gives, (C, B); entries of one cell count as equal."""
    count, hits, mass = sums.unbind(-1)
    upper = torch.arange(CELLS, dtype=sums.dtype, device=sums.device)
    return mass_bins(Groups(count, hits, mass, mass, upper), num_bins).gap


def class_bins(rows: Tensor, labels: Tensor, num_bins: int, weight: Tensor | None = None) -> Tensor:
    """Entries, labels and summed probabilities in each class and bin, (C, B, 3), float64."""
    return _class_sums(rows, labels, class_bin_index(rows, num_bins), num_bins, weight)


def _class_sums(
    rows: Tensor, labels: Tensor, member: Tensor, parts: int, weight: Tensor | None
) -> Tensor:
    """Entries, labels and summed probabilities of each number in `member` (M, C), (C, P, 3)."""
    size = rows.shape[1] * parts
    own = member.gather(1, labels.unsqueeze(1)).flatten()
    each = None if weight is None else weight.unsqueeze(1).expand_as(member).flatten()
    count = torch.bincount(member.flatten(), weights=each, minlength=size).double()
    hits = torch.bincount(own, weights=weight, minlength=size).double()
    mass = torch.zeros(size, dtype=torch.float64, device=rows.device)
    mass.index_add_(0, member.flatten(), _weighted(rows, weight).flatten())
    return torch.stack([count, hits, mass], -1).view(rows.shape[1], parts, 3)


def class_bin_index(rows: Tensor, num_bins: int) -> Tensor:
    """Number c B + b of the bin of each entry, (M, C)."""
    offsets = torch.arange(rows.shape[1], device=rows.device) * num_bins
    return bin_index(rows, num_bins) + offsets


def class_mass_index(rows: Tensor, num_bins: int, weight: Tensor | None = None) -> Tensor:
    """Number c B + b of the equal-mass bin of each entry, (M, C); the edges of `mass_ends`."""
    num_classes = rows.shape[1]
    if not len(rows):
        return torch.zeros(0, num_classes, dtype=torch.int64, device=rows.device)
    # Sorted along memory: a strided sort is several times slower.
    columns = rows.T.contiguous()
    steps = torch.arange(1, num_bins, device=rows.device)
    ordered, order = columns.sort(1)
    if weight is None:
        edges = ordered[:, steps * len(rows) // num_bins].contiguous()  # (C, B - 1)
    else:
        position = torch.floor(weight.sum() * steps / num_bins).expand(num_classes, -1)
        place = torch.searchsorted(weight[order].cumsum(1), position.contiguous(), right=True)
        edges = ordered.gather(1, place.clamp_(max=len(rows) - 1))
    offsets = torch.arange(num_classes, device=rows.device).unsqueeze(1) * num_bins
    return (torch.searchsorted(edges, columns) + offsets).T


def reduce_classes(gaps: Tensor, total: int | Tensor, reduction: Reduction) -> Tensor:
    errors = gaps.abs().sum(1) / torch.as_tensor(total, dtype=gaps.dtype, device=gaps.device)
    return errors.mean() if reduction == "mean" else errors


@by_convention
def calibration_floor(probs: Tensor, *, num_bins: int = 15, validate: bool = True) -> Tensor:
    """ECE that these confidences would have on average if every one of them were true.

    Accuracies of bins scatter even where the network is perfect, so read an ECE against this
    number, not against zero. With n_b predictions of mean confidence p_b in a bin, the number of
    correct ones is binomial, and
    floor = sum_b E|X_b - n_b p_b| / N with De Moivre's mean deviation
    E|X - n p| = 2 k C(n, k) p^k (1 - p)^(n - k + 1), k = floor(n p) + 1.

    Args:
        probs: class probabilities of independent samples, (N, C). Pixels of one image are not.
        num_bins: number of equal-width bins, as in `calibration_error`.
        validate: check that rows sum to one.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
        >>> calibration_floor(probs)  # all four right with probability 0.66, an ECE of 0.1 even so
        tensor(0.1312, dtype=torch.float64)

    Reference: Diaconis & Zabell, Closed Form Summation for Classical Distributions (1991).
    """
    check_integer("num_bins", num_bins, low=1)
    probs = numpy_to_tensor(probs)
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
    # In floating point n p may exceed n - 1 by rounding, and C(n, n + 1) has no logarithm.
    k = torch.minimum(torch.floor(n * p) + 1, n)
    choices = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log = choices + k.log() + k * p.log() + (n - k + 1) * torch.log1p(-p)
    return (2 * log.exp()).where(inside, 0.0)


@of_predictions(all_in_one)
def average_confidence(groups: Groups) -> Tensor:
    """Mean probability of the predicted class, E[p].

    Args as in `calibration_error`; of `target` only what is ignored matters.

    Example:
        >>> average_confidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.8000, dtype=torch.float64)
    """
    return groups.confidence.sum(-1) / groups.count.sum(-1)


@of_predictions(all_in_one)
def overconfidence(groups: Groups) -> Tensor:
    """Mean confidence of the wrong predictions, o(f) = E[p | prediction != label].

    Zero where no prediction is wrong; NaN where there is no sample. Args as in
    `calibration_error`.

    Example:
        >>> overconfidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.7000, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    confidence = (groups.confidence - groups.confidence_correct).sum(-1)
    return _mean_or_zero(confidence, groups.wrong.sum(-1), groups)


@of_predictions(all_in_one)
def underconfidence(groups: Groups) -> Tensor:
    """Mean uncertainty of the correct predictions, u(f) = E[1 - p | prediction = label].

    Zero where no prediction is correct; NaN where there is no sample. Args as in
    `calibration_error`.

    Example:
        >>> underconfidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.1000, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    correct = groups.correct.sum(-1)
    return _mean_or_zero(correct - groups.confidence_correct.sum(-1), correct, groups)


def accuracy_of_groups(groups: Groups) -> Tensor:
    """Share of correct predictions, (...)."""
    return groups.correct.sum(-1) / groups.count.sum(-1)


def _mean_or_zero(total: Tensor, count: Tensor, groups: Groups) -> Tensor:
    mean = total / divisor(count)
    return mean.where(groups.count.sum(-1) > 0, torch.nan)


@by_convention
def predictive_entropy(probs: Tensor, *, validate: bool = True) -> Tensor:
    """Entropy of each prediction in nats, H = -sum_c p_c log p_c.

    Args:
        probs: class probabilities, (N, C) or (N, C, d1, ...); or the mean of samples.
        validate: check that rows sum to one.

    Example:
        >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    check_floating("probs", probs)
    if probs.ndim < 2:
        raise ValueError(f"probs must be (N, C) or (N, C, d1, ...), got {tuple(probs.shape)}")
    if validate:
        check_distribution("probs", probs)
    return _entropy(probs, dim=1)


@by_convention
def mutual_information(samples: Tensor, *, validate: bool = True) -> Tensor:
    """Disagreement of samples of a prediction (dropout masks, ensemble members), in nats.

    I = H[mean_s p_s] - mean_s H[p_s]: total uncertainty less the part that every sample has.
    Zero where all samples agree.

    Args:
        samples: class probabilities of S samples, (S, N, C) or (S, N, C, d1, ...).
        validate: check that rows sum to one.

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    check_floating("samples", samples)
    if samples.ndim < 3 or not len(samples):
        raise ValueError(
            f"samples must be (S, N, C) or (S, N, C, d1, ...) with S >= 1, "
            f"got {tuple(samples.shape)}. Stack the probabilities of the samples on axis 0."
        )
    if validate:
        check_distribution("samples", samples.flatten(0, 1))
    total = _entropy(samples.mean(0), dim=1)
    # Rounding may leave it just below 0 where all samples agree.
    return (total - _entropy(samples, dim=2).mean(0)).clamp(min=0)


def _entropy(probs: Tensor, *, dim: int) -> Tensor:
    return torch.special.entr(probs).sum(dim)


@by_convention
def true_calibration_error(
    probs: Tensor,
    posterior: Tensor,
    *,
    num_bins: int | None = None,
    norm: Norm = "l1",
    binning: Binning = "width",
    validate: bool = True,
) -> Tensor:
    """Calibration error against the known probability that each prediction is correct.

    With q(c | x) the true posterior, a prediction y^ is correct with probability q(y^ | x). Without
    bins the error is E|p(y^ | x) - q(y^ | x)|: no label noise, and errors of opposite sign can't
    hide in one bin. With `num_bins` it is the ECE of expected instead of observed correctness.

    Args:
        probs: class probabilities, (N, C) or (N, C, d1, ...).
        posterior: the true class probabilities, as the built-in scenes carry them, like `probs`.
        num_bins: number of bins, or None to compare sample by sample.
        norm, binning: as in `calibration_error`.
        validate: check that rows sum to one.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]])
        >>> posterior = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
        >>> true_calibration_error(probs, posterior)
        tensor(0.1000, dtype=torch.float64)
        >>> round(float(true_calibration_error(probs, posterior, num_bins=1)), 4)
        0.0
    """
    check_choice("norm", norm, ("l1", "l2", "max"))
    check_choice("binning", binning, ("width", "mass"))
    probs, posterior = numpy_to_tensor(probs), numpy_to_tensor(posterior)
    _check_pair(probs, posterior, validate=validate)
    confidence, predicted = probs.max(1)
    expected = posterior.gather(1, predicted.unsqueeze(1)).flatten()
    confidence = confidence.flatten()
    if num_bins is None:
        return _norm_of((confidence.double() - expected.double()).abs(), norm)
    check_integer("num_bins", num_bins, low=1)
    groups = group_by_value(Samples(confidence, expected, torch.zeros_like(expected)))
    return error_of_groups(groups, num_bins, norm, binning).clamp(min=0)


@by_convention
def mean_objectness_deviation(
    probs: Tensor, objectness: Tensor, *, validate: bool = True
) -> Tensor:
    """Mean |confidence - objectness|: is the model as sure as the object is large?

    Args:
        probs: class probabilities; (N, C).
        objectness: share of the image that the object covers, in [0, 1]; (N,).
        validate: check that rows sum to one and objectness is in [0, 1].

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
        >>> mean_objectness_deviation(probs, torch.tensor([0.5, 0.5]))
        tensor(0.2500, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    probs, objectness = numpy_to_tensor(probs), numpy_to_tensor(objectness)
    check_floating("probs", probs)
    check_floating("objectness", objectness)
    if probs.ndim != 2 or objectness.shape != probs.shape[:1]:
        raise ValueError(
            f"probs must be (N, C) and objectness (N,), got {tuple(probs.shape)} "
            f"and {tuple(objectness.shape)}"
        )
    if validate:
        check_distribution("probs", probs)
        bad = ~((objectness >= 0) & (objectness <= 1))
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"objectness must be in [0, 1], got {float(objectness[first]):g} at sample {first}"
            )
    return (probs.amax(1).double() - objectness.double()).abs().mean()


def _norm_of(gap: Tensor, norm: Norm) -> Tensor:
    if norm == "l1" or not len(gap):
        return gap.mean()
    return gap.max() if norm == "max" else gap.square().mean().sqrt()


def _check_pair(probs: Tensor, posterior: Tensor, *, validate: bool) -> None:
    check_floating("probs", probs)
    check_floating("posterior", posterior)
    if probs.ndim < 2 or probs.shape != posterior.shape:
        raise ValueError(
            "probs and posterior must be (N, C) or (N, C, d1, ...) and the same, "
            f"got {tuple(probs.shape)} and {tuple(posterior.shape)}"
        )
    if validate:
        check_distribution("probs", probs)
        check_distribution("posterior", posterior)
