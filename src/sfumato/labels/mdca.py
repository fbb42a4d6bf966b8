"""MDCA: the mean prediction of a batch should be its mix of classes."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    arguments_of,
    at_least_one,
    prepare_entries,
    reduce_entries,
)
from sfumato.ops.softmax import SoftmaxSummary, over_entries


def mdca_penalty(
    logits: Tensor, target: Tensor, *, class_dim: int = 1, ignore_index: int = -100
) -> Tensor:
    """Distance between the mean prediction of the batch and the share of each class in it.

        L_MDCA = 1/C sum_c | 1/N sum_n p_nc - 1/N sum_n q_nc |                           (Eq. 9)

    A static calibration error with one bin per class, differentiable because nothing is binned.
    The mean runs over all N valid entries, pixels included.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        class_dim, ignore_index: as in `cross_entropy_loss`.

    Example:
        >>> mdca_penalty(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.1904)

    Reference:
        Hebbalaguppe et al., "A Stitch in Time Saves Nine", CVPR 2022; ACLS supplement, Eq. (9).

    Differs:
        Averaged over classes, as released; the equation is a sum over classes, C times larger.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    return _distance(entries.softmax(wants_totals=True), entries, weight=1.0)


def mdca_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 1.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus `weight` times `mdca_penalty`.

        L = L_CE + weight L_MDCA                                                         (Eq. 9)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        weight: of the penalty; 1 in the released scripts.
        class_dim, ignore_index: as in `cross_entropy_loss`.
        reduction: "mean", "sum" or "none", which adds the one penalty to every valid entry.

    Example:
        >>> mdca_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.6004)

    Reference:
        ACLS supplement, Eq. (9); released with focal loss or label smoothing too, for which
        add `mdca_penalty` to those losses.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax(only=("label",), wants_totals=True)
    values = _distance(softmax, entries, weight) - softmax.label  # Eq. (9)
    return reduce_entries(values, softmax, reduction)


class MDCALoss(LossModule):
    """Cross entropy plus the distance of mean prediction and class mix; see `mdca_loss`."""

    @arguments_of(mdca_loss)
    def __init__(self) -> None: ...


def _distance(softmax: SoftmaxSummary, entries: Entries, weight: float) -> Tensor:
    totals = softmax.totals
    if entries.soft_target is not None:
        wanted = over_entries(entries.soft_target)
    else:
        label = entries.indices.flatten()
        counted = torch.ones_like(label, dtype=totals.dtype)
        if softmax.valid is not None:
            counted = softmax.valid.flatten().to(totals.dtype)
            # An ignored label may be -100, which is no index; its count is 0, so any class will do.
            label = torch.where(softmax.valid.flatten(), label, 0)
        wanted = torch.zeros_like(totals).index_add(0, label, counted)
    # Both are sums over the batch; dividing once at the end rounds once.
    apart = torch.linalg.vector_norm(totals - wanted, 1)
    number = at_least_one(softmax.count) * len(totals)
    if isinstance(number, Tensor):
        number = number.to(totals.dtype)  # or the quotient would be of the default type
    return apart * (weight / number)  # Eq. (9)
