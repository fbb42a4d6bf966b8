"""Class-wise calibration error: every class's probability against its frequency."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.confidence_bins import bin_index
from sfumato.metrics.histogram import Groups, mass_bins
from sfumato.metrics.scored_samples import flat_rows

Reduction = Literal["mean", "none"]
Binning = Literal["width", "mass"]
CELLS = 4000
_REACH = 20.0  # log-odds of the outermost cells


def classwise_calibration_error(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    binning: Binning = "width",
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean over all classes of the calibration error of that class's probability.

    cwECE = 1/C sum_c sum_b |sum_{n in B_bc} (p_nc - 1[y_n = c])| / N, bins right-closed,
    probability 0 in the first.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        num_bins: number of bins of each class.
        binning: "width" for bins of equal width; "mass" for equal numbers of samples (classwise
            ACE), which also see the small probabilities that one wide bin swallows. Equal
            probabilities stay together.
        reduction: "mean" over the classes, or "none" for one value per class, (C,).
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

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
    rows, labels = flat_rows(probs, target, ignore_index=ignore_index, validate=validate)
    gaps = class_gaps if binning == "width" else class_mass_gaps
    return reduce_classes(gaps(rows, labels, num_bins), len(labels), reduction)


def class_gaps(rows: Tensor, labels: Tensor, num_bins: int) -> Tensor:
    """Sums of p_nc - 1[y_n = c] over each class and bin, (C, B)."""
    return gaps_by_member(rows, labels, class_bin_index(rows, num_bins), num_bins)


def class_mass_gaps(rows: Tensor, labels: Tensor, num_bins: int) -> Tensor:
    """`class_gaps` of equal-mass bins, which each class has of its own, (C, B)."""
    return gaps_by_member(rows, labels, class_mass_index(rows, num_bins), num_bins)


def gaps_by_member(rows: Tensor, labels: Tensor, member: Tensor, num_bins: int) -> Tensor:
    """Sums of p_nc - 1[y_n = c] over the entries of each number in `member` (M, C), (C, B)."""
    gaps = torch.zeros(rows.shape[1] * num_bins, dtype=torch.float64, device=rows.device)
    gaps.index_add_(0, member.flatten(), rows.double().flatten())
    own = member.gather(1, labels.unsqueeze(1)).flatten()
    return (gaps - torch.bincount(own, minlength=len(gaps))).view(rows.shape[1], num_bins)


def class_cells(rows: Tensor, labels: Tensor) -> Tensor:
    """Entries, labels and summed probabilities in fine cells of each class, (C, 4000, 3).

    The cells are equal in log-odds, so that small probabilities are told apart as large ones are.
    """
    place = (torch.logit(rows.double()) + _REACH) * (CELLS / (2 * _REACH))
    cell = (
        place.clamp(0, CELLS - 1).long() + torch.arange(rows.shape[1], device=rows.device) * CELLS
    )
    hits = torch.zeros_like(place).scatter_(1, labels.unsqueeze(1), 1.0)
    values = torch.stack([torch.ones_like(hits), hits, rows.double()], -1)
    sums = values.new_zeros(rows.shape[1] * CELLS, 3).index_add_(
        0, cell.flatten(), values.flatten(0, 1)
    )
    return sums.view(rows.shape[1], CELLS, 3)


def mass_gaps_of_cells(sums: Tensor, num_bins: int) -> Tensor:
    """`class_mass_gaps` of what `class_cells` gives, (C, B); entries of one cell count as equal."""
    count, hits, mass = sums.unbind(-1)
    upper = torch.arange(CELLS, dtype=sums.dtype, device=sums.device)
    return mass_bins(Groups(count, hits, mass, mass, upper), num_bins).gap


def class_bins(rows: Tensor, labels: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries, labels and summed probabilities in each class and bin, (C, B) each, float64."""
    num_classes = rows.shape[1]
    member = class_bin_index(rows, num_bins)  # (M, C)
    size = num_classes * num_bins
    own = member.gather(1, labels.unsqueeze(1)).flatten()
    count = torch.bincount(member.flatten(), minlength=size).double()
    hits = torch.bincount(own, minlength=size).double()
    mass = torch.zeros(size, dtype=torch.float64, device=rows.device)
    mass.index_add_(0, member.flatten(), rows.double().flatten())
    return tuple(x.view(num_classes, num_bins) for x in (count, hits, mass))  # type: ignore[return-value]


def class_bin_index(rows: Tensor, num_bins: int) -> Tensor:
    """Number c B + b of the bin of each entry, (M, C)."""
    offsets = torch.arange(rows.shape[1], device=rows.device) * num_bins
    return bin_index(rows, num_bins) + offsets


def class_mass_index(rows: Tensor, num_bins: int) -> Tensor:
    """Number c B + b of the equal-mass bin of each entry, (M, C); the edges of `mass_ends`."""
    num_classes = rows.shape[1]
    if not len(rows):
        return torch.zeros(0, num_classes, dtype=torch.int64, device=rows.device)
    columns = rows.T.contiguous()
    place = torch.arange(1, num_bins, device=rows.device) * len(rows) // num_bins
    edges = columns.sort(1).values[:, place].contiguous()  # (C, B - 1)
    offsets = torch.arange(num_classes, device=rows.device).unsqueeze(1) * num_bins
    return (torch.searchsorted(edges, columns) + offsets).T


def reduce_classes(gaps: Tensor, total: int | Tensor, reduction: Reduction) -> Tensor:
    errors = gaps.abs().sum(1) / torch.as_tensor(total, dtype=gaps.dtype, device=gaps.device)
    return errors.mean() if reduction == "mean" else errors
