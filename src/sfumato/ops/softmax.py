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

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato._core.checks import check_class_indices
from sfumato._core.tracing import is_watched
from sfumato.ops.library import has_values
from sfumato.ops.plain_softmax import PlainSoftmax, soft_targets_of, valid_entries
from sfumato.ops.softmax_kernel import (
    NOTHING_IGNORED,
    Also,
    Pass,
    Reading,
    plan_pass,
    read_numbers,
    write_gradient,
)


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
        brier: sum_k (q_k - p_k)^2, q the label or soft target.
        following: log p of the class that follows the label: the largest below it, whose ties share
            its derivative; -1000 where there is none.
        distance: sum_k |z_k - t_k|, t_k the share of class k among the labels around the entry
            (`shares_around`).
        predicted: the first class at the top; a constant.
        totals: (C,) sum of p over the valid entries.
        valid: (N, ...) where entries are not ignored; None where none is.
        count: how many are not: an int, or a tensor where that can't be known yet.

    `range` to `number` need a margin; `brier` to `totals` must be asked for.
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
    def brier(self) -> Tensor: ...
    @property
    def following(self) -> Tensor: ...
    @property
    def distance(self) -> Tensor: ...
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
    table: Tensor | None = None,
    margin: float | Tensor | None = None,
    ignore_index: int = NOTHING_IGNORED,
    also: Also | None = None,
    only: tuple[str, ...] | None = None,
    wants_predicted: bool = False,
    wants_totals: bool = False,
) -> SoftmaxSummary:
    """The numbers of each softmax that losses are functions of, differentiable by the logits.

    Args:
        logits: (N, C, ...) in float32 or float64.
        target: class indices (N, ...) int64, or None.
        soft_target: q, shaped like `logits`, for `label`; the class indices then only say which
            entries are ignored.
        table: (C, C), whose row y is the soft target of the entries with label y: as if
            `soft_target` had been gathered from it.
        margin: M, for `range` to `number`; (C,) where each class has its own.
        ignore_index: label of entries to skip.
        also: which of `brier`, `following` and `distance` will be read; not beside a margin.
        only: the numbers with a derivative that will be read: each costs autograd a few
            microseconds. None for all of them.
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
    if not _needs_autograd(logits, soft_target, table, margin):
        plan = plan_pass(logits, target, soft_target, table, margin, ignore_index, also)
    if plan is None:
        target, valid = valid_entries(target, logits.shape[1], ignore_index)
        soft_target = soft_target if table is None else soft_targets_of(table, target)
        return PlainSoftmax(logits, target, soft_target, margin=margin, valid=valid)
    reading = read_numbers(
        plan, only=only, wants_predicted=wants_predicted, wants_totals=wants_totals
    )
    if reading.strange and target is not None:
        check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
    return ReadSoftmax(plan, reading)


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
    range: Tensor
    excess: Tensor
    squares: Tensor
    brier: Tensor
    following: Tensor
    distance: Tensor
    predicted: Tensor
    totals: Tensor

    def __init__(self, plan: Pass, reading: Reading) -> None:
        self.count = reading.valid
        self.valid: Tensor | None = None
        self._reading = reading
        if plan.target is not None and reading.valid < plan.target.numel():
            self.valid = plan.target != plan.ignore_index
        if torch.is_grad_enabled() and plan.logits.requires_grad:
            outputs = _WithGradient.apply(plan.logits, plan, reading)
        else:
            outputs = reading.outputs()
        self.__dict__.update(zip(reading.names, outputs, strict=False))
        if reading.totals is not None:
            self.totals = outputs[-1]
        if reading.predicted is not None:
            self.predicted = reading.predicted

    @property
    def top_ties(self) -> Tensor:
        return self._reading.of("top_ties")

    @property
    def number(self) -> Tensor:
        return self._reading.of("number")


class _WithGradient(torch.autograd.Function):
    """Hands out the numbers of a reading and, backwards, writes the gradient in one pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, plan: Pass, reading: Reading) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*plan.tensors, reading.numbers)
        ctx.options, ctx.names = plan.options, reading.names
        return reading.outputs()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None, None]:
        *tensors, numbers = ctx.saved_tensors
        plan = Pass(*tensors, *ctx.options)
        by_name = dict(zip(ctx.names, upstream, strict=False))
        direction = upstream[-1] if len(upstream) > len(by_name) else None
        given = [each for each in upstream if each is not None]
        if torch.is_grad_enabled() or is_watched() or not all(map(has_values, given)):
            return _again(plan, by_name, direction), None, None
        return write_gradient(plan, numbers, by_name, direction), None, None


def _again(plan: Pass, upstream: dict[str, Tensor | None], direction: Tensor | None) -> Tensor:
    """The same gradient by autograd, for second derivatives and batches of gradients."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        target, valid = valid_entries(plan.target, plan.shape.classes, plan.ignore_index)
        soft = plan.soft_target if plan.table is None else soft_targets_of(plan.table, target)
        margin = plan.margin if plan.margins is None else plan.margins
        plain = PlainSoftmax(plan.logits, target, soft, margin=margin, valid=valid)
        wanted = {**upstream, "totals": direction}
        pairs = [(getattr(plain, name), g) for name, g in wanted.items() if g is not None]
    outputs, gradients = zip(*pairs, strict=True)
    (result,) = torch.autograd.grad(outputs, plan.logits, gradients, create_graph=create_graph)
    return result


def _needs_autograd(logits: Tensor, *constants: Tensor | float | None) -> bool:
    """Whether more is asked than a gradient with respect to the logits."""
    for each in constants:
        if isinstance(each, Tensor) and each.requires_grad:
            return True
    return forward_ad.unpack_dual(logits).tangent is not None
