"""Value and gradient of a loss in one pass over the logits, block by block in the cache.

Stock autograd walks all logits once per elementwise operation and keeps several tensors of their
size. Here a loss is a sum of *terms*. A term states its equation twice: `values` is the equation,
differentiable by autograd, used under torch.compile and torch.func and for second derivatives;
`accumulate` adds its derivative for one block and returns what the value needs, and `finish` makes
the values of all blocks at once. One pass reads the logits and writes their gradient, and backward
hands it out. A term looks like

    class MeanSquare:  # mean over classes of z_k^2
        def values(self, logits, target):
            return logits.square().mean(1)

        def accumulate(self, block, scale):
            height = block.take().copy_(block.logits)
            squares = block.sum_of_products(height, height)
            if block.gradient is not None:
                block.add(height, scale, factor=2 / block.num_classes)
            return (squares,)

        def finish(self, statistics, num_classes):
            return statistics[0] / num_classes

and a loss is `evaluate_terms(entries, [Weighted(CrossEntropyTerm()), Weighted(MeanSquare(), 0.1)],
reduction)`. A term that couples entries sweeps its statistic first, over `blocks(...)` without a
gradient, and is then a term with constant coefficients: |x| = sign(x) x, and a function G of the
confidences has the gradient of sum_n c_n p_n where c_n = dG/dp_n is held constant.

A term that touches no class-sized tensor itself, only numbers and `add_...` of the block, says so
with `needs_only_summary = True` (its margin, if it has one, is its attribute `margin`): where there
are compiled kernels (`sfumato._native`) it runs on them, with two passes over the logits in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato._native.softmax import as_maps
from sfumato.labels._block import Block
from sfumato.labels._blocks import blocks, cut, has_kernels, native_blocks
from sfumato.labels._entries import Entries, Reduction, full_precision, is_traced, mean_denominator


class Term(Protocol):
    """One summand of a loss, a function of each entry's logits and target."""

    def values(self, logits: Tensor, target: Tensor | None) -> Tensor:
        """The equation: (N, C, ...) logits to one differentiable value per entry, (N, ...)."""

    def accumulate(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        """Statistics (n, 1, s) of a block; adds scale (n, 1, s) times the gradient if wanted."""

    def finish(self, statistics: Sequence[Tensor], num_classes: int) -> Tensor:
        """Values of entries from their statistics, all of one shape."""


class Weighted(NamedTuple):
    """A term and how it enters the sum.

    Attributes:
        term: the summand.
        weight: its factor: a number, or (N, ...) one constant per entry.
        entry_weight: (N, ...) what the mean divides by the sum of, instead of the count of entries.
    """

    term: Term
    weight: float | Tensor = 1.0
    entry_weight: Tensor | None = None


class _Plan(NamedTuple):
    """Everything about a call except the logits."""

    target: Tensor | None
    valid: Tensor
    is_complete: bool
    terms: tuple[Term, ...]
    scales: tuple[Tensor, ...]  # weight, mask and denominator in one factor, (N, ...) or 1 for all
    reduction: Reduction


def evaluate_terms(
    entries: Entries, terms: Sequence[Weighted], reduction: Reduction, *, fused: bool = True
) -> Tensor:
    """Sum of weighted terms, reduced over the valid entries.

    Backward is the gradient stored by forward; with `create_graph=True` it is recomputed from the
    terms' `values`, so second derivatives are right. Without a gradient to come only values are
    computed. An empty or all-ignored batch gives 0 with zero gradient. `fused=False` leaves it all
    to autograd, for terms without `accumulate`.
    """
    terms = [term for term in terms if isinstance(term.weight, Tensor) or term.weight != 0]
    with full_precision(entries.logits):
        scales = tuple(_scale(entries, weighted, reduction) for weighted in terms)
        each = tuple(weighted.term for weighted in terms)
        is_complete = entries.is_complete
        plan = _Plan(entries.target, entries.valid, is_complete, each, scales, reduction)
        if not fused or is_traced() or _needs_autograd(entries):
            return _plain(entries.logits, plan)
        wants_gradient = torch.is_grad_enabled() and entries.logits.requires_grad
        loss: Tensor = _Fused.apply(entries.logits, plan, wants_gradient)
        return loss


def _scale(entries: Entries, weighted: Weighted, reduction: Reduction) -> Tensor:
    weight, entry_weight = weighted.weight, weighted.entry_weight
    if entries.is_complete and entry_weight is None and not isinstance(weight, Tensor):
        count = max(1, entries.valid.numel()) if reduction == "mean" else 1
        return entries.logits.new_full((1,) * entries.valid.ndim, weight / count)
    scale = entries.valid.to(entries.logits.dtype) * weight
    if reduction == "mean":
        scale = scale / mean_denominator(scale, entries.valid, entry_weight)
    return scale


def _needs_autograd(entries: Entries) -> bool:
    """Whether more is asked than a gradient with respect to the logits."""
    target_is_learned = entries.target is not None and entries.target.requires_grad
    return target_is_learned or forward_ad.unpack_dual(entries.logits).tangent is not None


def _plain(logits: Tensor, plan: _Plan) -> Tensor:
    """The sum by autograd."""
    total = logits.new_zeros(plan.valid.shape)
    for term, scale in zip(plan.terms, plan.scales, strict=True):
        values = term.values(logits, plan.target)
        total = total + torch.where(plan.valid, values, torch.zeros_like(values)) * scale
    return total if plan.reduction == "none" else total.sum()


def _sweep(logits: Tensor, plan: _Plan, gradient: Tensor | None) -> Tensor:
    """Values of all entries (N, ...); writes the gradient if there is one to write."""
    maps = as_maps(logits)
    shape = (maps.shape[0], 1, maps.shape[2])
    target = plan.target
    if target is not None:
        target = as_maps(target) if target.is_floating_point() else target.reshape(shape)
    scales = [scale.reshape((1, 1, 1) if scale.numel() == 1 else shape) for scale in plan.scales]
    # Per entry little is computed inside the loop: a small operation there costs as much as a pass.
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in plan.terms]
    is_uniform = plan.is_complete and all(scale.numel() == 1 for scale in scales)
    only_totals = is_uniform and plan.reduction != "none"
    for block, place in _blocks(maps, target, gradient, plan.terms, only_totals):
        for term, scale, statistics in zip(plan.terms, scales, found, strict=True):
            statistics.append(term.accumulate(block, cut(scale, *place)))
    total = maps.new_zeros(plan.valid.shape)
    for term, scale, statistics in zip(plan.terms, plan.scales, found, strict=True):
        if statistics:
            columns = [_joined(parts) for parts in zip(*statistics, strict=True)]
            total.addcmul_(term.finish(columns, maps.shape[1]).view(total.shape), scale)
    # An infinite value at an ignored entry has become NaN by its factor 0.
    return total if is_uniform else torch.where(plan.valid, total, 0.0)


