"""The numbers of each softmax by PyTorch's own operations: what `softmax_summary` means.

For accelerators, installations without a compiler, torch.compile, torch.func and second
derivatives, and for losses that need the logits themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_class_indices
from sfumato._core.tracing import is_watched

# exp of it is 0 in every precision: keeps 0 log 0 = 0 where a class is masked by -inf.
LEAST_LOG = -1000.0


def valid_entries(
    target: Tensor | None, classes: int, ignore_index: int
) -> tuple[Tensor | None, Tensor | None]:
    """A target that is safe to gather with, and which entries count (None: all of them).

    Labels are looked at in eager mode on the CPU only: an accelerator's own gather catches wrong
    ones without a synchronisation.
    """
    if target is None:
        return None, None
    if not is_watched() and target.device.type == "cpu" and target.numel() > 0:
        low, high = target.aminmax()
        if low < 0 or high >= classes:
            check_class_indices("target", target, classes, ignore_index=ignore_index)
        elif not 0 <= ignore_index < classes:
            return target, None
    valid = target != ignore_index
    return torch.where(valid, target, 0), valid


class PlainSoftmax:
    """The numbers by PyTorch's own operations, each when it is first asked for: their definition.

    Args:
        logits: (N, C, ...).
        target: class indices that are safe to gather with, or None.
        soft_target: like the logits, or None.
        margin: M, one for all classes or (C,), or None.
        valid: which entries count, or None for all.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor | None = None,
        soft_target: Tensor | None = None,
        *,
        margin: float | Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        # What is ignored may hold anything, NaN included, and must not reach a gradient.
        self.logits = logits if valid is None else torch.where(valid.unsqueeze(1), logits, 0.0)
        self.target, self.soft_target = target, soft_target
        self.margin, self.valid = margin, valid
        # Not `cached_property`, whose lock torch.compile refuses in Python 3.11.
        self._log_probs: Tensor | None = None
        self._highest: Tensor | None = None

    @property
    def count(self) -> int | Tensor:
        entries = self.logits.numel() // self.logits.shape[1]
        return entries if self.valid is None else self.valid.sum()

    def _counted(self, numbers: Tensor) -> Tensor:
        return numbers if self.valid is None else torch.where(self.valid, numbers, 0.0)

    @property
    def log_probs(self) -> Tensor:
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(1)
        return self._log_probs

    @property
    def label(self) -> Tensor:
        if self.soft_target is not None:
            # A class that can't be, log p = -inf, costs nothing where its target is 0.
            impossible = (self.soft_target == 0) & (self.log_probs == -torch.inf)
            possible = self.log_probs.masked_fill(impossible, 0.0)
            return self._counted((self.soft_target * possible).sum(1))
        place = self._label_indices.unsqueeze(1)
        return self._counted(self.log_probs.gather(1, place).squeeze(1))

    @property
    def _label_indices(self) -> Tensor:
        if self.target is None:
            raise TypeError("there is no label without a target")
        return self.target

    @property
    def top(self) -> Tensor:
        return self._counted(self.log_probs.amax(1))

    @property
    def total(self) -> Tensor:
        return self._counted(self.log_probs.sum(1))

    @property
    def entropy(self) -> Tensor:
        products = self.log_probs.exp() * self.log_probs.clamp(min=LEAST_LOG)
        return self._counted(products.sum(1))

    @property
    def _is_top(self) -> Tensor:
        return self.logits == self.logits.amax(1, keepdim=True)

    @property
    def highest(self) -> Tensor:
        if self._highest is None:
            self._highest = _shared_value(self.logits, self._is_top)
        return self._highest

    @property
    def top_ties(self) -> Tensor:
        return self._counted(self._is_top.sum(1).to(self.logits.dtype))

    @property
    def range(self) -> Tensor:
        distance = self.logits.detach() - self.highest.detach().unsqueeze(1)
        is_low = distance == distance.amin(1, keepdim=True)
        return self.highest - _shared_value(self.logits, is_low)

    @property
    def _beyond(self) -> Tensor:
        if self.margin is None:
            raise TypeError("these numbers need a margin")
        margin = self.margin
        if isinstance(margin, Tensor):
            margin = margin.reshape(-1, *(1,) * (self.logits.ndim - 2))
        return self.highest.detach().unsqueeze(1) - self.logits - margin

    @property
    def excess(self) -> Tensor:
        return self._counted(self._beyond.relu().sum(1))

    @property
    def squares(self) -> Tensor:
        return self._counted(self._beyond.relu().square().sum(1))

    @property
    def number(self) -> Tensor:
        return self._counted((self._beyond > 0).sum(1).to(self.logits.dtype))

    @property
    def brier(self) -> Tensor:
        probs = self.log_probs.exp()
        if self.soft_target is not None:
            apart = probs - self.soft_target
        else:
            # Not 1 - p, which has lost the last places of a sure prediction.
            miss = torch.expm1(self.log_probs.clamp(min=LEAST_LOG))
            apart = torch.where(_is_class(self._label_indices, probs), miss, probs)
        # Nothing is added, and no slope, as the sum is always 1. But the slope of a sure class is
        # what the others add up to, and would be lost beside its own share in float32.
        total = probs.sum(1)
        at_top = apart.detach().gather(1, probs.argmax(1, keepdim=True)).squeeze(1)
        return self._counted(apart.square().sum(1) - 2 * at_top * (total - total.detach()))

    @property
    def following(self) -> Tensor:
        own = self.logits.detach().gather(1, self._label_indices.unsqueeze(1))
        behind = torch.where(self.logits < own, self.logits, -torch.inf).amax(1)
        is_there = behind.detach() > -torch.inf
        # Where there is none the difference may be anything, infinity included.
        log_prob = torch.where(is_there, behind, 0.0) - self.logits.logsumexp(1)
        return self._counted(torch.where(is_there, log_prob, LEAST_LOG))

    @property
    def distance(self) -> Tensor:
        target = self._label_indices if self.soft_target is None else self.soft_target
        shares = shares_around(target, self.valid, self.logits)
        return self._counted((self.logits - shares).abs().sum(1))

    @property
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)

    @property
    def totals(self) -> Tensor:
        probs = self.log_probs.exp()
        if self.valid is not None:
            probs = probs * self.valid.unsqueeze(1)
        return over_entries(probs)


