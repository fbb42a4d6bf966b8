"""Calibration by pairwise constraints (CPC): every pair of classes is a binary problem."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from sfumato._core.checks import check_number, is_traced
from sfumato.labels._entries import (
    LossModule,
    Reduction,
    arguments_of,
    full_precision,
    prepare_entries,
    reduce_entries,
)
from sfumato.ops.softmax import PlainSoftmax

# Elements of one block of rows: its few working tensors stay in cache for all pairs.
_BLOCK_ELEMENTS = 1 << 17

# Factors 1 + |tanh| <= 2 multiplied before one logarithm is taken: 2^100 fits in float32.
_FACTORS_PER_LOG = 100


def pair_sum(logits: Tensor) -> Tensor:
    """-sum over all ordered pairs (k, l) of a row, k = l included, of 1/2 log sigmoid(z_k - z_l).

    Time O(N C^2), memory O(N C): pairs are visited by their distance in the list of classes, one
    block of rows at a time, value and gradient together.
    """
    if is_traced() or forward_ad.unpack_dual(logits).tangent is not None:
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


def discrimination_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """1-vs-1 term of CPC: the label should win each binary contest with another class.

        L_1v1 = -1/(C - 1) sum_{k != y} log( p_y / (p_y + p_k) )                         (Eq. 3)

    Linear in the number of classes: the contest of y and k is log sigmoid(z_y - z_k).

    Args:
        target: class indices (N, d1, ...).
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> discrimination_penalty(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.2201)

    Reference:
        ACLS supplement, Eq. (3) and (5).

    Differs:
        Averaged over the C - 1 other classes, as released; the equation is a plain sum.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    plain = entries.plain()
    return reduce_entries(_discrimination(plain), plain, reduction)


def exclusion_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary-exclusion term of CPC: no class but the label should win a contest with another.

        L_BE = -1/((C - 1)(C - 2)) sum_{k, l != y} 1/2 log( p_k / (p_k + p_l) )          (Eq. 4)

    over ordered pairs, k = l included. Its least value, at equal probabilities of all other
    classes, is (C - 1) log(2) / (2 (C - 2)). Time is O(N C^2), memory O(N C).

    Args:
        target: class indices (N, d1, ...).
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Returns:
        A scalar, or (N, d1, ...) for "none"; 0 for two classes, where no pair is without the label.
        Second derivatives, torch.func and torch.compile take O(N C^2) memory.

    Example:
        >>> exclusion_penalty(torch.tensor([[5.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.7532)

    Reference:
        ACLS supplement, Eq. (4) and (6).

    Differs:
        Normalised as released; the sum in the paper is 4 (C - 1)(C - 2) times as large. The pairs
        k = l are kept as released: they add a constant. The released code is infinite for C = 2.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    plain = entries.plain()
    return reduce_entries(_exclusion(plain), plain, reduction)


def cpc_loss(
    logits: Tensor,
    target: Tensor,
    *,
    discrimination_weight: float = 0.1,
    exclusion_weight: float = 1.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus the two pairwise terms of CPC.

        L = L_CE + lambda_1 L_1v1 + lambda_2 L_BE                                        (Eq. 2)

    The first term raises the label rather than smoothing it; the second evens out the others.

    Args:
        target: class indices (N, d1, ...).
        discrimination_weight: lambda_1, of `discrimination_penalty`.
        exclusion_weight: lambda_2, of `exclusion_penalty`.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> cpc_loss(torch.tensor([[5.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor(0.7792)

    Reference:
        ACLS supplement, Eq. (2)-(8); weights as released for Tiny-ImageNet, normalisation as in the
        two penalties.
    """
    check_number("discrimination_weight", discrimination_weight, low=0.0)
    check_number("exclusion_weight", exclusion_weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    plain = entries.plain()
    values = discrimination_weight * _discrimination(plain) - plain.label  # Eq. (2)
    return reduce_entries(values + exclusion_weight * _exclusion(plain), plain, reduction)


class CPCLoss(LossModule):
    """Cross entropy plus the two pairwise terms of CPC as a module; see `cpc_loss`."""

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(cpc_loss)
    def __init__(self) -> None: ...


def _label(plain: PlainSoftmax) -> Tensor:
    if plain.target is None:
        raise TypeError("target must hold class indices here")
    return plain.target.unsqueeze(1)


def _discrimination(plain: PlainSoftmax) -> Tensor:
    label = _label(plain)
    gap = plain.logits.gather(1, label) - plain.logits
    # The label is no contestant of itself: an infinite lead costs nothing and has no gradient.
    contests = F.logsigmoid(gap.scatter(1, label, torch.inf))
    return -contests.sum(1) / (plain.logits.shape[1] - 1)  # Eq. (3)


def _exclusion(plain: PlainSoftmax) -> Tensor:
    others = plain.logits.shape[1] - 1
    if others == 1:  # no pair, and still part of the graph
        return torch.where(plain.logits.isnan(), plain.logits, 0.0).sum(1)
    rows = plain.logits.movedim(1, -1).reshape(-1, others + 1)
    column = torch.arange(others, device=rows.device)
    keep = column + (column >= _label(plain).reshape(-1, 1)).long()  # every class but the label
    with full_precision(rows):
        values = pair_sum(rows.gather(1, keep)) / (others * (others - 1))  # Eq. (4)
    return values.view(plain.logits.shape[:1] + plain.logits.shape[2:])
