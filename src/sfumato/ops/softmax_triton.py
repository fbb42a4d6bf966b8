"""The two passes of `softmax_summary` on a GPU: numbers of each softmax, and their gradient.

Imported where a tensor is on a GPU: PyTorch for CUDA and ROCm brings Triton along. Names, order and
meaning of the numbers are those of `softmax.py`. A program works on a tile of entries by classes;
what is more than one block of classes is walked in blocks. Each logit is read once by each pass,
and once more by the first where a margin is counted from a top that isn't known before all blocks.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from sfumato.ops.library import dense, in_order_of
from sfumato.ops.softmax import Pass, gradient_by_autograd

# Numbers in a tile of one entry, and of several: more spill out of the registers.
_BLOCK, _TILE = 4096, 256

# In the order in which they are kept; the last five where there is a margin.
NAMES = (
    *("label", "top", "total", "entropy", "highest", "top_ties", "normaliser", "mass"),
    *("range", "excess", "squares", "number", "low_ties"),
)
_WITHOUT_MARGIN = 8
_SMOOTH = ("label", "top", "total", "entropy", "highest", "range", "excess", "squares")


@triton.jit
def _tile(block, C, P, entries, ROWS: tl.constexpr, WIDTH: tl.constexpr, IS_ROWS: tl.constexpr):
    """Where the logits of a block are, its classes, and which of all that is there."""
    entry = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = block + tl.arange(0, WIDTH)
    inside = (entry < entries)[:, None] & (k < C)[None, :]
    if IS_ROWS:
        return entry, k, entry[:, None] * C + k[None, :], inside
    start = entry // P * C * P + entry % P
    return entry, k, start[:, None] + k[None, :].to(tl.int64) * P, inside


@triton.jit
def _beyond(x, margin, low, low_ties, excess, squares, number, inside):
    """Add a block to the sums of the classes that are more than the margin below the top."""
    over = tl.where(inside & (x + margin < 0), -(x + margin), 0.0)
    least = tl.min(tl.where(inside, x, 0.0), 1)
    lower = tl.minimum(low, least)
    ties = tl.sum((inside & (x == lower[:, None])).to(x.dtype), 1)
    low_ties = tl.where(lower < low, ties, low_ties + ties)
    return (
        lower,
        low_ties,
        excess + tl.sum(over, 1),
        squares + tl.sum(over * over, 1),
        number + tl.sum((over > 0).to(x.dtype), 1),
    )


# fmt: off
@triton.jit
def numbers_kernel(
    logits, label, soft, margins, out, margin, ignored, C, P, entries,
    HARD: tl.constexpr, SOFT: tl.constexpr, MARGIN: tl.constexpr, EACH: tl.constexpr,
    IS_ROWS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, IS_ONE: tl.constexpr,
    REAL: tl.constexpr,
):
    entry, k, place, inside = _tile(0, C, P, entries, ROWS, WIDTH, IS_ROWS)
    is_there = entry < entries
    valid = is_there
    own = tl.full((ROWS,), -1, tl.int64)
    if HARD:
        own = tl.load(label + entry, mask=is_there, other=0)
        valid = is_there & (own != ignored)
    top = tl.full((ROWS,), -3e38, REAL)
    others = tl.zeros((ROWS,), REAL)
    ties, total, entropy, aligned, mass = others, others, others, others, others
    x = tl.zeros((ROWS, WIDTH), REAL)
    for block in range(0, C, WIDTH):
        entry, k, place, inside = _tile(block, C, P, entries, ROWS, WIDTH, IS_ROWS)
        z = tl.load(logits + place, mask=inside, other=-float("inf")).to(REAL)
        # Sums are of x = z - top and its exponential: a new top moves those before it.
        new = tl.maximum(top, tl.max(z, 1))
        moved = tl.where(top == new, 0.0, top - new)
        scale = tl.exp(moved)
        x = tl.where(inside, z - new[:, None], 0.0)
        is_top = inside & (x == 0)
        e = tl.where(inside, tl.exp(x), 0.0)
        entropy = scale * (entropy + moved * (others + ties))
        entropy += tl.sum(e * tl.maximum(x, -1000.0), 1)
        others = scale * (others + tl.where(moved < 0, ties, 0.0))
        others += tl.sum(tl.where(is_top, 0.0, e), 1)
        ties = tl.where(moved < 0, 0.0, ties) + tl.sum(is_top.to(REAL), 1)
        total += moved * block + tl.sum(x, 1)
        if SOFT:
            q = tl.load(soft + place, mask=inside, other=0.0).to(REAL)
            aligned += moved * mass + tl.sum(tl.where(q != 0, q * x, 0.0), 1)
            mass += tl.sum(q, 1)
        elif HARD:
            is_own = k[None, :] == own[:, None]
            aligned += tl.where(own < block, moved, 0.0) + tl.sum(tl.where(is_own, x, 0.0), 1)
        top = new
    if HARD:  # loud, as it can't be raised from here
        aligned = tl.where((own < 0) | (own >= C), float("nan"), aligned)
    lost = tl.where(total == total, 0.0, total)  # NaN stays NaN
    rest = others + ties - 1
    rest = tl.where(ties > 1, rest, others)  # 1 + others has lost the last places
    normaliser = 1 + rest
    # log(1 + rest) with the places that the sum has lost.
    gap = tl.where(normaliser == 1, 1.0, normaliser - 1)
    log = tl.where(normaliser == 1, rest, tl.log(normaliser) * (rest / gap)) + lost
    own_mass = mass if SOFT else tl.full((ROWS,), 1.0, REAL)
    at = out + entry
    tl.store(at, tl.where(valid, aligned - own_mass * log, 0.0), mask=is_there)
    tl.store(at + entries, tl.where(valid, -log, 0.0), mask=is_there)
    tl.store(at + 2 * entries, tl.where(valid, total - C * log, 0.0), mask=is_there)
    tl.store(at + 3 * entries, tl.where(valid, entropy / normaliser - log, 0.0), mask=is_there)
    tl.store(at + 4 * entries, tl.where(valid, top + lost, 0.0), mask=is_there)
    tl.store(at + 5 * entries, tl.where(valid, ties, 0.0), mask=is_there)
    tl.store(at + 6 * entries, tl.where(valid, normaliser, 1.0), mask=is_there)
    tl.store(at + 7 * entries, tl.where(valid, own_mass, 0.0), mask=is_there)
    if MARGIN:
        low = tl.zeros((ROWS,), REAL)
        low_ties, excess, squares, number = low, low, low, low
        if IS_ONE:
            limit = tl.load(margins + k, mask=k < C, other=0.0)[None, :] if EACH else margin
            low, low_ties, excess, squares, number = _beyond(
                x, limit, low, low_ties, excess, squares, number, inside
            )
        else:
            for block in range(0, C, WIDTH):
                entry, k, place, inside = _tile(block, C, P, entries, ROWS, WIDTH, IS_ROWS)
                x = tl.load(logits + place, mask=inside, other=0.0).to(REAL) - top[:, None]
                limit = tl.load(margins + k, mask=k < C, other=0.0)[None, :] if EACH else margin
                low, low_ties, excess, squares, number = _beyond(
                    x, limit, low, low_ties, excess, squares, number, inside
                )
        tl.store(at + 8 * entries, tl.where(valid, lost - low, 0.0), mask=is_there)
        tl.store(at + 9 * entries, tl.where(valid, excess + lost, 0.0), mask=is_there)
        tl.store(at + 10 * entries, tl.where(valid, squares + lost, 0.0), mask=is_there)
        tl.store(at + 11 * entries, tl.where(valid, number, 0.0), mask=is_there)
        tl.store(at + 12 * entries, tl.where(valid, low_ties, 1.0), mask=is_there)


@triton.jit
def gradient_kernel(
    upstream, numbers, logits, label, soft, margins, out, margin, ignored, C, P, entries,
    HARD: tl.constexpr, SOFT: tl.constexpr, MARGIN: tl.constexpr, EACH: tl.constexpr,
    IS_ROWS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, REAL: tl.constexpr,
):
    """As `coefficients_of` and `row_write` in C, of which `factor` to `slope` are the names."""
    entry, k, place, inside = _tile(0, C, P, entries, ROWS, WIDTH, IS_ROWS)
    is_there = entry < entries
    valid = is_there
    own = tl.full((ROWS,), -1, tl.int64)
    if HARD:
        own = tl.load(label + entry, mask=is_there, other=0)
        valid = is_there & (own != ignored)
    up, n = upstream + entry, numbers + entry
    at_label = tl.load(up, mask=is_there, other=0.0)
    by_top = tl.load(up + entries, mask=is_there, other=0.0)
    shift = tl.load(up + 2 * entries, mask=is_there, other=0.0)
    by_entropy = tl.load(up + 3 * entries, mask=is_there, other=0.0)
    at_top = by_top + tl.load(up + 4 * entries, mask=is_there, other=0.0)
    log_top = tl.load(n + entries, mask=is_there, other=0.0)
    inverse = 1 / tl.load(n + 6 * entries, mask=is_there, other=1.0)
    mass = tl.load(n + 7 * entries, mask=is_there, other=0.0)
    top = tl.load(n + 4 * entries, mask=is_there, other=0.0)
    entropic = by_entropy * inverse
    factor = by_entropy * (log_top - tl.load(n + 3 * entries, mask=is_there, other=0.0))
    factor = (factor - (at_label * mass + by_top + shift * C)) * inverse
    if MARGIN:
        by_range = tl.load(up + 8 * entries, mask=is_there, other=0.0)
        low = -tl.load(n + 8 * entries, mask=is_there, other=0.0)
        at_low = -by_range / tl.load(n + 12 * entries, mask=is_there, other=1.0)
        at_top += by_range
        beyond = -tl.load(up + 9 * entries, mask=is_there, other=0.0)
        slope = 2 * tl.load(up + 10 * entries, mask=is_there, other=0.0)
    at_top /= tl.maximum(tl.load(n + 5 * entries, mask=is_there, other=1.0), 1.0)
    for block in range(0, C, WIDTH):
        entry, k, place, inside = _tile(block, C, P, entries, ROWS, WIDTH, IS_ROWS)
        x = tl.load(logits + place, mask=inside, other=0.0).to(REAL) - top[:, None]
        value = factor[:, None] + entropic[:, None] * tl.maximum(x, -1000.0)
        value = value * tl.exp(x) + shift[:, None]
        value += tl.where(x == 0, at_top[:, None], 0.0)
        if SOFT:
            value += at_label[:, None] * tl.load(soft + place, mask=inside, other=0.0).to(REAL)
        elif HARD:
            value += tl.where(k[None, :] == own[:, None], at_label[:, None], 0.0)
        if MARGIN:
            limit = tl.load(margins + k, mask=k < C, other=0.0)[None, :] if EACH else margin
            left = x + limit
            far = tl.where(slope[:, None] != 0, slope[:, None] * left, 0.0)
            value += tl.where(left < 0, beyond[:, None] + far, 0.0)
            value += tl.where(x == low[:, None], at_low[:, None], 0.0)
        tl.store(out + place, tl.where(valid[:, None], value, 0.0), mask=inside)


# fmt: on
def tile_sizes(classes: int, is_rows: bool) -> dict[str, Any]:
    """Choose how many entries and classes a program works on at a time."""
    # Neighbours in memory are classes in rows, and entries in maps.
    width = min(triton.next_power_of_2(classes), _BLOCK if is_rows else 32)
    rows = max(1, min(32, _TILE // width))
    warps = 8 if width > _TILE else 2 if is_rows else 4
    return {"ROWS": rows, "WIDTH": width, "num_warps": warps}


def _launch(kernel: Any, before: tuple[Tensor, ...], inputs: tuple[Any, ...], out: Tensor) -> None:
    """Run a kernel on what `softmax_numbers` is given."""
    logits, target, soft, margins, margin, ignore_index = inputs
    samples, classes, *rest = logits.shape
    positions = math.prod(rest)
    is_rows = positions == 1 or logits.stride(1) == 1
    options = tile_sizes(classes, is_rows)
    if kernel is numbers_kernel:
        options["IS_ONE"] = classes <= options["WIDTH"]
    # What isn't there is not looked at.
    tensors = [logits if each is None else each for each in (logits, target, soft, margins)]
    grid = (triton.cdiv(samples * positions, options["ROWS"]),)
    with torch.cuda.device_of(logits):  # Triton launches on the current device
        kernel[grid](
            *(*before, *tensors, out, margin or 0.0, ignore_index),
            *(classes, positions, samples * positions),
            HARD=target is not None,
            SOFT=soft is not None,
            MARGIN=margin is not None or margins is not None,
            EACH=margins is not None,
            IS_ROWS=is_rows,
            REAL=tl.float64 if logits.dtype == torch.float64 else tl.float32,
            **options,
        )


@custom_op("sfumato::softmax_numbers", mutates_args={})
def softmax_numbers(
    logits: Tensor,
    target: Tensor | None,
    soft: Tensor | None,
    margins: Tensor | None,
    margin: float | None,
    ignore_index: int,
) -> Tensor:
    """The numbers of dense logits (N, C, ...), a row (N, ...) for each."""
    inputs = (logits, target, soft, margins, margin, ignore_index)
    out = _room(*inputs)
    _launch(numbers_kernel, (), inputs, out)
    return out


@softmax_numbers.register_fake
def _room(logits: Tensor, *others: Any) -> Tensor:
    _, _, margins, margin, _ = others
    number = _WITHOUT_MARGIN if margin is None and margins is None else len(NAMES)
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.new_empty((number, logits.shape[0], *logits.shape[2:]), dtype=real)


@custom_op("sfumato::softmax_gradient", mutates_args={})
def softmax_gradient(
    upstream: Tensor,
    numbers: Tensor,
    logits: Tensor,
    target: Tensor | None,
    soft: Tensor | None,
    margins: Tensor | None,
    margin: float | None,
    ignore_index: int,
) -> Tensor:
    """The gradient of the logits from those of their numbers."""
    out = torch.empty_like(logits)
    inputs = (logits, target, soft, margins, margin, ignore_index)
    _launch(gradient_kernel, (upstream, numbers), inputs, out)
    return out


@softmax_gradient.register_fake
def _like(upstream: Tensor, numbers: Tensor, logits: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(logits)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, margin, ignore_index = inputs
    ctx.save_for_backward(*tensors, output)
    ctx.margin, ctx.ignore_index = margin, ignore_index


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, numbers = ctx.saved_tensors
    options = (ctx.margin, ctx.ignore_index)
    if torch.is_grad_enabled():  # second derivatives
        logits, target, soft, margins = tensors
        _, shape = dense(logits)
        plan = Pass(logits, target, soft, None, margins, shape, *options)
        rows = dict(zip(NAMES, upstream.unbind(0), strict=False))
        by_name = {name: rows[name] for name in _SMOOTH if name in rows}
        if target is None and soft is None:
            del by_name["label"]
        gradient = gradient_by_autograd(plan, by_name, None)
    else:
        gradient = softmax_gradient(upstream.contiguous(), numbers, *tensors, *options)
    return gradient, None, None, None, None, None


softmax_numbers.register_autograd(_backward, setup_context=_keep)


def read_numbers(
    logits: Tensor,
    target: Tensor | None,
    soft: Tensor | None,
    margin: float | Tensor | None,
    ignore_index: int,
) -> dict[str, Tensor]:
    """The numbers of logits of any layout by name, (N, ...) each."""
    logits, _ = dense(logits)
    soft = None if soft is None else in_order_of(soft, logits)
    target = None if target is None else target.contiguous()
    margins = margin.contiguous() if isinstance(margin, Tensor) else None
    each = None if isinstance(margin, Tensor) else margin
    found = softmax_numbers(logits, target, soft, margins, each, ignore_index)
    return dict(zip(NAMES, found.unbind(0), strict=False))
