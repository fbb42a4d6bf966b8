"""The kernel of `softmax.inc`: a pass reads the numbers of each softmax, another writes back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato.ops.library import REAL, call, is_within_reach, threads
from sfumato.ops.memory import Shape, dense, in_order_of

Also = Literal["brier", "following", "distance"]
# In the order in which the kernel keeps them; what they mean is in `softmax`.
_ALWAYS = ("label", "top", "total", "entropy", "highest", "top_ties", "normaliser")
# One of these besides: those with a derivative, and constants that belong to them.
_MORE: dict[str | None, tuple[tuple[str, ...], tuple[str, ...]]] = {
    None: ((), ()),
    "margin": (("range", "excess", "squares"), ("number", "low_ties")),
    "brier": (("brier",), ("tilt",)),
    "following": (("following",), ("following_ties", "behind")),
    "distance": (("distance",), ()),
}
_NUMBERS = len(_ALWAYS) + max(len(smooth + constant) for smooth, constant in _MORE.values()) + 1
_PLACES = {name: place for place, name in enumerate(_ALWAYS)} | {
    name: len(_ALWAYS) + place
    for smooth, constant in _MORE.values()
    for place, name in enumerate(smooth + constant)
}  # and the mass of soft targets, which is the last
# For each of these: its number in the kernel, the names with a derivative, how many are kept.
_LAYOUTS = {
    more: (kind, _ALWAYS[:-2] + smooth, len(_ALWAYS + smooth + constant))
    for kind, (more, (smooth, constant)) in enumerate(_MORE.items())
}
# Labels that are skipped can be any number but this one, which no label is.
NOTHING_IGNORED = -(2**63)
# As in `kernels.c`: so many entries are worked on at a time.
_TILE = 128


class Reading(NamedTuple):
    """What a pass over the logits found.

    Attributes:
        names: the numbers with a derivative that are handed out.
        numbers: (K, N, ...), one value of each entry for each number, constants included.
        predicted: (N, ...) the first class at the top, or None.
        totals: (C,) sums of the probabilities of all valid entries, or None.
        valid: how many entries are not ignored.
        strange: how many labels are outside [0, C) and not ignored.
    """

    names: tuple[str, ...]
    numbers: Tensor
    predicted: Tensor | None
    totals: Tensor | None
    valid: int
    strange: int

    def outputs(self) -> tuple[Tensor, ...]:
        """What has a derivative: each of `names`, (N, ...), and the totals where they are there."""
        if len(self.names) < 3:  # cheaper than a view of every number
            numbers = tuple(map(self.of, self.names))
        else:
            rows = self.numbers.unbind(0)
            numbers = tuple(rows[_PLACES[name]] for name in self.names)
        return numbers if self.totals is None else (*numbers, self.totals)

    def predicted_classes(self) -> Tensor:
        """`predicted`, where it was asked for."""
        if self.predicted is None:
            raise TypeError("read_numbers was called without wants_predicted")
        return self.predicted

    def of(self, name: str) -> Tensor:
        """One of the numbers, (N, ...)."""
        return self.numbers[_PLACES[name]]


class Pass(NamedTuple):
    """Logits and targets in the form that the kernel takes, and what to read.

    Attributes:
        logits: (N, C, ...), dense.
        target: class indices (N, ...) without gaps, or None.
        soft_target: in the order of the logits, or None.
        table: (C, C), the soft target of each label, or None.
        margins: (C,), where each class has a margin of its own.
        shape: of the logits.
        margin: beyond which classes are counted; None where there is none or each has its own.
        ignore_index: label of entries to skip.
        also: what is read besides.
    """

    logits: Tensor
    target: Tensor | None
    soft_target: Tensor | None
    table: Tensor | None
    margins: Tensor | None
    shape: Shape
    margin: float | None = None
    ignore_index: int = NOTHING_IGNORED
    also: Also | None = None

    @property
    def more(self) -> str | None:
        """Which numbers are read beside those that are always there."""
        has_margin = self.margin is not None or self.margins is not None
        return "margin" if has_margin else self.also

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What a gradient needs again."""
        return self[:5]

    @property
    def options(self) -> tuple[Shape, float | None, int, Also | None]:
        """The rest of it."""
        return self[5:]


