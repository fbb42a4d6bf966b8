"""`linear_head_loss`: a linear layer and its loss, without the logits of all entries at once."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_class_indices, check_floating, check_integer, is_traced
from sfumato.labels._entries import LossModule, at_least_one, full_precision
from sfumato.ops.library import REAL

Chunk = int | Literal["auto"]

_PARTS = 20  # "auto" holds this part of the logits
_PIECES = 8  # of a chunk: their gradient takes the place of the logits
_LEAST_ROWS = 64  # products of fewer rows are slow
_LEAST_LOGITS, _MOST_LOGITS = 1 << 20, 1 << 26


def linear_head_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    loss: LossModule,
    chunk: Chunk = "auto",
) -> Tensor:
    """Compute loss(hidden @ weight.T + bias, target) with a chunk of the logits at a time.

    With 128,000 tokens the logits and their gradient are the largest tensors of a training step. A
    loss of single entries needs neither: value and gradient of each chunk are taken in the forward
    pass, and scaled in the backward pass.

        L = 1/n sum_i l(W h_i + b, y_i),   dL/dW = 1/n sum_i l'(W h_i + b, y_i) h_i^T

    Args:
        hidden: (..., D), what the last linear layer is given.
        weight: (C, D) of that layer, which may be an embedding's too.
        target: class indices (...), or soft targets (..., C), which are read chunk by chunk.
        bias: (C,) or None.
        loss: a module of this package whose value is a mean over single entries, with its class
            weights, `ignore_index` and reduction. With reduction "none" the result has a number for
            each entry, and the backward pass computes each chunk again.
        chunk: how many entries at a time; "auto" holds a twentieth of the logits, or a million.

    Raises:
        TypeError, ValueError: a loss that compares entries with each other, or tensors that don't
            go together.
        RuntimeError: in the backward pass, for second derivatives.

    Example:
        >>> from sfumato.labels import CrossEntropyLoss
        >>> hidden, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [0.0]])
        >>> linear_head_loss(hidden, weight, torch.tensor([0, 0]), loss=CrossEntropyLoss())
        tensor(0.0725)

    Reference:
        Gradients in the forward pass of a fused linear layer and cross entropy: Hsu et al. 2024
        (Liger Kernel).
    """
    if torch.compiler.is_compiling():
        # torch.compile would break its graph in each chunk, and take a hundred times as long.
        as_it_is = torch.compiler.disable(linear_head_loss)
        return as_it_is(hidden, weight, target, bias, loss=loss, chunk=chunk)
    _check_loss(loss)
    _check_tensors(hidden, weight, target, bias, loss.ignore_index)
    entries = hidden.shape[:-1]
    hidden, weight, bias = _as_autocast([hidden, weight, bias])
    rows = hidden.reshape(-1, hidden.shape[-1])
    soft = target.is_floating_point()
    # In int64 before any comparison: uint8 labels would wrap a negative ignore_index.
    labels = target.reshape(-1, len(weight)) if soft else target.reshape(-1).long()
    count = at_least_one(len(rows) if soft else (labels != loss.ignore_index).sum())
    is_each = loss.reduction == "none"
    # A gradient for each entry's own factor can't be known before it.
    is_known = torch.is_grad_enabled() and not is_each
    each = _of_each_entry(loss, labels, count, len(weight))
    head = Head(each, _chunk_size(chunk, rows, weight), is_known)
    result: Tensor = _Chunks.apply(rows, weight, bias, labels, head, is_each)
    if is_each:
        return result.reshape(entries)
    return result / count if loss.reduction == "mean" else result


class LinearHeadLoss(nn.Module):
    """A linear layer and its loss without the logits, as a module; see `linear_head_loss`.

    Args:
        loss: a module of this package whose value is a mean over single entries.
        chunk: how many entries at a time; "auto" holds a twentieth of the logits, or a million.

    Example:
        >>> from sfumato.labels import ACLSLoss
        >>> head = nn.Linear(8, 1000)
        >>> hidden, target = torch.randn(2, 5, 8), torch.randint(0, 1000, (2, 5))
        >>> LinearHeadLoss(ACLSLoss())(hidden, head.weight, target, head.bias).shape
        torch.Size([])
    """

    def __init__(self, loss: LossModule, *, chunk: Chunk = "auto") -> None:
        super().__init__()
        _check_loss(loss)
        _check_chunk(chunk)
        self.loss = loss
        self.chunk = chunk

    def forward(
        self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Args: hidden (..., D), weight (C, D), target (...) or (..., C), bias (C,) or None."""
        return linear_head_loss(hidden, weight, target, bias, loss=self.loss, chunk=self.chunk)

    def extra_repr(self) -> str:
        return f"chunk={self.chunk!r}"


