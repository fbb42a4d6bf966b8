"""Cross entropy with hard or soft targets, label smoothing and class weights."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_floating, check_number
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    arguments_of,
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
        # With one mean for both a single reduction is enough.
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
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy, with label smoothing if wanted.

    Smoothed labels can be reached by finite logits, so the network isn't pushed to ever higher
    confidence; well-calibrated predictions are pulled down as well.

        L = -sum_k w_k q_k log p_k,   q = smooth_labels(target, smoothing, over=smoothing_over)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        smoothing: amount a in [0, 1]; MbLS and ACLS compare with 0.05.
        smoothing_over: spread it over "all" C classes or over the C - 1 "others".
        class_weight: (C,) w; the mean over class indices divides by the sum of the labels' weights,
            as `F.cross_entropy` does.
        class_dim, ignore_index: dimension of the classes in `logits`; class index to skip.
        reduction: "mean" of the entries that are not skipped, "sum" or "none".

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
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    fidelity = cross_entropy_fidelity(
        entries, smoothing=smoothing, smoothing_over=smoothing_over, class_weight=class_weight
    )
    return fidelity.alone(reduction)


class CrossEntropyLoss(LossModule):
    """Cross entropy with label smoothing as a module; see `cross_entropy_loss`.

    torch's names `weight` and `label_smoothing` are understood, too.
    """

    synonyms: ClassVar[tuple[str, ...]] = ("weight", "label_smoothing")
    is_of_single_entries: ClassVar[bool] = True
    is_negative_log_likelihood: ClassVar[bool] = True

    @arguments_of(cross_entropy_loss)
    def __init__(self) -> None: ...


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
    check_number("smoothing", smoothing, low=0.0, high=1.0)
    check_choice("smoothing_over", smoothing_over, ("all", "others"))
    weight = None
    factor, mass = 1.0, 0.0
    if smoothing:
        factor, mass = smoothing_masses(smoothing, entries.num_classes, smoothing_over)
    if class_weight is not None:
        weight = label_weight(entries, class_weight)
        if smoothing or weight is None:  # every class has a share of its own: w_k q_k
            along = class_weight.to(entries.like).view(-1, *[1] * (entries.given.ndim - 2))
            entries = entries._replace(soft_target=_shares(entries, factor, mass) * along)
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
    # The kernels give no gradient for it; better an error than a weight that never moves.
    if class_weight.requires_grad:
        raise ValueError("class_weight must not require a gradient; pass class_weight.detach()")
    if entries.soft_target is not None:
        return None
    return class_weight.to(entries.like)[entries.safe_indices]


def _shares(entries: Entries, factor: float, mass: float) -> Tensor:
    """The smoothed target of every class, (N, C, ...)."""
    if entries.soft_target is not None:
        return factor * entries.soft_target + mass
    label = entries.safe_indices.unsqueeze(1)
    return torch.full_like(entries.given, mass, dtype=entries.like.dtype).scatter_(
        1, label, factor + mass
    )
