"""One differentiable operation under the losses: a handful of numbers of each softmax.

A loss of single entries is its equation on these numbers, differentiated by stock autograd:

    softmax = softmax_summary(logits, target, margin=10.0)
    values = -softmax.label + 0.1 * softmax.excess  # one number per entry

Where the compiled kernels can go, one pass over the logits reads the numbers and one writes the
gradient, and nothing of the logits' size is kept in between. Elsewhere (accelerators,
torch.compile, torch.func, second derivatives, no compiler) `PlainSoftmax` is the same operation in
PyTorch's own.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato._core.checks import check_class_indices
from sfumato.ops.library import has_values, is_watched
from sfumato.ops.softmax_kernel import (
    NOTHING_IGNORED,
    NUMBERS,
    Pass,
    Reading,
    plan_pass,
    read_numbers,
    write_gradient,
)

# exp of it is 0 in every precision: keeps 0 log 0 = 0 where a class is masked by -inf.
LEAST_LOG = -1000.0


class SoftmaxSummary(Protocol):
    """Numbers of each entry, p the softmax of its logits z; (N, ...) each, 0 where ignored.

    So an ignored entry looks like a certain prediction that is right.

    Attributes:
        label: log p of the label, or sum_k q_k log p_k of a soft target q.
        top: log p of the predicted class.
        total: sum_k log p_k.
        entropy: sum_k p_k log p_k, minus the entropy.
        highest: max_k z_k.
        top_ties: how many classes are there; a constant.
        range: max_k z_k - min_k z_k.
        excess: how far classes are below the top beyond the margin M: sum_k relu(max z - z_k - M),
            the top held constant.
        squares: the same sum of relu(...)^2.
        number: how many classes are beyond the margin; a constant.
        predicted: the first class at the top; a constant.
        totals: (C,) sum of p over the valid entries.
        valid: (N, ...) where entries are not ignored; None where none is.
        count: how many are not: an int, or a tensor where that can't be known yet.

    `range` to `number` need a margin; `predicted` and `totals` must be asked for.
    """

    @property
    def label(self) -> Tensor: ...
    @property
    def top(self) -> Tensor: ...
    @property
    def total(self) -> Tensor: ...
    @property
    def entropy(self) -> Tensor: ...
    @property
    def highest(self) -> Tensor: ...
    @property
    def top_ties(self) -> Tensor: ...
    @property
    def range(self) -> Tensor: ...
    @property
    def excess(self) -> Tensor: ...
    @property
    def squares(self) -> Tensor: ...
    @property
    def number(self) -> Tensor: ...
    @property
    def predicted(self) -> Tensor: ...
    @property
    def totals(self) -> Tensor: ...
    @property
    def valid(self) -> Tensor | None: ...
    @property
    def count(self) -> int | Tensor: ...


def softmax_summary(
    logits: Tensor,
    target: Tensor | None = None,
    soft_target: Tensor | None = None,
    *,
    margin: float | None = None,
    ignore_index: int = NOTHING_IGNORED,
    wants_predicted: bool = False,
    wants_totals: bool = False,
) -> SoftmaxSummary:
    """The numbers of each softmax that losses are functions of, differentiable by the logits.

    Args:
        logits: (N, C, ...) in float32 or float64.
        target: class indices (N, ...) int64, or None.
        soft_target: q, shaped like `logits`, for `label`; the class indices then only say which
            entries are ignored.
        margin: M, for `range` to `number`.
        ignore_index: label of entries to skip.
        wants_predicted: whether `predicted` will be read.
        wants_totals: whether `totals` will be read.

    Raises:
        ValueError: a label outside [0, C) that isn't ignored (looked at on the CPU only).

    Example:
        >>> softmax = softmax_summary(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        >>> softmax.label, softmax.entropy
        (tensor([-0.1698]), tensor([-0.5243]))
    """
    plan = None
    if not _needs_autograd(logits, soft_target):
        options: Any = {"margin": margin, "ignore_index": ignore_index}
        plan = plan_pass(logits, target, soft_target, **options)
    if plan is None:
        target, valid = valid_entries(target, logits.shape[1], ignore_index)
        return PlainSoftmax(logits, target, soft_target, margin=margin, valid=valid)
    reading = read_numbers(plan, wants_predicted=wants_predicted, wants_totals=wants_totals)
    if reading.strange and target is not None:
        check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
    return ReadSoftmax(plan, reading)


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
        margin: M, or None.
        valid: which entries count, or None for all.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor | None = None,
        soft_target: Tensor | None = None,
        *,
        margin: float | None = None,
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
        if self.target is None:
            raise TypeError("there is no label without a target")
        return self._counted(self.log_probs.gather(1, self.target.unsqueeze(1)).squeeze(1))

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
        return self.highest.detach().unsqueeze(1) - self.logits - self.margin

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
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)

    @property
    def totals(self) -> Tensor:
        probs = self.log_probs.exp()
        if self.valid is not None:
            probs = probs * self.valid.unsqueeze(1)
        return over_entries(probs)


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


class ReadSoftmax:
    """The numbers as the kernel read them, with its second pass behind them.

    Args:
        plan: what was passed over.
        reading: what was found there.
    """

    label: Tensor
    top: Tensor
    total: Tensor
    entropy: Tensor
    highest: Tensor
    top_ties: Tensor
    range: Tensor
    excess: Tensor
    squares: Tensor
    number: Tensor
    predicted: Tensor
    totals: Tensor

    def __init__(self, plan: Pass, reading: Reading) -> None:
        self.count = reading.valid
        self._plan = plan
        if torch.is_grad_enabled() and plan.logits.requires_grad:
            outputs = _WithGradient.apply(plan.logits, plan, reading)
        else:
            outputs = reading.outputs()
        for name, values in zip(NUMBERS, outputs, strict=False):
            setattr(self, name, values)
        if reading.totals is not None:
            self.totals = outputs[-1]
        if reading.predicted is not None:
            self.predicted = reading.predicted

    @cached_property
    def valid(self) -> Tensor | None:
        target = self._plan.target
        if target is None or self.count == target.numel():
            return None
        return target != self._plan.ignore_index


_CONSTANT = ("top_ties", "normaliser", "number", "low_ties", "mass")


class _WithGradient(torch.autograd.Function):
    """Hands out the numbers of a reading and, backwards, writes the gradient in one pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, plan: Pass, reading: Reading) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, plan.target, plan.soft_target, reading.numbers)
        ctx.options = (plan.shape, plan.margin, plan.ignore_index)
        ctx.has_totals = reading.totals is not None
        outputs, names = reading.outputs(), NUMBERS[: reading.numbers.shape[0]]
        named = zip(names, outputs, strict=False)  # the totals are the last, and no number
        ctx.mark_non_differentiable(*(each for name, each in named if name in _CONSTANT))
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, target, soft_target, numbers = ctx.saved_tensors
        plan = Pass(logits, target, soft_target, *ctx.options)
        direction = upstream[-1] if ctx.has_totals else None
        by_name = dict(zip(NUMBERS[: numbers.shape[0]], upstream, strict=False))
        given = [each for each in upstream if each is not None]
        if torch.is_grad_enabled() or is_watched() or not all(map(has_values, given)):
            return _again(plan, by_name, direction), None, None
        return write_gradient(plan, numbers, by_name, direction), None, None


def _again(plan: Pass, upstream: dict[str, Tensor | None], direction: Tensor | None) -> Tensor:
    """The same gradient by autograd, for second derivatives and batches of gradients."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        target, valid = valid_entries(plan.target, plan.shape.classes, plan.ignore_index)
        plain = PlainSoftmax(plan.logits, target, plan.soft_target, margin=plan.margin, valid=valid)
        wanted = {**upstream, "totals": direction}
        pairs = [(getattr(plain, name), g) for name, g in wanted.items() if g is not None]
    outputs, gradients = zip(*pairs, strict=True)
    (result,) = torch.autograd.grad(outputs, plan.logits, gradients, create_graph=create_graph)
    return result


def _needs_autograd(logits: Tensor, soft_target: Tensor | None) -> bool:
    """Whether more is asked than a gradient with respect to the logits."""
    target_is_learned = soft_target is not None and soft_target.requires_grad
    return target_is_learned or forward_ad.unpack_dual(logits).tangent is not None