class Head(NamedTuple):
    """How the chunks are walked.

    Attributes:
        loss: gives a number for each row of logits.
        chunk: how many rows it is given at a time.
        is_known: whether gradients can be taken in the forward pass.
    """

    loss: LossModule
    chunk: int
    is_known: bool


class _Chunks(torch.autograd.Function):
    """Values of all entries, or their sum, whose gradients are taken on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        head: Head,
        is_each: bool,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, target)
        again = copy.copy(head.loss)
        again.training = False  # what a loss gathers in training it must not see twice
        ctx.head = head._replace(loss=again)
        wanted = ctx.needs_input_grad[:3] if head.is_known else (False,) * 3
        values, ctx.gradients = _walk((hidden, weight, bias, target), head, wanted, None)
        if not any(wanted):
            ctx.gradients = None
        return values if is_each else values.sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_head_loss has first derivatives only. For second ones (create_graph=True) "
                "compute the logits: loss(F.linear(hidden, weight, bias), target)"
            )
        gradients, ctx.gradients = ctx.gradients, None
        # They are scaled in place, as a copy could be the largest tensor of all. A second walk over
        # the same graph finds none left.
        if gradients is None:
            tensors = ctx.saved_tensors
            factors = upstream.expand(len(tensors[0]))
            _, gradients = _walk(tensors, ctx.head, ctx.needs_input_grad[:3], factors)
        else:
            for each in gradients:
                if each is not None:
                    each.mul_(upstream)
        return (*gradients, None, None, None)


def _walk(
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor],
    head: Head,
    wanted: tuple[bool, ...],
    factors: Tensor | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """The value of each entry, and the gradients of their sum, each times its factor if any."""
    hidden, weight, bias, target = tensors
    working = hidden.dtype if hidden.dtype in REAL else torch.float32
    values = hidden.new_zeros(len(hidden), dtype=working)
    factors = (torch.ones_like(values[:1]) if factors is None else factors).expand_as(values)
    by_hidden = torch.zeros_like(hidden) if wanted[0] else None
    by_weight = torch.zeros_like(weight) if wanted[1] else None
    by_bias = values.new_zeros(len(weight)) if wanted[2] else None
    for start in range(0, len(hidden), head.chunk):
        part = slice(start, start + head.chunk)
        with full_precision(hidden):
            logits = F.linear(hidden[part], weight, bias)
            _replace(logits, (target[part], factors[part], values[part]), head.loss, any(wanted))
            if by_hidden is not None:
                torch.mm(logits, weight, out=by_hidden[part])
            if by_weight is not None:
                by_weight.addmm_(logits.t(), hidden[part])
            if by_bias is not None:
                by_bias += logits.sum(0, dtype=working)
            del logits  # before those of the next chunk are made
    return values, [by_hidden, by_weight, None if by_bias is None else by_bias.to(weight.dtype)]


def _replace(
    logits: Tensor, entries: tuple[Tensor, Tensor, Tensor], loss: LossModule, wants_slope: bool
) -> None:
    """Write the loss of each entry into the last of `entries` and its slope over the logits."""
    # On a processor a piece stays in its cache; on an accelerator each is a launch to wait for.
    piece = max(1, -(-len(logits) // (_PIECES if logits.is_cpu else 1)))
    pieces = (each.split(piece) for each in (logits, *entries))
    for rows, target, factor, value in zip(*pieces, strict=True):
        # A tensor of its own, in half precision a copy, that autograd can begin at.
        wide = rows.detach().to(value.dtype).requires_grad_(wants_slope)
        with torch.set_grad_enabled(wants_slope):
            each = loss(wide, target)
        value.copy_(each.detach())
        if wants_slope:
            rows.copy_(torch.autograd.grad(each, wide, factor.to(each.dtype))[0])


def _of_each_entry(
    loss: LossModule, labels: Tensor, count: int | Tensor, classes: int
) -> LossModule:
    """The loss with reduction "none", whose values sum to the given reduction times `count`."""
    each = copy.copy(loss)
    each.reduction, each.class_dim = "none", 1  # of rows
    weights = getattr(loss, "class_weight", None)
    if weights is None or loss.reduction != "mean" or labels.is_floating_point():
        return each
    if weights.shape != (classes,):
        return each  # the loss itself says what is wrong
    weights = weights.to(labels.device)
    # The mean of the cross entropy divides by the weights of all labels, that of a penalty by their
    # number: with such weights both divide by the number.
    valid = labels != loss.ignore_index
    total = torch.where(valid, weights[torch.where(valid, labels, 0)], 0.0).sum()
    scaled = weights * (count / torch.where(total > 0, total, 1.0))
    each._buffers = {**loss._buffers, "class_weight": scaled}
    return each


def _chunk_size(chunk: Chunk, rows: Tensor, weight: Tensor) -> int:
    _check_chunk(chunk)
    if chunk != "auto":
        return chunk
    least, most = (logits // max(1, len(weight)) for logits in (_LEAST_LOGITS, _MOST_LOGITS))
    return max(1, min(max(_LEAST_ROWS, least, len(rows) // _PARTS), most))


def _as_autocast(tensors: list[Tensor | None]) -> list[Any]:
    """The tensors in the type in which autocast would multiply them."""
    device = next(each.device.type for each in tensors if each is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    half = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(half) for x in tensors]


def _check_chunk(chunk: Any) -> None:
    if chunk != "auto":
        check_integer("chunk", chunk, low=1)


def _check_loss(loss: Any) -> None:
    name = type(loss).__name__
    if not isinstance(loss, LossModule):
        raise TypeError(
            "loss must be a module of sfumato.labels such as ACLSLoss(margin=10.0), and no sum of "
            f"several, got {name if isinstance(loss, nn.Module) else repr(loss)}"
        )
    remembers = getattr(loss, "remembers_samples", None)
    is_alone = getattr(loss, "is_of_single_entries", False) and not (
        getattr(loss, "reads_neighbours", False) or (remembers and remembers(vars(loss)))
    )
    if not is_alone:
        raise ValueError(
            f"loss must be a mean over single entries, but {name} compares entries with each other "
            "and has no value for a chunk of them. Compute the logits for it: "
            f"{name}()(F.linear(hidden, weight, bias), target)"
        )
    if any(each.requires_grad for each in loss.parameters()):
        raise ValueError(
            f"loss must have no parameters to train, which get no gradient here, got {name}. "
            "Compute the logits for it"
        )


def _check_tensors(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int
) -> None:
    check_floating("hidden", hidden, hint="Pass what the last linear layer is given")
    check_floating("weight", weight, hint="Pass the weight of the last linear layer")
    if weight.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            "hidden (..., D) and weight (C, D), as an nn.Linear has it, must have the same D, got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({len(weight)},), got {tuple(bias.shape)}")
    types = [each.dtype for each in (hidden, weight, bias) if each is not None]
    if len(set(types)) > 1 and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden, weight and bias must have one dtype, got {types}. Or use autocast"
        )
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    soft = target.is_floating_point()
    expected = (*hidden.shape[:-1], len(weight)) if soft else tuple(hidden.shape[:-1])
    if tuple(target.shape) != expected:
        kind = "soft targets" if soft else "class indices"
        raise ValueError(
            f"target must have shape {expected} ({kind}) for hidden {tuple(hidden.shape)} and "
            f"weight {tuple(weight.shape)}, got {tuple(target.shape)}"
        )
    if target.requires_grad:
        raise ValueError("target must not require a gradient; pass target.detach()")
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target must hold integer class indices, got {target.dtype}")
    # An accelerator's own gather catches wrong ones without a synchronisation.
    if not soft and target.device.type == "cpu" and not is_traced():
        check_class_indices("target", target, len(weight), ignore_index=ignore_index)
