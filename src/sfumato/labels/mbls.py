"""Margin-based label smoothing (MbLS): logits may differ, but not by more than a margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sfumato._checks import check_number
from sfumato.labels._block import Block
from sfumato.labels._entries import Reduction, check_reduction, prepare_entries
from sfumato.labels._fused import Weighted, evaluate_terms
from sfumato.labels.cross_entropy import cross_entropy_term


@dataclass(frozen=True)
class MarginTerm:
    """(1 / C) sum_k relu(max_j z_j - z_k - M)."""

    margin: float
    needs_only_summary: ClassVar[bool] = True

    def values(self, logits: Tensor, target: Tensor | None) -> Tensor:
        distance = logits.amax(1, keepdim=True) - logits
        return torch.relu(distance - self.margin).sum(1) / logits.shape[1]

    def accumulate(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        # Classes beyond the margin all go up by the same step, and the top down by their sum.
        step = None if block.gradient is None else scale / -block.num_classes
        return (block.excess_beyond(self.margin, step),)

    def finish(self, statistics: Sequence[Tensor], num_classes: int) -> Tensor:
        return statistics[0] / -num_classes


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
    return evaluate_terms(entries, [Weighted(MarginTerm(margin))], reduction)


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
    fidelity = cross_entropy_term(entries, class_weight=class_weight)
    return evaluate_terms(entries, [fidelity, Weighted(MarginTerm(margin), weight)], reduction)


class MbLSLoss(nn.Module):
    """`mbls_loss` as a module."""

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
