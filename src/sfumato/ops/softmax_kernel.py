"""The kernel of `softmax.inc`: a pass reads the numbers of each softmax, another writes back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.ops.library import REAL, call, is_within_reach, threads
from sfumato.ops.memory import Shape, dense, in_order_of

# In the order in which the kernel keeps them; what they mean is in `softmax`.
_ALWAYS = ("label", "top", "total", "entropy", "highest", "top_ties", "normaliser")
_WITH_MARGIN = ("range", "excess", "squares", "number", "low_ties")
NUMBERS = (*_ALWAYS, *_WITH_MARGIN, "mass")
_PLACES = {name: place for place, name in enumerate(NUMBERS)}
# Those with a derivative: the last two of each are constants.
_SMOOTH = _ALWAYS[:-2]
_SMOOTH_WITH_MARGIN = (*_SMOOTH, *_WITH_MARGIN[:-2])
# Labels that are skipped can be any number but this one, which no label is.
NOTHING_IGNORED = -(2**63)


class Reading(NamedTuple):
    """What a pass over the logits found.

    Attributes:
        names: those of `NUMBERS` that were read and have a derivative.
        numbers: (K, N, ...), one value of each entry for each of `NUMBERS` (those that were read).
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
        shape: of the logits.
        margin: beyond which classes are counted, or None.
        ignore_index: label of entries to skip.
    """

    logits: Tensor
    target: Tensor | None
    soft_target: Tensor | None
    shape: Shape
    margin: float | None = None
    ignore_index: int = NOTHING_IGNORED


def plan_pass(
    logits: Tensor,
    target: Tensor | None = None,
    soft_target: Tensor | None = None,
    *,
    margin: float | None = None,
    ignore_index: int = NOTHING_IGNORED,
) -> Pass | None:
    """What to give to the kernel; None where there is none for such tensors."""
    given = [each for each in (logits, target, soft_target) if each is not None]
    if logits.dtype not in REAL or logits.numel() == 0 or not is_within_reach(*given):
        return None
    logits, shape = dense(logits)
    if target is not None:
        target = target.contiguous()
    if soft_target is not None:
        soft_target = in_order_of(soft_target, logits)
    return Pass(logits, target, soft_target, shape, margin, ignore_index)


def read_numbers(
    plan: Pass, *, wants_predicted: bool = False, wants_totals: bool = False
) -> Reading:
    """The first pass."""
    samples, classes, _, _ = plan.shape
    entries = (samples, *plan.logits.shape[2:])
    kept = len(_ALWAYS) if plan.margin is None else len(_ALWAYS) + len(_WITH_MARGIN)
    kept = kept if plan.soft_target is None else len(NUMBERS)
    numbers = plan.logits.new_empty((kept, *entries))
    job = _job(plan, numbers)
    predicted = totals = None
    if wants_predicted:
        predicted = torch.empty(entries, dtype=torch.int64, device="cpu")
        job.predicted = predicted.data_ptr()
    if wants_totals:
        each = torch.zeros((job.threads, classes), dtype=torch.float64, device="cpu")
        job.totals = each.data_ptr()
    call("softmax", numbers.dtype, job)
    if wants_totals:
        totals = each.sum(0).to(numbers.dtype)
    names = _SMOOTH if plan.margin is None else _SMOOTH_WITH_MARGIN
    return Reading(names, numbers, predicted, totals, job.valid, job.strange)


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
    job = _job(plan, numbers)
    job.gradient = gradient.data_ptr()
    kept = []  # What is copied has to live until the end.
    for name, values in upstream.items():
        if values is not None:
            place = _PLACES[name]
            is_one = not any(values.stride())
            kept.append(values if is_one else values.contiguous())
            job.upstream[place], job.step[place] = kept[-1].data_ptr(), int(not is_one)
    if direction is not None:
        kept.append(direction.contiguous())
        job.direction = kept[-1].data_ptr()
    call("softmax", numbers.dtype, job)
    return gradient


def _structure(real: type) -> type[ctypes.Structure]:
    pointers = ("logits", "soft", "label", "numbers", "predicted", "totals", "gradient")
    sizes = ("samples", "classes", "positions", "ignored", "valid", "strange")

    class Job(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in pointers),
            ("upstream", ctypes.c_void_p * len(NUMBERS)),
            ("step", ctypes.c_int64 * len(NUMBERS)),
            ("direction", ctypes.c_void_p),
            *((name, ctypes.c_int64) for name in sizes),
            ("margin", real),
            *((name, ctypes.c_int32) for name in ("has_margin", "is_rows", "threads")),
        )

    return Job


_JOBS = {dtype: _structure(real) for dtype, real in REAL.items()}


def _job(plan: Pass, numbers: Tensor) -> ctypes.Structure:
    job = _JOBS[numbers.dtype]()
    job.logits, job.numbers = plan.logits.data_ptr(), numbers.data_ptr()
    if plan.target is not None:
        job.label = plan.target.data_ptr()
    if plan.soft_target is not None:
        job.soft = plan.soft_target.data_ptr()
    job.samples, job.classes, job.positions, job.is_rows = plan.shape
    job.ignored = plan.ignore_index
    job.margin, job.has_margin = (0.0, 0) if plan.margin is None else (plan.margin, 1)
    job.threads = threads(plan.logits.numel())
    return job
