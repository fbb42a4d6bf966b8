"""Calibration by pairwise constraints: every pair of classes is a binary problem of its own.

Reference: Cheng and Vasconcelos, "Calibrating Deep Neural Networks by Pairwise Constraints", CVPR
2022, as restated in the ACLS supplement, Eq. (2)-(8).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_number
from sfumato.labels._entries import (
    Reduction,
    check_reduction,
    full_precision,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels._pairs import pair_sum
from sfumato.ops.plain_softmax import PlainSoftmax


def discrimination_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """1-vs-1 term of CPC: the label should win each binary contest with another class.

        L_1v1 = -1/(C - 1) sum_{k != y} log( p_y / (p_y + p_k) )                         (Eq. 3)

    Linear in the number of classes: the contest of y and k is log sigmoid(z_y - z_k).

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        ignore_index: class index whose entries are skipped.
        reduction: "mean" over the valid entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> discrimination_penalty(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.2201)

    Reference:
        ACLS supplement, Eq. (3) and (5).

    Differs:
        Averaged over the C - 1 other classes, as released; the equation is a plain sum.
    """
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    plain = entries.plain()
    return reduce_entries(_discrimination(plain), plain, reduction)


def exclusion_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary-exclusion term of CPC: no class but the label should win a contest with another.

        L_BE = -1/((C - 1)(C - 2)) sum_{k, l != y} 1/2 log( p_k / (p_k + p_l) )          (Eq. 4)

    over ordered pairs, k = l included. Its least value, at equal probabilities of all other
    classes, is (C - 1) log(2) / (2 (C - 2)). Time is O(N C^2), memory O(N C): pairs are visited by
    their distance in the list of classes, one block of rows at a time, value and gradient together.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        ignore_index: class index whose entries are skipped.
        reduction: "mean" over the valid entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none"; 0 for two classes, where no pair is without the label.
        Second derivatives, torch.func and torch.compile take O(N C^2) memory.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> exclusion_penalty(torch.tensor([[5.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.7532)

    Reference:
        ACLS supplement, Eq. (4) and (6).

    Differs:
        Normalised as released; the sum in the paper is 4 (C - 1)(C - 2) times as large.
        The released code keeps the diagonal pairs k = l, which add the constant
        log(2) / (2 (C - 2)) and no gradient: kept here for equal values. It adds 1e-10 to each
        difference of logits, which cancels, and returns infinity for C = 2.
    """
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    plain = entries.plain()
    return reduce_entries(_exclusion(plain), plain, reduction)


def cpc_loss(
    logits: Tensor,
    target: Tensor,
    *,
    discrimination_weight: float = 0.1,
    exclusion_weight: float = 1.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus the two pairwise terms of CPC.

        L = L_CE + lambda_1 L_1v1 + lambda_2 L_BE                                        (Eq. 2)

    The first term raises the label of the true class rather than smoothing it; the second evens
    out the other classes (ACLS Table 2 and section 3.2).

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        discrimination_weight: lambda_1, of `discrimination_penalty`.
        exclusion_weight: lambda_2, of `exclusion_penalty`.
        ignore_index: class index whose entries are skipped.
        reduction: "mean" over the valid entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> cpc_loss(torch.tensor([[5.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.7792)

    Reference:
        ACLS supplement, Eq. (2)-(8); weights as released for Tiny-ImageNet.

    Differs:
        Normalised as released (see the two penalties).
    """
    check_number("discrimination_weight", discrimination_weight, low=0.0)
    check_number("exclusion_weight", exclusion_weight, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    plain = entries.plain()
    values = discrimination_weight * _discrimination(plain) - plain.label  # Eq. (2)
    return reduce_entries(values + exclusion_weight * _exclusion(plain), plain, reduction)


class CPCLoss(nn.Module):
    """Cross entropy plus the two pairwise terms of CPC as a module; see `cpc_loss`.

    Args:
        discrimination_weight: lambda_1, of `discrimination_penalty`.
        exclusion_weight: lambda_2, of `exclusion_penalty`.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    def __init__(
        self,
        *,
        discrimination_weight: float = 0.1,
        exclusion_weight: float = 1.0,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_number("discrimination_weight", discrimination_weight, low=0.0)
        check_number("exclusion_weight", exclusion_weight, low=0.0)
        check_reduction(reduction)
        self.discrimination_weight = discrimination_weight
        self.exclusion_weight = exclusion_weight
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return cpc_loss(
            logits,
            target,
            discrimination_weight=self.discrimination_weight,
            exclusion_weight=self.exclusion_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _label(plain: PlainSoftmax) -> Tensor:
    if plain.target is None:
        raise TypeError("target must hold class indices here")
    return plain.target.unsqueeze(1)


def _discrimination(plain: PlainSoftmax) -> Tensor:
    label = _label(plain)
    gap = plain.logits.gather(1, label) - plain.logits
    # The label is no contestant of itself: an infinite lead costs nothing and has no gradient.
    contests = F.logsigmoid(gap.scatter(1, label, torch.inf))
    return -contests.sum(1) / (plain.logits.shape[1] - 1)  # Eq. (3)


def _exclusion(plain: PlainSoftmax) -> Tensor:
    others = plain.logits.shape[1] - 1
    if others == 1:  # no pair, and still part of the graph
        return torch.where(plain.logits.isnan(), plain.logits, 0.0).sum(1)
    rows = plain.logits.movedim(1, -1).reshape(-1, others + 1)
    column = torch.arange(others, device=rows.device)
    keep = column + (column >= _label(plain).reshape(-1, 1)).long()  # every class but the label
    with full_precision(rows):
        values = pair_sum(rows.gather(1, keep)) / (others * (others - 1))  # Eq. (4)
    return values.view(plain.logits.shape[:1] + plain.logits.shape[2:])
