"""A block: a part of the logits that fits in the cache, with what softmax formulas share."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from sfumato.labels._masks import flat, number_of_units, only_zero

# exp of it is 0 in every precision: keeps 0 log 0 = 0 where a class is masked by -inf.
LEAST_LOG = -1000.0


class Block:
    """A part (n, C, s) of the logits and, where wanted, of their gradient.

    What belongs to an entry has shape (n, 1, s), what belongs to a class (n, C, s). Class-sized
    tensors live in buffers that the next block overwrites: `shifted` and `exponentials` are shared
    by the terms and read only, `scratch` is free for the term that is running. Terms add to the
    gradient in any order; what every fidelity has, multiples of the probabilities, of the label and
    of 1, is summed per entry first and written once, by `close`.

    Attributes:
        logits: (n, C, s).
        target: class indices (n, 1, s), soft targets (n, C, s), or None.
        gradient: (n, C, s), to which terms add theirs, or None where only values are wanted.
        only_totals: whether values will only be summed up.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor | None,
        gradient: Tensor | None,
        buffers: list[Tensor],
        *,
        only_totals: bool = False,
    ) -> None:
        self.logits = logits
        self.target = target
        self.gradient = gradient
        self.only_totals = only_totals
        self._buffers = buffers
        self._taken = 0
        self._scratch: Tensor | None = None
        self._directions: Tensor | None = None
        self._of_probs: Tensor | None = None
        self._of_label: Tensor | None = None
        self._of_all: Tensor | None = None

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    def take(self) -> Tensor:
        """A class-sized buffer for one purpose; the same memory in the next block."""
        if self._taken == len(self._buffers):
            self._buffers.append(self.logits.new_empty(self.logits.numel()))
        flat = self._buffers[self._taken]
        self._taken += 1
        return flat.as_strided(self.logits.shape, self._buffer_strides)

    @cached_property
    def _buffer_strides(self) -> tuple[int, ...]:
        """Of a tensor without gaps, its dimensions in memory in the order of the logits'."""
        _, classes, positions = self.logits.shape
        is_channels_last = positions > 1 and self.logits.stride(1) < self.logits.stride(2)
        inner = (1, classes) if is_channels_last else (positions, 1)
        return (classes * positions, *inner)

    @property
    def scratch(self) -> Tensor:
        """A class-sized tensor to write to."""
        if self._scratch is None or self._scratch is self._directions:
            self._scratch = self.take()
        return self._scratch

    @cached_property
    def top(self) -> Tensor:
        """max_k z_k."""
        return self.logits.amax(1, keepdim=True)

    @cached_property
    def shifted(self) -> Tensor:
        """z_k - max z: 0 at the predicted class, negative elsewhere."""
        return torch.sub(self.logits, self.top, out=self.take())

    @cached_property
    def low(self) -> Tensor:
        """min_k shifted_k: minus the distance from the largest to the smallest logit."""
        return self.shifted.amin(1, keepdim=True)

    @cached_property
    def exponentials(self) -> Tensor:
        """exp(shifted); the probabilities are exponentials / normaliser."""
        return torch.exp(self.shifted, out=self.take())

    @cached_property
    def normaliser(self) -> Tensor:
        """sum_k exp(shifted_k); the top probability is 1 / normaliser."""
        return self.exponentials.sum(1, keepdim=True)

    @cached_property
    def log_normaliser(self) -> Tensor:
        """log p_k = shifted_k - log_normaliser."""
        return self.normaliser.log()

    @property
    def labels(self) -> Tensor:
        """The target, for terms that can't do without one."""
        if self.target is None:
            raise TypeError("this term needs a target")
        return self.target

    @property
    def label_distance(self) -> Tensor:
        """z_y - max z of each entry, for class indices."""
        return self.logits.gather(1, self.labels) - self.top

    @property
    def sum_of_distances(self) -> Tensor:
        """sum_k shifted_k."""
        return self.shifted.sum(1, keepdim=True)

    @cached_property
    def mean_distance(self) -> Tensor:
        """sum_k p_k shifted_k."""
        return self._products.sum(1, keepdim=True) / self.normaliser

    @cached_property
    def _products(self) -> Tensor:
        """exp(shifted) shifted, 0 for masked classes."""
        clamped: Tensor = torch.clamp(self.shifted, min=LEAST_LOG, out=self.take())
        return clamped.mul_(self.exponentials)

    @property
    def predicted(self) -> Tensor:
        """Index of the largest logit, (n, 1, s); the first of several."""
        if self.logits.device.type != "cpu":
            return self.logits.max(1, keepdim=True).indices
        index = only_zero(self.shifted, scratch=self.scratch)
        return self.logits.max(1, keepdim=True).indices if index is None else index

    def log_prob_of_label(self) -> Tensor:
        """log p_y of each entry."""
        return self.label_distance - self.log_normaliser

    def excess_beyond(self, margin: float, step: Tensor | None) -> Tensor:
        """sum_k -relu(max z - z_k - margin).

        With a negative `step` adds it to the gradient of every class beyond the margin, and takes
        their sum from the top.
        """
        if step is None:
            return self.sum_of(self._excess_of(margin))
        spread = step.expand_as(self.shifted)
        kernel = torch.ops.aten.softshrink_backward.grad_input  # the step where shifted < -margin
        raised: Tensor = kernel(spread, self.shifted, margin, grad_input=self.take())
        pull = raised.sum(1, keepdim=True)
        if not self.may_be_active(pull):
            return torch.zeros_like(pull)
        # The penalty is linear there, so that its value is a product with its gradient.
        total = (self.sum_of_products(self.shifted, raised) + margin * pull) / step
        self.add(raised)
        self.add_at_top(-pull)
        return total

    def squares_beyond(self, margin: float, slope: Tensor | None) -> Tensor:
        """sum_k relu(max z - z_k - margin)^2; adds the slope times -relu(..) to the gradient."""
        excess = self._excess_of(margin)
        squares = self.sum_of_products(excess, excess)
        if slope is not None:
            self.add(excess, slope)
        return squares

    def _excess_of(self, margin: float) -> Tensor:
        """-relu(max z - z_k - margin), in a buffer of its own."""
        # softshrink(x, m) is x + m below -m and 0 from there to m: one pass for shift and clamp.
        excess: Tensor = torch.ops.aten.softshrink.out(self.shifted, margin, out=self.take())
        return excess

    def write_probs(self, out: Tensor, weight: Tensor) -> Tensor:
        """weight * p, to stay; gives log_normaliser."""
        torch.sub(self.logits, self.top, out=out).exp_()
        normaliser = out.sum(1, keepdim=True)
        out.mul_(weight / normaliser)
        return normaliser.log_()

    def sum_of(self, buffer: Tensor) -> Tensor:
        """sum_k t_k of each entry; the mean over the entries if only totals are wanted."""
        if self.only_totals:
            return self._spread(flat(buffer).sum())
        return buffer.sum(1, keepdim=True)

    def sum_of_products(self, first: Tensor, second: Tensor) -> Tensor:
        """sum_k s_k t_k of each entry; the mean over the entries if only totals are wanted."""
        if self.only_totals:
            return self._spread(torch.dot(flat(first), flat(second)))
        return torch.mul(first, second, out=self.scratch).sum(1, keepdim=True)

    def _spread(self, total: Tensor) -> Tensor:
        return (total / self.top.numel()).expand_as(self.top)

    def ties(self, extreme: float | Tensor) -> tuple[Tensor, Tensor | None]:
        """Mask (in `scratch`) of the classes where `shifted` equals `extreme`, and their number.

        The number is None if it is 1 everywhere.
        """
        mask: Tensor = torch.eq(self.shifted, extreme, out=self.scratch)
        is_unique = number_of_units(mask) == self.top.numel()
        return mask, None if is_unique else mask.sum(1, keepdim=True)

    def may_be_active(self, excess: Tensor) -> bool:
        """False if no excess is negative; asking an accelerator would mean to wait for it."""
        return excess.device.type != "cpu" or not bool(excess.amin() >= 0)

    def add(
        self, direction: Tensor, coefficient: Tensor | None = None, *, factor: float = 1.0
    ) -> None:
        """gradient += factor * coefficient * direction; the buffer of the direction is used up."""
        if self._directions is None:
            scaled = factor if coefficient is None else coefficient * factor
            is_unit = isinstance(scaled, float) and scaled == 1.0
            self._directions = direction if is_unit else direction.mul_(scaled)
        elif coefficient is None:
            self._directions.add_(direction, alpha=factor)
        else:
            self._directions.addcmul_(direction, coefficient, value=factor)

    def add_at_top(self, coefficient: Tensor) -> None:
        """Add at the largest logit; ties share it, as they do for amax."""
        self._add_at(0.0, coefficient)

    def add_at_every_top(self, coefficient: Tensor) -> Tensor:
        """Add at each of the largest logits, if there is a gradient; gives their number."""
        mask, number = self.ties(0.0)
        if self.gradient is not None:
            self.add(mask, coefficient)
        return torch.ones_like(self.top) if number is None else number

    def _add_at(self, extreme: float | Tensor, coefficient: Tensor) -> None:
        mask, number = self.ties(extreme)
        self.add(mask, coefficient if number is None else coefficient / number)

    def add_between(self, coefficient: Tensor) -> None:
        """Add at the largest logit and subtract at the smallest; ties share it."""
        # Measured from the middle, the ends are exactly half the range away: divided by that and
        # cut to integers they are 1 and -1, all else is 0. It is two passes where masks take four.
        half = -0.5 * self.low
        signs = torch.add(self.shifted, half, out=self.scratch)
        torch.div(signs, half, rounding_mode="trunc", out=signs)
        if number_of_units(signs) == 2 * half.numel():
            self.add(signs, coefficient)
        else:
            self._add_at(0.0, coefficient)
            self._add_at(self.low, -coefficient)

    def add_probs(self, coefficient: Tensor) -> None:
        """gradient += coefficient * p."""
        self._of_probs = added(self._of_probs, coefficient)

    def add_at_label(self, coefficient: Tensor) -> None:
        """gradient[label] += coefficient."""
        self._of_label = added(self._of_label, coefficient)

    def add_distances(self, coefficient: Tensor) -> None:
        """gradient += coefficient * p * shifted, after `mean_distance` was read."""
        self.add(self._products, coefficient / self.normaliser)

    def add_everywhere(self, coefficient: Tensor) -> None:
        """gradient += coefficient, for all classes of an entry."""
        self._of_all = added(self._of_all, coefficient)

    def close(self) -> None:
        """Write the gradient, once: maps may be strided such that they don't stay in the cache."""
        if self.gradient is None:
            return
        written = self._directions
        if written is not None and self._of_label is not None:
            written.scatter_add_(1, self.labels, self._of_label.expand_as(self.labels))
        if written is None:
            written = self._of_all
        elif self._of_all is not None:
            written.add_(self._of_all)
        if self._of_probs is None:
            self.gradient.copy_(torch.zeros_like(self.top) if written is None else written)
        elif written is None:
            torch.mul(self.exponentials, self._of_probs / self.normaliser, out=self.gradient)
        else:
            coefficient = self._of_probs / self.normaliser
            torch.addcmul(written, self.exponentials, coefficient, out=self.gradient)
        if self._directions is None and self._of_label is not None:
            self.gradient.scatter_add_(1, self.labels, self._of_label.expand_as(self.labels))


def added(first: Tensor | None, second: Tensor) -> Tensor:
    """The sum, where nothing yet counts as 0."""
    return second if first is None else first + second
