"""Focal loss and its family: FLSD, dual focal loss, BSCE and BSCE-GRA."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_number
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    arguments_of,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.cross_entropy import label_weight
from sfumato.ops.softmax import LEAST_LOG, SoftmaxSummary


def power_of_miss(miss: Tensor, exponent: float | Tensor, *, least: float) -> Tensor:
    """miss^exponent of each entry, with two derivatives that are finite where little is missed.

    Args:
        miss: (N, ...), at least 0 but for rounding.
        exponent: a number, or one for each entry.
        least: no exponent is below it.
    """
    is_one = not isinstance(exponent, Tensor) and exponent == 1
    if least >= 2 or is_one:
        return miss.pow(exponent)
    # The power alone has no derivatives at 0, and near it they are large numbers that cancel or
    # overflow; times log p_y all of it is below rounding there: hold the power constant.
    is_certain = miss <= torch.finfo(miss.dtype).eps ** 2  # a Brier score is a square
    power = torch.where(is_certain, 1.0, miss) ** exponent
    return torch.where(is_certain, miss.detach().clamp(min=0) ** exponent, power)


FLSDRule = Literal["paper", "released"]


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss: cross entropy that loses interest in what is already predicted well.

    It raises the entropy of predictions and so acts like label smoothing.

        L = -w_y (1 - p_y)^gamma log p_y

    Args:
        target: class indices (N, d1, ...); soft targets have no p_y and are refused.
        gamma: focusing exponent, at least 0; 0 is cross entropy, MbLS and ACLS compare with 3.
        class_weight: (C,) w; the mean divides by the sum of the labels' weights.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> focal_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> focal_loss(logits, torch.tensor([0]))
        tensor(0.0006)

    Reference:
        Lin et al. 2017; for calibration Mukhoti et al. 2020.

    Differs:
        The code released for calibration sums over the batch; the mean is taken here, as in the
        code of MbLS.
    """
    check_number("gamma", gamma, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax(only=("label",))
    return _focal(entries, softmax, gamma, gamma, class_weight, reduction)


def flsd_loss(
    logits: Tensor,
    target: Tensor,
    *,
    rule: FLSDRule = "released",
    gamma: float = 3.0,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
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
        rule: by the label in three steps, or by the predicted class in two.
        gamma: exponent of confident entries, at least 0.
        class_weight, class_dim, ignore_index, reduction: as in `focal_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> flsd_loss(logits, torch.tensor([2]))
        tensor(2.5577)
        >>> flsd_loss(logits, torch.tensor([2]), rule="paper")
        tensor(2.7869)

    Reference:
        Mukhoti et al. 2020; ACLS (Park et al. 2023), supplement Eq. (1).

    Differs:
        ACLS states the rule with the predicted class; FLSD's authors, and the released code of both
        papers, with the label. The third step, at 0.5, is the code's, which sums over the batch.
    """
    check_choice("rule", rule, ("paper", "released"))
    check_number("gamma", gamma, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax(only=("label",) if rule == "released" else ("label", "top"))
    exponent = _exponent(softmax, rule, gamma)
    return _focal(entries, softmax, exponent, gamma, class_weight, reduction)


class FocalLoss(LossModule):
    """Focal loss as a module; see `focal_loss`."""

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(focal_loss)
    def __init__(self) -> None: ...


class FLSDLoss(LossModule):
    """Focal loss with a sample-dependent exponent as a module; see `flsd_loss`."""

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(flsd_loss)
    def __init__(self) -> None: ...


def _focal(
    entries: Entries,
    softmax: SoftmaxSummary,
    exponent: float | Tensor,
    least: float,
    class_weight: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    """The mean of -w_y (1 - p_y)^g log p_y; no exponent is below `least`."""
    # A label that can't be, log p = -inf, has power 1 and slope 0 there. Not `clamp`, whose
    # derivative is three operations instead of one.
    miss = -torch.expm1(torch.threshold(softmax.label, LEAST_LOG, LEAST_LOG))
    values = power_of_miss(miss, exponent, least=least) * -softmax.label
    weight = label_weight(entries, class_weight)
    values = values if weight is None else values * weight
    return reduce_entries(values, softmax, reduction, weight=weight)


def _exponent(softmax: SoftmaxSummary, rule: FLSDRule, gamma: float) -> Tensor:
    """Exponent of each entry, a constant for the gradient."""
    log_prob = softmax.top if rule == "paper" else softmax.label
    # Compared as logarithms: log p is there already.
    exponent = torch.full_like(log_prob, gamma)
    if rule == "released" and gamma != 3.0:
        exponent.masked_fill_(log_prob < math.log(0.5), 3.0)
    return exponent.masked_fill_(log_prob < math.log(0.2), 5.0)  # supplement Eq. (1)


def dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 5.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss whose factor falls with the lead of the label over the class that follows it.

    Focal loss often makes predictions too little confident. Here the factor is small only where the
    label leads by much.

        L = -(1 - p_y + p_j)^gamma log p_y,   p_j = max { p_k : p_k < p_y }

    p_j is 0 where no class is below the label.

    Args:
        target: class indices (N, d1, ...); soft targets have no p_y and are refused.
        gamma: focusing exponent, at least 0; 0 is cross entropy. 5 for CIFAR, 2.3 for
            Tiny-ImageNet.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> dual_focal_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> dual_focal_loss(logits, torch.tensor([0]))
        tensor(0.0002)

    Reference:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023.

    Differs:
        The released code sums over the batch; the mean is taken here.
    """
    check_number("gamma", gamma, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax(also="following")
    # A label that can't be, log p = -inf, misses everything, with slope 0.
    miss = softmax.following.exp() - torch.expm1(softmax.label.clamp(min=LEAST_LOG))
    values = power_of_miss(miss, gamma, least=gamma) * -softmax.label
    return reduce_entries(values, softmax, reduction)


class DualFocalLoss(LossModule):
    """Dual focal loss as a module; see `dual_focal_loss`."""

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(dual_focal_loss)
    def __init__(self) -> None: ...


Norm = Literal[1, 2]


def bsce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    norm: Norm = 2,
    stop_gradient: bool = True,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy weighed by the distance of the whole prediction from its label.

    The gradient of focal loss is not in proportion to its weight, which is differentiated too. Here
    the weight knows all classes and is held constant, so that unsure entries have larger gradients.

        L = -sg( ||q - p||_norm^gamma ) sum_k q_k log p_k

    With norm 2 and gamma 2 the weight is the Brier score; sg passes no gradient.

    Args:
        gamma: exponent, at least 0; 0 is cross entropy.
        norm: 1 or 2. For class indices norm 1 is 2 (1 - p_y): focal loss's weight, times 2^gamma.
        stop_gradient: True for BSCE-GRA; False differentiates the weight too, which is BSCE.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> bsce_loss(logits, torch.tensor([0]), gamma=0.0)
        tensor(0.1698)
        >>> bsce_loss(logits, torch.tensor([0]))
        tensor(0.0067)

    Reference:
        Lin, Tao, Dong and Xu, "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025.

    Differs:
        The released code sums over the batch, and its command line has norm 1 and gamma 1; norm and
        gamma here give the paper's Brier score.
    """
    check_number("gamma", gamma, low=0.0)
    check_choice("norm", norm, (1, 2))
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax(also="brier" if norm == 2 else None)
    distance = _distance(softmax, entries, norm)
    distance = distance.detach() if stop_gradient else distance
    # `distance` is already the norm-th power, so the exponent is divided by it.
    weight = power_of_miss(distance, gamma / norm, least=gamma / norm)
    return reduce_entries(weight * -softmax.label, softmax, reduction)


class BSCELoss(LossModule):
    """Cross entropy weighed by the Brier score as a module; see `bsce_loss`."""

    is_of_single_entries: ClassVar[bool] = True
    is_conservative: ClassVar[bool] = False

    @arguments_of(bsce_loss)
    def __init__(self) -> None: ...


def _distance(softmax: SoftmaxSummary, entries: Entries, norm: Norm) -> Tensor:
    """||q - p||^norm of each entry."""
    if norm == 2:
        return softmax.brier
    if entries.soft_target is None:
        return -2 * torch.expm1(softmax.label.clamp(min=LEAST_LOG))
    return (entries.soft_target - entries.plain().log_probs.exp()).abs().sum(1)
