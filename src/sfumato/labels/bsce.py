"""Cross entropy weighed by the Brier score (BSCE), and by its value alone (BSCE-GRA)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_number
from sfumato.labels._entries import (
    Entries,
    Reduction,
    check_reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels._powers import power_of_miss
from sfumato.ops.plain_softmax import LEAST_LOG
from sfumato.ops.softmax import SoftmaxSummary

Norm = Literal[1, 2]


def bsce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    norm: Norm = 2,
    stop_gradient: bool = True,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy weighed by the distance of the whole prediction from its label.

    Focal loss weighs by what the label's probability misses, and its gradient is not in proportion
    to that weight, because the weight is differentiated too. Here the weight knows all classes and
    is held constant, so that unsure entries have the larger gradients.

        L = -sg( ||q - p||_norm^gamma ) sum_k q_k log p_k

    With norm 2 and gamma 2 the weight is the Brier score; sg passes no gradient.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        gamma: exponent, at least 0; 0 is cross entropy.
        norm: 1 or 2. For class indices norm 1 is 2 (1 - p_y): focal loss's weight, times 2^gamma.
        stop_gradient: True for BSCE-GRA; False differentiates the weight too, which is BSCE.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> bsce_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> bsce_loss(logits, torch.tensor([0]))
        tensor(0.0067)

    Reference:
        Lin, Tao, Dong and Xu, "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025.

    Differs:
        The released code sums over the batch; the mean is taken here. Its command line has norm 1
        and gamma 1 by default; norm and gamma here give the Brier score that the paper is named
        after.
    """
    _check(gamma, norm)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    softmax = entries.softmax(also="brier" if norm == 2 else None)
    distance = _distance(softmax, entries, norm)
    distance = distance.detach() if stop_gradient else distance
    weight = power_of_miss(distance, gamma / norm, least=gamma / norm)
    return reduce_entries(weight * -softmax.label, softmax, reduction)


class BSCELoss(nn.Module):
    """Cross entropy weighed by the Brier score as a module; see `bsce_loss`.

    Args:
        gamma: exponent, at least 0.
        norm: 1 or 2, of the distance between label and prediction.
        stop_gradient: True for BSCE-GRA; False differentiates the weight too, which is BSCE.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    is_of_single_entries: ClassVar[bool] = True
    is_conservative: ClassVar[bool] = False

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        norm: Norm = 2,
        stop_gradient: bool = True,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        _check(gamma, norm)
        check_reduction(reduction)
        self.gamma = gamma
        self.norm: Norm = norm
        self.stop_gradient = stop_gradient
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return bsce_loss(
            logits,
            target,
            gamma=self.gamma,
            norm=self.norm,
            stop_gradient=self.stop_gradient,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _check(gamma: float, norm: int) -> None:
    check_number("gamma", gamma, low=0.0)
    check_choice("norm", norm, (1, 2))


def _distance(softmax: SoftmaxSummary, entries: Entries, norm: Norm) -> Tensor:
    """||q - p||^norm of each entry."""
    if norm == 2:
        return softmax.brier
    if entries.soft_target is None:
        return -2 * torch.expm1(softmax.label.clamp(min=LEAST_LOG))
    return (entries.soft_target - entries.plain().log_probs.exp()).abs().sum(1)
