"""Sums over all pairs of classes without a tensor of all pairs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from sfumato._core.tracing import is_watched

# Elements of one block of rows: its few working tensors stay in cache for all pairs.
_BLOCK_ELEMENTS = 1 << 17
# Factors 1 + |tanh| <= 2 multiplied before one logarithm is taken: 2^100 fits in float32.
_FACTORS_PER_LOG = 100


def pair_sum(logits: Tensor) -> Tensor:
    """-sum over all ordered pairs (k, l) of a row, k = l included, of 1/2 log sigmoid(z_k - z_l).

    Time O(N C^2), memory O(N C): pairs are visited by their distance in the list of classes, one
    block of rows at a time, value and gradient together.

    Args:
        logits: (N, C).

    Returns:
        (N,).
    """
    if is_watched() or forward_ad.unpack_dual(logits).tangent is not None:
        return _plain(logits)
    values: Tensor = _Pairs.apply(logits)[0]
    return values


def _plain(logits: Tensor) -> Tensor:
    """The sum by autograd, in O(N C^2) memory."""
    gaps = logits.unsqueeze(2) - logits.unsqueeze(1)
    return -F.logsigmoid(gaps).sum((1, 2)) / 2


class _Pairs(torch.autograd.Function):
    """Sum over pairs with its gradient 1/2 sum_l tanh((z_k - z_l) / 2), which is Eq. (6)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        values = torch.empty_like(logits[:, 0])
        gradient = torch.empty_like(logits)
        rows = max(1, _BLOCK_ELEMENTS // logits.shape[1])
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            _pairs_of_block(logits[part], values[part], gradient[part])
        ctx.save_for_backward(logits, gradient)
        ctx.mark_non_differentiable(gradient)
        return values, gradient

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, _: Tensor) -> Tensor:
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is to follow
            values = _plain(logits)
            return torch.autograd.grad(values, logits, grad_values, create_graph=True)[0]
        return gradient * grad_values.unsqueeze(1)


def _pairs_of_block(logits: Tensor, values: Tensor, gradient: Tensor) -> None:
    """Fill `values` and `gradient`: each unordered pair {k, l} is met once, at l = k + shift.

    A pair costs log(2 cosh(d/2)) = |d|/2 + log 2 - log(1 + |t|) with t = tanh(d/2), its slope is
    t/2. The sum of all |d| comes from one sort; up to 100 factors 1 + |t| share one logarithm.
    """
    count = logits.shape[1]
    half = (logits - logits.amax(1, keepdim=True)) / 2
    rank = torch.arange(1 - count, count, 2, dtype=half.dtype, device=half.device)
    cost = half.sort(1).values @ rank  # sum over pairs of |d|/2
    circle = torch.cat([half, half], 1)
    slopes = torch.zeros_like(circle)
    factors = torch.ones_like(half)
    for shift in range(1, count // 2 + 1):
        # Opposite places of an even circle meet twice in one turn: half a turn is enough.
        width = shift if 2 * shift == count else count
        slope = (half[:, :width] - circle[:, shift : shift + width]).tanh_()
        slopes[:, :width] += slope
        slopes[:, shift : shift + width] -= slope
        factors[:, :width].addcmul_(factors[:, :width], slope.abs_())
        if shift % _FACTORS_PER_LOG == 0:
            cost -= factors.log_().sum(1)
            factors.fill_(1)
    cost -= factors.log_().sum(1)
    # The diagonal adds count / 2 logarithms of 2 to those of the count (count - 1) / 2 pairs.
    torch.add(cost, count * count * math.log(2) / 2, out=values)
    torch.add(slopes[:, :count], slopes[:, count:], out=gradient).mul_(0.5)
