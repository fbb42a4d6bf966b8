"""A block whose numbers and gradient come from the compiled kernels, in one pass each."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from sfumato._native.softmax import (
    Beyond,
    Coefficients,
    Summary,
    has_layout_of,
    softmax_gradient,
    softmax_summary,
)
from sfumato.labels._block import Block, added


class NativeBlock(Block):
    """A block for terms that need no class-sized tensor, only numbers of each entry.

    Attributes:
        margin: of the terms that have one, or None.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor,
        gradient: Tensor | None,
        *,
        margin: float | None = None,
        wants_predicted: bool = False,
    ) -> None:
        super().__init__(logits, target.contiguous(), gradient, [])
        self.margin = margin
        self._predicted = torch.empty_like(self.labels) if wants_predicted else None
        self._of_distances: Tensor | None = None
        self._at_top: Tensor | None = None
        self._at_low: Tensor | None = None
        self._beyond: Tensor | None = None
        self._excess: Tensor | None = None

    @cached_property
    def summary(self) -> Summary:
        """The first pass."""
        return softmax_summary(self.logits, self.labels, self.margin, predicted=self._predicted)

    @property
    def _beyond_margin(self) -> Beyond:
        if self.summary.beyond is None:
            raise RuntimeError("a block without a margin")
        return self.summary.beyond

    @cached_property
    def top(self) -> Tensor:
        return self.summary.top

    @cached_property
    def low(self) -> Tensor:
        return self.summary.low

    @cached_property
    def normaliser(self) -> Tensor:
        return self.summary.normaliser

    @property
    def label_distance(self) -> Tensor:
        return self.summary.label

    @property
    def sum_of_distances(self) -> Tensor:
        return self.summary.sum

    @property
    def mean_distance(self) -> Tensor:
        return self.summary.entropy / self.summary.normaliser

    @property
    def predicted(self) -> Tensor:
        if self._predicted is None:
            raise RuntimeError("a block without wants_predicted")
        _ = self.summary  # fills it
        return self._predicted

    def write_probs(self, out: Tensor, weight: Tensor) -> Tensor:
        if not has_layout_of(out, self.logits):
            return super().write_probs(out, weight)
        scaled = Coefficients(factor=weight / self.normaliser)
        softmax_gradient(self.logits, self.labels, self.top, scaled, out=out)
        return self.log_normaliser

    def excess_beyond(self, margin: float, step: Tensor | None) -> Tensor:
        if step is not None:
            self._beyond = added(self._beyond, step)
            self.add_at_top(-step * self._beyond_margin.number)
        return self._beyond_margin.excess

    def squares_beyond(self, margin: float, slope: Tensor | None) -> Tensor:
        if slope is not None:
            self._excess = added(self._excess, slope)
        return self._beyond_margin.squares

    def add_distances(self, coefficient: Tensor) -> None:
        self._of_distances = added(self._of_distances, coefficient)

    def add_at_top(self, coefficient: Tensor) -> None:
        self._at_top = added(self._at_top, coefficient / self._beyond_margin.top_ties)

    def add_at_every_top(self, coefficient: Tensor) -> Tensor:
        self._at_top = added(self._at_top, coefficient)
        return self._beyond_margin.top_ties

    def add_between(self, coefficient: Tensor) -> None:
        self.add_at_top(coefficient)
        self._at_low = added(self._at_low, -coefficient / self._beyond_margin.low_ties)

    def close(self) -> None:
        """The second pass."""
        if self.gradient is None:
            return
        of_probs, of_distances = (
            None if value is None else value / self.normaliser
            for value in (self._of_probs, self._of_distances)
        )
        coefficients = Coefficients(
            factor=of_probs,
            entropic=of_distances,
            shift=self._of_all,
            at_label=self._of_label,
            at_top=self._at_top,
            at_low=self._at_low,
            beyond=self._beyond,
            excess=self._excess,
        )
        softmax_gradient(
            self.logits,
            self.labels,
            self.top,
            coefficients,
            low=self.low,
            margin=self.margin,
            out=self.gradient,
        )