def soft_targets_of(table: Tensor, target: Tensor | None) -> Tensor:
    """(N, C, ...), the row of the table (C, C) for each label (N, ...)."""
    if target is None:
        raise TypeError("there is no row of the table without a target")
    return table[target].movedim(-1, 1)


def shares_around(target: Tensor, valid: Tensor | None, like: Tensor) -> Tensor:
    """Shares of the classes in the neighbourhood of each entry, 3 wide in every dimension.

    Args:
        target: class indices (N, ...), 0 where they are ignored, or soft targets (N, C, ...).
        valid: which of them count, or None for all; what lies outside of the map doesn't either.
        like: (N, C, ...), of the type and on the device of which they should be.
    """
    shares = target if target.is_floating_point() else _is_class(target, like).to(like.dtype)
    counted = shares.new_ones((len(shares), 1, *shares.shape[2:]))
    if valid is not None:
        counted = valid.unsqueeze(1).to(shares)
        shares = shares * counted
    return _sum_around(shares) / _sum_around(counted).clamp(min=1)


def _sum_around(values: Tensor) -> Tensor:
    for dimension in range(2, values.ndim):
        size = values.shape[dimension]
        if size > 1:
            edge = torch.zeros_like(values.narrow(dimension, 0, 1))
            before = torch.cat([edge, values.narrow(dimension, 0, size - 1)], dimension)
            after = torch.cat([values.narrow(dimension, 1, size - 1), edge], dimension)
            values = values + before + after
    return values


def _is_class(target: Tensor, like: Tensor) -> Tensor:
    """(N, C, ...), whether a class is the label of its entry."""
    classes = torch.arange(like.shape[1], device=like.device)
    return target.unsqueeze(1) == classes.reshape(-1, *(1,) * (like.ndim - 2))


def over_entries(values: Tensor) -> Tensor:
    """Sums of (N, C, ...) over everything but the classes, (C,)."""
    return values.sum([0, *range(2, values.ndim)])


def _shared_value(logits: Tensor, is_chosen: Tensor) -> Tensor:
    """The value of the chosen classes, which share its derivative.

    As `amax` but without a product with the mask, which would make an infinite derivative NaN.
    """
    chosen = torch.where(is_chosen, logits, 0.0).sum(1)
    # A NaN is equal to nothing, and must not be lost.
    return torch.where(is_chosen.any(1), chosen / is_chosen.sum(1).clamp(min=1), torch.nan)
