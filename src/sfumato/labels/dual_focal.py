"""Dual focal loss: focal loss that also looks at the class that follows the label."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_number
from sfumato.labels._entries import Reduction, check_reduction, prepare_entries, reduce_entries
from sfumato.labels._powers import power_of_miss
from sfumato.ops.plain_softmax import LEAST_LOG


def dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 5.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss whose factor falls with the lead of the label over the class that follows it.

    Focal loss makes predictions less confident and often too little so. Here the factor is small
    only where the label leads by much, which keeps up the gap between the two classes.

        L = -(1 - p_y + p_j)^gamma log p_y,   p_j = max { p_k : p_k < p_y }

    p_j is 0 where no class is below the label.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...); soft targets have no p_y and are refused.
        gamma: focusing exponent, at least 0; 0 is cross entropy. 5 for CIFAR, 2.3 for
            Tiny-ImageNet.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> dual_focal_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> dual_focal_loss(logits, torch.tensor([0]))
        tensor(0.0002)

    Reference:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023.

    Differs:
        The released code sums over the batch and relies on gradient clipping; the mean is taken
        here.
    """
    check_number("gamma", gamma, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    softmax = entries.softmax(also="following")
    # A label that can't be, log p = -inf, misses everything, with slope 0.
    miss = softmax.following.exp() - torch.expm1(softmax.label.clamp(min=LEAST_LOG))
    values = power_of_miss(miss, gamma, least=gamma) * -softmax.label
    return reduce_entries(values, softmax, reduction)


class DualFocalLoss(nn.Module):
    """Dual focal loss as a module; see `dual_focal_loss`.

    Args:
        gamma: focusing exponent, at least 0; 5 for CIFAR, 2.3 for Tiny-ImageNet.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    def __init__(
        self, *, gamma: float = 5.0, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        check_number("gamma", gamma, low=0.0)
        check_reduction(reduction)
        self.gamma = gamma
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return dual_focal_loss(
            logits,
            target,
            gamma=self.gamma,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