def _blocks(
    maps: Tensor,
    target: Tensor | None,
    gradient: Tensor | None,
    terms: Sequence[Term],
    only_totals: bool,
) -> Iterable[tuple[Block, tuple[slice, slice]]]:
    """Blocks for the compiled kernels where they are there and the terms can do with them."""
    margins = {term.margin for term in terms if hasattr(term, "margin")}
    is_simple = all(getattr(term, "needs_only_summary", False) for term in terms)
    if target is None or not is_simple or len(margins) > 1:
        return blocks(maps, target, gradient, only_totals=only_totals)
    if not has_kernels(maps, target, gradient):
        return blocks(maps, target, gradient, only_totals=only_totals)
    return native_blocks(maps, target, gradient, margin=min(margins, default=None))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One column of all entries from the (n, 1, s) parts of the blocks, in their order."""
    return torch.cat([part.flatten() for part in parts]) if len(parts) > 1 else parts[0].flatten()


class _Fused(torch.autograd.Function):
    """The sum in one sweep."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, plan: _Plan, wants_gradient: bool) -> Tensor:
        gradient = None
        if wants_gradient:
            maps = torch.empty_like(as_maps(logits))
            gradient = maps.view(logits.shape)
        values = _sweep(logits, plan, None if gradient is None else maps)
        ctx.save_for_backward(logits, gradient)
        ctx.plan = plan
        return values if plan.reduction == "none" else values.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            loss = _plain(logits, ctx.plan)
            (result,) = torch.autograd.grad(loss, logits, grad_output, create_graph=True)
            return result, None, None
        factor = grad_output.unsqueeze(1) if ctx.plan.reduction == "none" else grad_output
        if not may_hand_out(grad_output):
            return gradient * factor, None, None
        if factor.device.type == "cpu" and factor.numel() == 1 and factor.item() == 1.0:
            return gradient, None, None
        return gradient.mul_(factor), None, None


def may_hand_out(grad_output: Tensor) -> bool:
    """Whether what was stored for backward is needed no more: one backward pass, of one loss."""
    is_batched = is_traced() or torch._C._functorch.is_legacy_batchedtensor(grad_output)
    return not (is_batched or torch._C._autograd._get_current_graph_task_keep_graph())