def plan_pass(
    logits: Tensor,
    target: Tensor | None = None,
    soft_target: Tensor | None = None,
    table: Tensor | None = None,
    margin: float | Tensor | None = None,
    ignore_index: int = NOTHING_IGNORED,
    also: Also | None = None,
) -> Pass | None:
    """What to give to the kernel; None where there is none for such tensors."""
    margins, margin = (margin, None) if isinstance(margin, Tensor) else (None, margin)
    given = [each for each in (logits, target, soft_target, table, margins) if each is not None]
    if logits.dtype not in REAL or logits.numel() == 0 or not is_within_reach(*given):
        return None
    # Of soft targets these numbers are sums of their own, and a volume has other neighbours.
    if also is not None and (soft_target is not None or (also == "distance" and logits.ndim > 4)):
        return None
    logits, shape = dense(logits)
    target, table, margins = _contiguous(target), _contiguous(table), _contiguous(margins)
    if soft_target is not None:
        soft_target = in_order_of(soft_target, logits)
    return Pass(logits, target, soft_target, table, margins, shape, margin, ignore_index, also)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def read_numbers(
    plan: Pass,
    *,
    only: tuple[str, ...] | None = None,
    wants_predicted: bool = False,
    wants_totals: bool = False,
) -> Reading:
    """The first pass; all numbers with a derivative are handed out, or `only` some of them."""
    samples, classes, *positions = plan.logits.shape
    entries = (samples, *positions)
    _, names, kept = _LAYOUTS[plan.more]
    kept = kept if plan.soft_target is None and plan.table is None else _NUMBERS
    numbers = plan.logits.new_empty((kept, *entries))
    job, _shares = _job(plan, numbers)
    predicted = totals = None
    if wants_predicted:
        predicted = torch.empty(entries, dtype=torch.int64, device="cpu")
        job.predicted = predicted.data_ptr()
    if wants_totals:
        each = torch.zeros((job.threads, classes), dtype=torch.float64, device="cpu")
        job.totals = each.data_ptr()
    call("softmax", numbers.dtype, job)
    if wants_totals:
        totals = (each[0] if len(each) == 1 else each.sum(0)).to(numbers.dtype)
    return Reading(only or names, numbers, predicted, totals, job.valid, job.strange)


def write_gradient(
    plan: Pass, numbers: Tensor, upstream: Mapping[str, Tensor | None], direction: Tensor | None
) -> Tensor:
    """The second pass: the gradient of the logits.

    Args:
        plan: that of the first pass.
        numbers: what it read.
        upstream: derivative by each number, (N, ...).
        direction: derivative by the totals, (C,).
    """
    gradient = torch.empty_like(plan.logits)
    job, shares = _job(plan, numbers)
    job.gradient = gradient.data_ptr()
    kept = [shares]  # What is made here has to live until the end.
    for name, values in upstream.items():
        if values is not None:
            place = _PLACES[name]
            is_one = not any(values.stride())
            values = values if is_one else values.contiguous()
            kept.append(values)
            job.upstream[place], job.step[place] = values.data_ptr(), int(not is_one)
    if direction is not None:
        direction = direction.contiguous()
        job.direction = direction.data_ptr()
    call("softmax", numbers.dtype, job)
    return gradient


def _structure(real: type) -> type[ctypes.Structure]:
    pointers = ("logits", "soft", "table", "margins", "shares", "label")
    results = ("numbers", "predicted", "totals", "gradient")
    sizes = ("samples", "classes", "positions", "height", "width", "ignored", "valid", "strange")

    class Job(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in (*pointers, *results)),
            ("upstream", ctypes.c_void_p * _NUMBERS),
            ("step", ctypes.c_int64 * _NUMBERS),
            ("direction", ctypes.c_void_p),
            *((name, ctypes.c_int64) for name in sizes),
            ("margin", real),
            *((name, ctypes.c_int32) for name in ("more", "is_rows", "threads")),
        )

    return Job


_JOBS = {dtype: _structure(real) for dtype, real in REAL.items()}


def _job(plan: Pass, numbers: Tensor) -> tuple[ctypes.Structure, Tensor | None]:
    """What the kernel is told, and room for the targets that it makes itself."""
    logits, target, soft_target, table, margins, shape, margin, ignore_index, also = plan
    job = _JOBS[numbers.dtype](logits.data_ptr())
    job.numbers = numbers.data_ptr()
    if target is not None:
        job.label = target.data_ptr()
    if soft_target is not None:
        job.soft = soft_target.data_ptr()
    if table is not None:
        job.table = table.data_ptr()
    if margins is not None:
        job.margins = margins.data_ptr()
    job.samples, job.classes, job.positions, job.is_rows = shape
    job.ignored = ignore_index
    if margin is not None:
        job.margin = margin
    job.more = _LAYOUTS[plan.more][0]
    job.threads = threads(logits.numel())
    if table is None and also != "distance":
        return job, None
    job.height, job.width = (1, 1, *logits.shape[2:])[-2:]
    shares = numbers.new_empty((job.threads, job.classes * _TILE))
    job.shares = shares.data_ptr()
    return job, shares
