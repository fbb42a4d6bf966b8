"""Focal loss, and its sample-dependent form FLSD."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_number
from sfumato.labels._entries import Reduction, check_reduction, prepare_entries, reduce_entries
from sfumato.labels._powers import power_of_miss
from sfumato.labels.cross_entropy import label_weight
from sfumato.ops.plain_softmax import LEAST_LOG
from sfumato.ops.softmax import SoftmaxSummary

FLSDRule = Literal["paper", "released"]


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss: cross entropy that loses interest in what is already predicted well.

    It bounds a term of KL divergence and entropy, so it raises the entropy of predictions and acts
    like label smoothing.

        L = -w_y (1 - p_y)^gamma log p_y

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...); soft targets have no p_y and are refused.
        gamma: focusing exponent, at least 0; 0 is cross entropy, MbLS and ACLS compare with 3.
        class_weight: (C,) w; the mean divides by the sum of the labels' weights.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> focal_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> focal_loss(logits, torch.tensor([0]))
        tensor(0.0006)

    Reference:
        Lin et al. 2017; for calibration Mukhoti et al. 2020.

    Differs:
        The code released for calibration sums over the batch and relies on gradient clipping; the
        mean is taken here, as in the code of MbLS.
    """
    check_number("gamma", gamma, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    softmax, weight = entries.softmax(only=("label",)), label_weight(entries, class_weight)
    values = _focal_values(softmax.label, gamma, least=gamma)
    return reduce_entries(_weighted(values, weight), softmax, reduction, weight=weight)


def flsd_loss(
    logits: Tensor,
    target: Tensor,
    *,
    rule: FLSDRule = "released",
    gamma: float = 3.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss with a sample-dependent exponent: 5 for unsure predictions, 3 for the others.

        rule="released":  g = 5 where p_y < 0.2, 3 where 0.2 <= p_y < 0.5, else gamma
        rule="paper":     g = 5 where p_top < 0.2, else gamma

    The exponent is a constant for the gradient. With the default gamma both are called FLSD-53;
    gamma 2 under the released rule is what its authors call FLSD-52.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        rule: by the probability of the label in three steps, as FLSD's own authors have it, or of
            the predicted class in two, as the supplement of ACLS states it.
        gamma: exponent of confident entries, at least 0.
        class_weight, ignore_index, reduction: as in `focal_loss`.

    Returns:
        As `focal_loss`.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> flsd_loss(logits, torch.tensor([2]))
        tensor(2.5577)
        >>> flsd_loss(logits, torch.tensor([2]), rule="paper")
        tensor(2.7869)

    Reference:
        Mukhoti et al. 2020; ACLS (Park et al. 2023), supplement Eq. (1).

    Differs:
        ACLS states the rule with the probability of the predicted class; its authors, and the
        released code of both papers, with that of the label. The third step, at 0.5, is the code's.
        The released code sums over the batch; the mean is taken here.
    """
    check_choice("rule", rule, ("paper", "released"))
    check_number("gamma", gamma, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index, soft=False)
    softmax = entries.softmax(only=("label",) if rule == "released" else ("label", "top"))
    weight = label_weight(entries, class_weight)
    values = _focal_values(softmax.label, _exponent(softmax, rule, gamma), least=gamma)
    return reduce_entries(_weighted(values, weight), softmax, reduction, weight=weight)


class FocalLoss(nn.Module):
    """Focal loss as a module; see `focal_loss`.

    Args:
        gamma: focusing exponent, at least 0; 0 is cross entropy, MbLS and ACLS compare with 3.
        class_weight: (C,) w; the mean divides by the sum of the labels' weights.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True
    class_weight: Tensor | None

    def __init__(
        self,
        *,
        gamma: float = 3.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_number("gamma", gamma, low=0.0)
        check_reduction(reduction)
        self.gamma = gamma
        self.register_buffer("class_weight", class_weight)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal_loss(
            logits,
            target,
            gamma=self.gamma,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class FLSDLoss(nn.Module):
    """Focal loss with a sample-dependent exponent as a module; see `flsd_loss`.

    Args:
        rule: "released", by the probability of the label in three steps, or "paper", by that of
            the predicted class in two.
        gamma: exponent of confident entries, at least 0.
        class_weight: (C,) w; the mean divides by the sum of the labels' weights.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True
    class_weight: Tensor | None

    def __init__(
        self,
        *,
        rule: FLSDRule = "released",
        gamma: float = 3.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice("rule", rule, ("paper", "released"))
        check_number("gamma", gamma, low=0.0)
        check_reduction(reduction)
        self.rule: FLSDRule = rule
        self.gamma = gamma
        self.register_buffer("class_weight", class_weight)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return flsd_loss(
            logits,
            target,
            rule=self.rule,
            gamma=self.gamma,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _focal_values(log_prob: Tensor, gamma: float | Tensor, least: float) -> Tensor:
    """-(1 - p_y)^g log p_y of each entry; no exponent is below `least`."""
    # A label that can't be, log p = -inf, has power 1 and slope 0 there. Not `clamp`, whose
    # derivative is three operations instead of one.
    miss = -torch.expm1(torch.threshold(log_prob, LEAST_LOG, LEAST_LOG))
    return power_of_miss(miss, gamma, least=least) * -log_prob


def _exponent(softmax: SoftmaxSummary, rule: FLSDRule, gamma: float) -> Tensor:
    """Exponent of each entry, a constant for the gradient."""
    log_prob = softmax.top if rule == "paper" else softmax.label
    exponent = torch.full_like(log_prob, gamma)
    if rule == "released" and gamma != 3.0:
        exponent.masked_fill_(log_prob < math.log(0.5), 3.0)
    return exponent.masked_fill_(log_prob < math.log(0.2), 5.0)  # supplement Eq. (1)


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    return values if weight is None else values * weight
