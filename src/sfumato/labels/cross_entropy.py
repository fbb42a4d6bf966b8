"""Cross entropy with hard or soft targets, label smoothing and class weights."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_floating, check_number
from sfumato.labels._entries import (
    Entries,
    Reduction,
    check_reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.targets import SmoothingOver, smoothing_masses
from sfumato.ops.softmax import Also, SoftmaxSummary


class Fidelity(NamedTuple):
    """Minus the cross entropy of each entry, and the numbers of its softmax for a penalty.

    Attributes:
        softmax: the one pass over the logits.
        fit: sum_k w_k q_k log p_k with q the smoothed target, (N, ...).
        weight: w of each entry's label, which the mean divides by the sum of; None for 1.
    """

    softmax: SoftmaxSummary
    fit: Tensor
    weight: Tensor | None

    def plus(self, penalty: Tensor, reduction: Reduction) -> Tensor:
        """The reduced sum with the values of a penalty, whose mean is over the entries."""
        if self.weight is None:
            return reduce_entries(penalty - self.fit, self.softmax, reduction)
        return self.alone(reduction) + reduce_entries(penalty, self.softmax, reduction)

    def alone(self, reduction: Reduction) -> Tensor:
        """The reduced cross entropy."""
        return reduce_entries(-self.fit, self.softmax, reduction, weight=self.weight)


def cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    smoothing: float = 0.0,
    smoothing_over: SmoothingOver = "all",
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy, with label smoothing if wanted.

    Smoothed labels can be reached by finite logits, so the network isn't pushed to ever higher
    confidence; the price is that well-calibrated predictions are pulled down as well.

        L = -sum_k w_k q_k log p_k,   q = smooth_labels(target, smoothing, over=smoothing_over)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        smoothing: amount a in [0, 1]; MbLS and ACLS compare with 0.05.
        smoothing_over: spread it over "all" C classes or over the C - 1 "others".
        class_weight: (C,) w; the mean over class indices divides by the sum of the labels' weights,
            as `F.cross_entropy` does.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none"; float32 for half-precision logits. An empty or
        all-ignored batch gives 0 with zero gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> cross_entropy_loss(logits, torch.tensor([0]))
        tensor(0.1698)
        >>> cross_entropy_loss(logits, torch.tensor([0]), smoothing=0.3)
        tensor(0.6698)

    Reference:
        ACLS (Park et al. 2023) Eq. (1), (4), (5); adaptive label smoothing (Krothapalli & Abbott
        2020) Eq. (2)-(5).
    """
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    fidelity = cross_entropy_fidelity(
        entries, smoothing=smoothing, smoothing_over=smoothing_over, class_weight=class_weight
    )
    return fidelity.alone(reduction)


class CrossEntropyLoss(nn.Module):
    """Cross entropy with label smoothing as a module; see `cross_entropy_loss`.

    Args:
        smoothing: amount a in [0, 1]; MbLS and ACLS compare with 0.05.
        smoothing_over: spread it over "all" C classes or over the C - 1 "others".
        class_weight: (C,) w; the mean over class indices divides by the sum of the labels' weights.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    is_of_single_entries: ClassVar[bool] = True
    is_negative_log_likelihood: ClassVar[bool] = True
    class_weight: Tensor | None

    def __init__(
        self,
        *,
        smoothing: float = 0.0,
        smoothing_over: SmoothingOver = "all",
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        _check_smoothing(smoothing, smoothing_over)
        check_reduction(reduction)
        self.smoothing = smoothing
        self.smoothing_over: SmoothingOver = smoothing_over
        self.register_buffer("class_weight", class_weight)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy_loss(
            logits,
            target,
            smoothing=self.smoothing,
            smoothing_over=self.smoothing_over,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def cross_entropy_fidelity(
    entries: Entries,
    *,
    smoothing: float = 0.0,
    smoothing_over: SmoothingOver = "all",
    class_weight: Tensor | None = None,
    margin: float | Tensor | None = None,
    also: Also | None = None,
) -> Fidelity:
    """The fidelity of most losses; `margin` and `also` are for the penalty to be added."""
    _check_smoothing(smoothing, smoothing_over)
    weight = None
    factor, mass = smoothing_masses(smoothing, entries.num_classes, smoothing_over)
    if class_weight is not None:
        weight = label_weight(entries, class_weight)
        if smoothing or weight is None:  # every class has a share of its own: w_k q_k
            shares = _shares(entries, factor, mass) * _along_classes(class_weight, entries.logits)
            entries = entries._replace(soft_target=shares)
            softmax = entries.softmax(margin=margin, also=also)
            return Fidelity(softmax, softmax.label, weight)
    softmax = entries.softmax(margin=margin, also=also)
    fit = softmax.label if weight is None else softmax.label * weight  # Eq. (1)
    if smoothing:
        fit = factor * fit + mass * softmax.total  # Eq. (4)
    return Fidelity(softmax, fit, weight)


def label_weight(entries: Entries, class_weight: Tensor | None) -> Tensor | None:
    """Weight of each entry's label (N, ...); None for soft targets and without class weights."""
    if class_weight is None:
        return None
    check_floating("class_weight", class_weight)
    if class_weight.shape != (entries.num_classes,):
        raise ValueError(
            f"class_weight must have shape ({entries.num_classes},), one weight per class, "
            f"got {tuple(class_weight.shape)}"
        )
    if class_weight.requires_grad:
        raise ValueError("class_weight must not require a gradient; pass class_weight.detach()")
    if entries.soft_target is not None:
        return None
    return class_weight.to(entries.logits)[entries.safe_indices]


def _shares(entries: Entries, factor: float, mass: float) -> Tensor:
    """The smoothed target of every class, (N, C, ...)."""
    if entries.soft_target is not None:
        return factor * entries.soft_target + mass
    label = entries.safe_indices.unsqueeze(1)
    return torch.full_like(entries.logits, mass).scatter_(1, label, factor + mass)


def _along_classes(class_weight: Tensor, logits: Tensor) -> Tensor:
    return class_weight.to(logits).reshape(1, -1, *(1,) * (logits.ndim - 2))


def _check_smoothing(smoothing: float, smoothing_over: str) -> None:
    check_number("smoothing", smoothing, low=0.0, high=1.0)
    check_choice("smoothing_over", smoothing_over, ("all", "others"))
