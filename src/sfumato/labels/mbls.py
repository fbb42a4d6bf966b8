"""Margin-based label smoothing (MbLS): logits may differ, but not by more than a margin."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from sfumato._core.checks import check_number
from sfumato.labels._entries import Reduction, check_reduction, prepare_entries, reduce_entries
from sfumato.labels.cross_entropy import cross_entropy_fidelity
from sfumato.ops.softmax import SoftmaxSummary


def margin_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    margin: float = 10.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """How far logits lie below the largest one, beyond a margin.

        R = (1 / C) sum_k max(0, max_j z_j - z_k - M)

    Where the condition z_top - z_k > M holds, z_k is raised and z_top lowered by a constant; where
    it doesn't, the entry is left alone.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: only says which entries are ignored; None for none.
        margin: M, at least 0.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". Add it to a fidelity term.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> margin_penalty(torch.tensor([[12.0, 0.0, -1.0]]))
        tensor(1.6667)

    Reference:
        Liu et al. 2022 (MbLS); ACLS (Park et al. 2023), supplement Eq. (14).

    Differs:
        Averaged over N x C as in the released code, with which weight 0.1 was tuned; Eq. (14) has a
        sum over the classes. The supplement's Eq. (15) holds z_top constant, the released code and
        this function don't. The released code averages over ignored pixels too; here they don't
        count.
    """
    check_number("margin", margin, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    softmax = entries.softmax(margin=margin)
    return reduce_entries(_penalty(softmax) / entries.num_classes, softmax, reduction)


def mbls_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Margin-based label smoothing: cross entropy plus `weight` times `margin_penalty`.

    Label smoothing asks all distances between logits to be equal; here they only must not exceed a
    margin, so predictions that are fine aren't pulled down.

        L = -sum_k q_k log p_k + (weight / C) sum_k max(0, max_j z_j - z_k - M)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        margin: M, at least 0; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and segmentation.
        weight: of the penalty, at least 0; 0.1 everywhere.
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> mbls_loss(torch.tensor([[12.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1667)

    Reference:
        Liu et al. 2022 (MbLS); ACLS (Park et al. 2023), supplement Eq. (14). Normalisation and
        `Differs:` in `margin_penalty`.
    """
    check_number("margin", margin, low=0.0)
    check_number("weight", weight, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    fidelity = cross_entropy_fidelity(entries, class_weight=class_weight, margin=margin)
    penalty = _penalty(fidelity.softmax) * (weight / entries.num_classes)
    return fidelity.plus(penalty, reduction)


class MbLSLoss(nn.Module):
    """Margin-based label smoothing as a module; see `mbls_loss`.

    Args:
        margin: M, at least 0; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and segmentation.
        weight: of the penalty, at least 0; 0.1 everywhere.
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    is_of_single_entries: ClassVar[bool] = True
    class_weight: Tensor | None

    def __init__(
        self,
        *,
        margin: float = 10.0,
        weight: float = 0.1,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_number("margin", margin, low=0.0)
        check_number("weight", weight, low=0.0)
        check_reduction(reduction)
        self.margin = margin
        self.weight = weight
        self.register_buffer("class_weight", class_weight)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return mbls_loss(
            logits,
            target,
            margin=self.margin,
            weight=self.weight,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _penalty(softmax: SoftmaxSummary) -> Tensor:
    """C times the penalty of each entry."""
    # `excess` holds the top constant; here it goes down by what the others go up.
    rise = softmax.highest - softmax.highest.detach()  # 0, with slope 1
    return softmax.excess + softmax.number * rise  # supplement Eq. (14)
