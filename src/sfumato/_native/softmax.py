"""The kernels of `softmax.inc`: a dozen numbers of each softmax, and the gradient made of them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._native import REAL, call, is_within_reach, threads

_STATISTICS = 11
_WITHOUT_MARGIN = 6


class Beyond(NamedTuple):
    """What is known of each entry beside a margin M; (N, 1, S) each.

    Attributes:
        top_ties, low_ties: how many classes are at the top, at the low end.
        number: how many classes are farther than the margin below the top, x_k < -M.
        excess: sum over those of x_k + M.
        squares: sum over those of (x_k + M)^2.
    """

    top_ties: Tensor
    low_ties: Tensor
    number: Tensor
    excess: Tensor
    squares: Tensor


class Summary(NamedTuple):
    """What is known of each entry, x_k = z_k - max z; (N, 1, S) each.

    Attributes:
        top: max_k z_k.
        low: min_k x_k.
        normaliser: sum_k exp(x_k).
        entropy: sum_k x_k exp(x_k).
        sum: sum_k x_k.
        label: x of the label.
        beyond: what a margin adds, or None.
    """

    top: Tensor
    low: Tensor
    normaliser: Tensor
    entropy: Tensor
    sum: Tensor
    label: Tensor
    beyond: Beyond | None = None


class Coefficients(NamedTuple):
    """What the gradient of each entry is made of; (N, 1, S) each, or one number for all; None is 0.

        g_k = (factor + entropic x_k) e^{x_k} + shift + [x_k < -M] (beyond + excess (x_k + M))
              + [k = label] at_label + [x_k = 0] at_top + [x_k = low] at_low

    The last four need a margin.
    """

    factor: Tensor | None = None
    entropic: Tensor | None = None
    shift: Tensor | None = None
    at_label: Tensor | None = None
    at_top: Tensor | None = None
    at_low: Tensor | None = None
    beyond: Tensor | None = None
    excess: Tensor | None = None


def as_maps(tensor: Tensor) -> Tensor:
    """(N, C, ...) as (N, C, S): a view of contiguous and of channels-last tensors."""
    return tensor.unsqueeze(-1) if tensor.ndim == 2 else tensor.flatten(2)


def can_pass_over(logits: Tensor, label: Tensor) -> bool:
    """Whether there is a kernel for these (N, C, S) logits and class indices."""
    return (
        is_within_reach(logits)
        and is_within_reach(label)
        and logits.dtype in REAL
        and label.dtype == torch.int64
        and logits.numel() > 0
        and (logits.stride(1) == 1 or logits.stride(2) == 1)
    )


def softmax_summary(
    logits: Tensor, label: Tensor, margin: float | None = None, *, predicted: Tensor | None = None
) -> Summary:
    """One pass over (N, C, S) logits.

    Args:
        logits: for which `can_pass_over` holds.
        label: (N, 1, S) class indices.
        margin: M, or None.
        predicted: (N, 1, S) int64 without gaps, to be filled with the first class at the top.
    """
    samples, _, positions = logits.shape
    number = _WITHOUT_MARGIN if margin is None else _STATISTICS
    statistics = logits.new_empty((number, samples, 1, positions))
    label = label.contiguous()
    job = _job(logits, label, margin)
    job.statistics = statistics.data_ptr()
    job.predicted = None if predicted is None else predicted.data_ptr()
    call("softmax", logits.dtype, job)
    plain, beyond = statistics[:_WITHOUT_MARGIN], statistics[_WITHOUT_MARGIN:]
    top, low, normaliser, entropy, total, label_distance = plain.unbind(0)
    return Summary(
        top=top,
        low=low,
        normaliser=normaliser,
        entropy=entropy,
        sum=total,
        label=label_distance,
        beyond=Beyond(*beyond.unbind(0)) if len(beyond) else None,
    )


def softmax_gradient(
    logits: Tensor,
    label: Tensor,
    top: Tensor,
    coefficients: Coefficients,
    *,
    low: Tensor | None = None,
    margin: float | None = None,
    out: Tensor,
) -> None:
    """Another pass, which writes the gradient.

    Args:
        logits: as for the summary.
        label: (N, 1, S) class indices.
        top: of the summary.
        coefficients: what to write.
        low: of the summary, needed with a margin.
        margin: M, or None.
        out: like the logits, see `has_layout_of`.
    """
    if not has_layout_of(out, logits):
        raise ValueError(f"out has strides {out.stride()}, the logits {logits.stride()}")
    label = label.contiguous()
    job = _job(logits, label, margin)
    job.gradient = out.data_ptr()
    per_entry = {"top": top, "low": low, **coefficients._asdict()}
    nothing = torch.zeros_like(top)
    kept = []  # Everything becomes an array, which has to live until the end.
    for name, value in per_entry.items():
        kept.append(nothing if value is None else value.to(top.dtype).expand_as(top).contiguous())
        setattr(job, name, kept[-1].data_ptr())
    call("softmax", logits.dtype, job)


class Distribution(NamedTuple):
    """What is known of each entry of probabilities; (N, 1, S) each.

    Attributes:
        top: the largest.
        low: the smallest.
        sum: their sum.
        own: that of the label.
        correct: whether the label is the first class with the largest.
    """

    top: Tensor
    low: Tensor
    sum: Tensor
    own: Tensor
    correct: Tensor


def distribution_summary(probs: Tensor, label: Tensor) -> Distribution:
    """One pass over (N, C, S) probabilities, for which `can_pass_over` holds."""
    statistics = probs.new_empty((4, *label.shape))
    correct = label.new_empty(label.shape, dtype=torch.bool)
    label = label.contiguous()
    job = _job(probs, label, None)
    job.statistics, job.correct = statistics.data_ptr(), correct.data_ptr()
    call("distribution", probs.dtype, job)
    top, low, total, own = statistics.unbind(0)
    return Distribution(top=top, low=low, sum=total, own=own, correct=correct)


def has_layout_of(tensor: Tensor, logits: Tensor) -> bool:
    """Whether elements of the two lie at the same places."""
    pairs = zip(tensor.shape, tensor.stride(), logits.stride(), strict=True)
    return tensor.shape == logits.shape and all(size == 1 or a == b for size, a, b in pairs)


def _structure(real: type) -> type[ctypes.Structure]:
    pointers = (
        "logits gradient label predicted correct low top factor entropic shift "
        "at_label at_top at_low beyond excess statistics"
    )
    sizes = "samples classes positions sample_stride class_stride position_stride"

    class Job(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in pointers.split()),
            *((name, ctypes.c_int64) for name in sizes.split()),
            ("margin", real),
            ("has_margin", ctypes.c_int32),
            ("threads", ctypes.c_int32),
        )

    return Job


_JOBS = {dtype: _structure(real) for dtype, real in REAL.items()}


def _job(logits: Tensor, label: Tensor, margin: float | None) -> ctypes.Structure:
    job = _JOBS[logits.dtype]()
    job.logits, job.label = logits.data_ptr(), label.data_ptr()
    job.samples, job.classes, job.positions = logits.shape
    job.sample_stride, job.class_stride, job.position_stride = logits.stride()
    job.margin, job.has_margin = (0.0, 0) if margin is None else (margin, 1)
    job.threads = threads(logits.numel())
    return job
