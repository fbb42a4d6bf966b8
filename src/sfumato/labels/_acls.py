"""The equations of ACLS, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.labels._block import Block
from sfumato.labels._entries import Entries

Form = Literal["paper", "gradient", "released"]
Smoothing = Literal["adaptive", "constant"]
Condition = Literal["margin", "always", "ranking"]


@dataclass(frozen=True)
class ACLSTerm:
    """The regulariser of `acls_penalty`.

    Attributes:
        margin: M.
        predicted_weight: lambda_1.
        other_weight: lambda_2.
        form: how the predicted class enters.
        smoothing: squares ("adaptive") or first powers ("constant") of the excess.
        conditional: whether only a positive excess counts.
    """

    margin: float
    predicted_weight: float
    other_weight: float
    form: Form = "paper"
    smoothing: Smoothing = "adaptive"
    conditional: bool = True
    needs_only_summary: ClassVar[bool] = True

    @property
    def is_fused(self) -> bool:
        """The ablations run on autograd; only the method itself is worth a derivative by hand."""
        return self.smoothing == "adaptive" and self.conditional

    @property
    def _half(self) -> float:
        """Eq. (12) is the derivative of half the squares of Eq. (13)."""
        return 0.5 if self.form == "gradient" and self.smoothing == "adaptive" else 1.0

    def values(self, logits: Tensor, target: Tensor | None) -> Tensor:
        top = logits.amax(1, keepdim=True)
        others = top.detach() - logits - self.margin
        if self.form == "released":
            predicted = top - self.margin
        else:
            low = logits.amin(1, keepdim=True)
            predicted = top - (low.detach() if self.form == "gradient" else low) - self.margin
        if self.conditional:
            predicted, others = predicted.relu(), others.relu()  # Eq. (11)
        else:
            # Without the condition the predicted class has to be left out by hand.
            others = others.scatter(1, logits.argmax(1, keepdim=True), 0.0)
        if self.smoothing == "adaptive":
            predicted, others = predicted.square(), others.square()  # Eq. (13)
        if self.form == "released":
            predicted = predicted * (logits == top).sum(1, keepdim=True)
        other_part = others.sum(1) * (self.other_weight / (logits.shape[1] - 1))
        return self._half * (self.predicted_weight * predicted.squeeze(1) + other_part)

    def accumulate(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        reach = functional.softshrink(block.low, self.margin)  # minus the largest excess
        squares = torch.zeros_like(reach)
        has_gradient = block.gradient is not None
        is_active = block.may_be_active(reach)
        if is_active and self.other_weight:
            factor = 2.0 * self._half * self.other_weight / (block.num_classes - 1)
            slope = scale * factor if has_gradient else None  # Eq. (12), other classes
            squares = block.squares_beyond(self.margin, slope)
        if self.form == "released":
            slope = 2.0 * self.predicted_weight * scale * torch.relu(block.top - self.margin)
            return squares, block.top, block.add_at_every_top(slope)
        if is_active and self.predicted_weight and has_gradient:
            factor = -2.0 * self._half * self.predicted_weight  # Eq. (12), predicted class
            add = block.add_between if self.form == "paper" else block.add_at_top
            add(reach * scale * factor)
        return squares, reach

    def finish(self, statistics: Sequence[Tensor], num_classes: int) -> Tensor:
        squares, extreme, *ties = statistics
        others = self.other_weight / (num_classes - 1) * squares
        predicted = extreme.square()
        if self.form == "released":
            predicted = ties[0] * torch.relu(extreme - self.margin).square()
        return self._half * (self.predicted_weight * predicted + others)


def ranking_condition(entries: Entries, correctness: Tensor) -> Tensor:
    """1 where confidence and correctness order an entry and the next valid one differently, else 0.

    H(n, m) (p_n - p_m) < 0 with H(n, m) the difference in correctness; the last valid entry is
    compared with the first.
    """
    with torch.no_grad():
        confidence = torch.softmax(entries.logits, 1).amax(1).flatten()
        history = correctness.to(confidence).flatten()
        valid = entries.valid.flatten()
        # A stable sort brings the valid entries to the front without changing their order.
        order = (~valid).byte().argsort(stable=True)
        place = torch.arange(len(order), device=order.device)
        following = order[torch.where(place + 1 < valid.sum(), place + 1, 0)]
        lead = history[order] - history[following]
        gap = confidence[order] - confidence[following]
        condition = (lead * gap < 0).to(confidence)  # supplement Eq. (21)
        return torch.zeros_like(condition).scatter(0, order, condition).reshape(entries.valid.shape)
