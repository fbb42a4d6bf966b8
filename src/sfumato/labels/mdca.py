"""Multi-class difference of confidence and accuracy: the mean prediction should be the class mix.

Reference: Hebbalaguppe et al., "A Stitch in Time Saves Nine", CVPR 2022, as restated in the ACLS
supplement, Eq. (9)-(13).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_number
from sfumato.labels._entries import (
    Entries,
    Reduction,
    at_least_one,
    check_reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.ops.plain_softmax import over_entries
from sfumato.ops.softmax import SoftmaxSummary


def mdca_penalty(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Distance between the mean prediction of the batch and the share of each class in it.

        L_MDCA = 1/C sum_c | 1/N sum_n p_nc - 1/N sum_n q_nc |                           (Eq. 9)

    A static calibration error with one bin per class, differentiable because nothing is binned.
    The mean runs over all N valid entries, pixels included.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        ignore_index: class index whose entries are skipped.

    Returns:
        A scalar; 0 for an empty batch.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> mdca_penalty(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.1904)

    Reference:
        ACLS supplement, Eq. (9).

    Differs:
        Averaged over classes, as released; the equation is a sum over classes, C times larger.
    """
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    return _distance(entries.softmax(wants_totals=True), entries, weight=1.0)


def mdca_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 1.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus `weight` times `mdca_penalty`.

        L = L_CE + weight L_MDCA                                                         (Eq. 9)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        weight: of the penalty; 1 in the released scripts.
        ignore_index: class index whose entries are skipped.
        reduction: "mean" over the valid entries, "sum" or "none". The penalty is one number of the
            batch: "none" adds it to every valid entry, so that their mean is the "mean".

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> mdca_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.6004)

    Reference:
        ACLS supplement, Eq. (9); released with focal loss or label smoothing too, for which
        add `mdca_penalty` to those losses.

    Differs:
        See `mdca_penalty`.
    """
    check_number("weight", weight, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    softmax = entries.softmax(only=("label",), wants_totals=True)
    values = _distance(softmax, entries, weight) - softmax.label  # Eq. (9)
    return reduce_entries(values, softmax, reduction)


class MDCALoss(nn.Module):
    """Cross entropy plus the distance of mean prediction and class mix; see `mdca_loss`.

    Args:
        weight: of the penalty; 1 in the released scripts.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    def __init__(
        self, *, weight: float = 1.0, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        check_number("weight", weight, low=0.0)
        check_reduction(reduction)
        self.weight = weight
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return mdca_loss(
            logits,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _distance(softmax: SoftmaxSummary, entries: Entries, weight: float) -> Tensor:
    totals = softmax.totals
    if entries.soft_target is not None:
        wanted = over_entries(entries.soft_target)
    else:
        label = entries.indices.flatten()
        counted = torch.ones_like(label, dtype=totals.dtype)
        if softmax.valid is not None:
            counted = softmax.valid.flatten().to(totals.dtype)
            label = torch.where(softmax.valid.flatten(), label, 0)
        wanted = torch.zeros_like(totals).index_add(0, label, counted)
    apart = torch.linalg.vector_norm(totals - wanted, 1)
    number = at_least_one(softmax.count) * len(totals)
    if isinstance(number, Tensor):
        number = number.to(totals.dtype)  # or the quotient would be of the default type
    return apart * (weight / number)  # Eq. (9)
