"""Cross entropy with hard or soft targets, label smoothing and class weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato._checks import check_choice, check_floating, check_number
from sfumato.labels._block import Block
from sfumato.labels._entries import Entries, Reduction, check_reduction, prepare_entries
from sfumato.labels._fused import Weighted, evaluate_terms
from sfumato.labels.targets import SmoothingOver, smoothing_masses


@dataclass(frozen=True)
class CrossEntropyTerm:
    """-sum_k w_k q_k log p_k with q the smoothed target; the fidelity of most losses.

    Attributes:
        smoothing: amount.
        over: "all" classes or the "others".
        class_weight: w, (C,), or None for 1.
    """

    smoothing: float = 0.0
    over: SmoothingOver = "all"
    class_weight: Tensor | None = None

    @property
    def needs_only_summary(self) -> bool:
        return self.class_weight is None

    def values(self, logits: Tensor, target: Tensor | None) -> Tensor:
        if target is None:
            raise TypeError("cross entropy needs a target")
        factor, mass = smoothing_masses(self.smoothing, logits.shape[1], self.over)
        surprise = -torch.log_softmax(logits, 1)
        if self.class_weight is not None:
            surprise = surprise * _along_classes(self.class_weight, logits)
        if target.is_floating_point():
            values = factor * (surprise * target).sum(1)  # Eq. (1)
        else:
            values = factor * surprise.gather(1, target.unsqueeze(1)).squeeze(1)
        return values + mass * surprise.sum(1) if self.smoothing else values  # Eq. (4)

    def accumulate(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        if self.class_weight is not None or block.labels.is_floating_point():
            return self._accumulate_weights(block, scale)
        factor, mass = smoothing_masses(self.smoothing, block.num_classes, self.over)
        if block.gradient is not None:
            block.add_probs(scale)  # Eq. (5): p - q
            block.add_at_label(-factor * scale)
            if self.smoothing:
                block.add_everywhere(-mass * scale)
        logit = block.label_distance
        if self.smoothing:
            logit = factor * logit + mass * block.sum_of_distances
        return block.normaliser, logit

    def _accumulate_weights(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        """The general case, with a weight t_k = w_k q_k for every class."""
        factor, mass = smoothing_masses(self.smoothing, block.num_classes, self.over)
        weights = block.take()
        if block.labels.is_floating_point():
            torch.mul(block.labels, factor, out=weights)
        else:
            weights.zero_().scatter_(1, block.labels, factor)
        if self.smoothing:
            weights.add_(mass)
        if self.class_weight is not None:
            weights.mul_(_along_classes(self.class_weight, block.logits))
        total = weights.sum(1, keepdim=True)
        logit = torch.mul(weights, block.shifted, out=block.scratch).sum(1, keepdim=True)
        if block.gradient is not None:
            block.add_probs(scale * total)
            block.add(weights, scale, factor=-1.0)
        return block.normaliser, logit, total

    def finish(self, statistics: Sequence[Tensor], num_classes: int) -> Tensor:
        normaliser, logit, *total = statistics
        log_normaliser = normaliser.log()
        return (total[0] * log_normaliser if total else log_normaliser) - logit


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
    fidelity = cross_entropy_term(
        entries, smoothing=smoothing, smoothing_over=smoothing_over, class_weight=class_weight
    )
    return evaluate_terms(entries, [fidelity], reduction)


class CrossEntropyLoss(nn.Module):
    """`cross_entropy_loss` as a module."""

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


def cross_entropy_term(
    entries: Entries,
    *,
    smoothing: float = 0.0,
    smoothing_over: SmoothingOver = "all",
    class_weight: Tensor | None = None,
) -> Weighted:
    """The cross-entropy term of a loss, with the denominator that its class weights ask for."""
    _check_smoothing(smoothing, smoothing_over)
    term = CrossEntropyTerm(smoothing, smoothing_over, class_weight)
    return Weighted(term, entry_weight=label_weight(entries, class_weight))


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
    return None if entries.is_soft else class_weight.to(entries.logits)[entries.indices]


def _along_classes(class_weight: Tensor, logits: Tensor) -> Tensor:
    return class_weight.to(logits).reshape(1, -1, *(1,) * (logits.ndim - 2))


def _check_smoothing(smoothing: float, smoothing_over: str) -> None:
    check_number("smoothing", smoothing, low=0.0, high=1.0)
    check_choice("smoothing_over", smoothing_over, ("all", "others"))
