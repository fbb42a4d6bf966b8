"""What batch losses read off the softmax: the label's probability, the confidence, class totals.

MMCE, MDCA and CRL need two numbers of each entry, or the mean prediction of the batch, but never
the softmax itself. Here one pass over memory reads the logits block by block and another, in
backward, writes their gradient. In between nothing of their size is kept, or, for the totals, the
probabilities, whose memory becomes the gradient. Ignored entries get no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato._native.softmax import Coefficients, as_maps, softmax_gradient
from sfumato.labels._blocks import (
    Block,
    block_slices,
    blocks,
    has_kernels,
    native_blocks,
    native_slices,
)
from sfumato.labels._entries import Entries, is_traced
from sfumato.labels._fused import may_hand_out

Place = tuple[slice, slice, slice]


def log_prob_of_target(log_probs: Tensor, entries: Entries) -> Tensor:
    """log p of the label, (N, ...); its mean under a soft target."""
    if entries.target is None:
        raise TypeError("target must be given here")
    if entries.is_soft:
        return (entries.target * log_probs).sum(1)
    return log_probs.gather(1, entries.target.unsqueeze(1)).squeeze(1)


def label_and_top(entries: Entries) -> tuple[Tensor, Tensor, Tensor]:
    """log p of the label, log p of the predicted class and its index, (N, ...) each."""
    if _needs_autograd(entries):
        return _plain_label_and_top(entries)
    label, top, predicted = _LabelAndTop.apply(*entries)
    return label, top, predicted


def label_and_totals(entries: Entries) -> tuple[Tensor, Tensor]:
    """log p of the label, (N, ...), and the sum of p over the valid entries, (C,)."""
    if _needs_autograd(entries):
        return _plain_label_and_totals(entries)
    label, totals = _LabelAndTotals.apply(*entries)
    return label, totals


def _needs_autograd(entries: Entries) -> bool:
    if is_traced() or entries.target is None or entries.is_soft:
        return True
    return forward_ad.unpack_dual(entries.logits).tangent is not None


def _plain_label_and_top(entries: Entries) -> tuple[Tensor, Tensor, Tensor]:
    log_probs = entries.logits.log_softmax(1)
    top, predicted = log_probs.max(1)
    return log_prob_of_target(log_probs, entries), top, predicted


def _plain_label_and_totals(entries: Entries) -> tuple[Tensor, Tensor]:
    log_probs = entries.logits.log_softmax(1)
    totals = as_maps(log_probs.exp() * entries.valid.unsqueeze(1)).sum((0, 2))
    return log_prob_of_target(log_probs, entries), totals


class _Sweep:
    """(N, C, S) logits with per-entry tensors (N, 1, S), to be passed through block by block."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = as_maps(logits)
        self.shape = (self.logits.shape[0], 1, self.logits.shape[2])

    def per_entry(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self.shape)

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        return self.logits.new_empty(self.shape, dtype=dtype)

    def blocks(
        self, target: Tensor, *, wants_predicted: bool = False
    ) -> Iterator[tuple[Block, Place]]:
        target = self.per_entry(target)
        parts: Iterable[tuple[Block, tuple[slice, slice]]]
        if has_kernels(self.logits, target):
            parts = native_blocks(self.logits, target, None, wants_predicted=wants_predicted)
        else:
            parts = blocks(self.logits, target, None)
        for block, (samples, positions) in parts:
            yield block, (samples, slice(None), positions)

    def write(
        self, factor: Tensor, top: Tensor, label: Tensor, at_label: Tensor, out: Tensor
    ) -> Iterator[tuple[Tensor, Place]]:
        """factor exp(z - top), with `at_label` added at the label, block by block into `out`."""
        is_native = has_kernels(self.logits, label, out)
        for samples, positions in (native_slices if is_native else block_slices)(self.logits):
            here = (samples, slice(None), positions)
            part = out[here]
            if is_native:
                made = Coefficients(factor=factor[here], at_label=at_label[here])
                softmax_gradient(self.logits[here], label[here], top[here], made, out=part)
            else:
                torch.sub(self.logits[here], top[here], out=part).exp_().mul_(factor[here])
                part.scatter_add_(1, label[here], at_label[here])
            yield part, here


class _LabelAndTop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
        sweep = _Sweep(logits)
        label, largest, normaliser = sweep.empty(), sweep.empty(), sweep.empty()
        predicted = sweep.empty(torch.int64)
        for block, here in sweep.blocks(target, wants_predicted=True):
            label[here] = block.log_prob_of_label()
            predicted[here] = block.predicted
            largest[here], normaliser[here] = block.top, block.normaliser
        predicted = predicted.view(target.shape)
        ctx.save_for_backward(logits, target, valid, predicted, largest, normaliser)
        ctx.mark_non_differentiable(predicted)
        return label.view(target.shape), -normaliser.log().view(target.shape), predicted

    @staticmethod
    def backward(
        ctx: Any, grad_label: Tensor, grad_top: Tensor, _: Tensor
    ) -> tuple[Tensor, None, None]:
        logits, target, valid, predicted, largest, normaliser = ctx.saved_tensors
        if torch.is_grad_enabled():
            outputs = _plain_label_and_top(Entries(logits, target, valid))[:2]
            return _again(outputs, logits, (grad_label, grad_top)), None, None
        sweep = _Sweep(logits)
        gradient = torch.empty_like(sweep.logits)
        at_label = sweep.per_entry(grad_label * valid)
        at_top = sweep.per_entry(grad_top * valid)
        factor = -(at_label + at_top) / normaliser
        target, predicted = sweep.per_entry(target), sweep.per_entry(predicted)
        for part, here in sweep.write(factor, largest, target, at_label, gradient):
            part.scatter_add_(1, predicted[here], at_top[here])
        return gradient.reshape(logits.shape), None, None


class _LabelAndTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        sweep = _Sweep(logits)
        label = sweep.empty()
        totals = logits.new_zeros(logits.shape[1])
        counted = sweep.per_entry(valid).to(logits.dtype)
        kept = torch.empty_like(sweep.logits) if ctx.needs_input_grad[0] else None
        for block, here in sweep.blocks(target):
            probs = block.take() if kept is None else kept[here]
            label[here] = block.label_distance - block.write_probs(probs, counted[here])
            totals += probs.sum((0, 2))
        ctx.save_for_backward(logits, target, valid, kept)
        return label.view(target.shape), totals

    @staticmethod
    def backward(ctx: Any, grad_label: Tensor, grad_totals: Tensor) -> tuple[Tensor, None, None]:
        logits, target, valid, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            outputs = _plain_label_and_totals(Entries(logits, target, valid))
            return _again(outputs, logits, (grad_label, grad_totals)), None, None
        sweep = _Sweep(logits)
        gradient = kept if may_hand_out(grad_totals) else kept.clone()
        at_label = sweep.per_entry(grad_label * valid)
        target = sweep.per_entry(target)
        direction = grad_totals.view(1, -1, 1)
        for samples, positions in block_slices(sweep.logits):
            here = (samples, slice(None), positions)
            part = gradient[here]
            # d (sum_c v_c p_c) / dz_k = p_k (v_k - sum_c v_c p_c)
            mean = torch.einsum("c,ncs->ns", grad_totals, part).unsqueeze(1)
            part.mul_(direction - (mean + at_label[here]))
            part.scatter_add_(1, target[here], at_label[here])
        return gradient.reshape(logits.shape), None, None


def _again(outputs: tuple[Tensor, ...], logits: Tensor, grad_outputs: tuple[Tensor, ...]) -> Tensor:
    """The same gradient as a graph, for second derivatives."""
    return torch.autograd.grad(outputs, logits, grad_outputs, create_graph=True)[0]
