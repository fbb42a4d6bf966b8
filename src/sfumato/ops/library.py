"""Load the compiled kernels, describe tensors to them, call those under metrics and layers."""

from __future__ import annotations

import ctypes
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import is_traced
from sfumato.ops.sources import sources_id

# Old compilers don't know the higher levels; the best that was made is taken.
_LEVELS = {"AVX512": ("avx512", "avx2", "base"), "AVX2": ("avx2", "base")}

# Fewer elements than this aren't worth waking a thread; PyTorch's own measure.
GRAIN = 1 << 15

# What there are kernels for.
REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_SUFFIXES = {torch.float32: "_float", torch.float64: "_double"}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels for this processor, or None."""
    if os.environ.get("SFUMATO_NATIVE", "1") == "0":
        return None
    folder = Path(__file__).parent
    sources = sources_id(folder).encode()
    for level in _LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("base",)):
        try:
            kernels = ctypes.CDLL(str(folder / f"kernels-{level}.so"))
        # Not made by this compiler, or not loadable here: the next level is as right.
        except OSError:
            continue
        kernels.sources.restype = ctypes.c_char_p
        # In a working copy the sources may have moved on since the installation.
        if kernels.sources() == sources:
            return kernels
    return None


def kernel_level() -> str | None:
    """The vector instructions of the kernels in use ("avx512", "avx2", "base"); None without."""
    kernels = library()
    return None if kernels is None else Path(kernels._name).stem.removeprefix("kernels-")


def call(kernel: str, dtype: torch.dtype, job: ctypes.Structure) -> int:
    """Run a kernel, in the precision of `dtype`; gives what it returns."""
    kernels = library()
    if kernels is None:
        raise RuntimeError(f"there is no kernel {kernel}; ask is_within_reach first")
    # As an attribute the function is looked up once, as an item each time.
    return getattr(kernels, kernel + _SUFFIXES[dtype])(ctypes.byref(job))


def threads(elements: int) -> int:
    """Choose how many of PyTorch's threads to use for so many elements."""
    return max(1, min(torch.get_num_threads(), elements // GRAIN))


def has_values(tensor: torch.Tensor) -> bool:
    """True if a kernel finds this tensor's values at its address.

    Not on another device, in a subclass, behind a pending negation (`.conj().imag`), in a tensor of
    zeros that has no memory, or in the batched tensors of `is_grads_batched`.
    """
    if not tensor.is_cpu or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if tensor.is_neg() or tensor.layout != torch.strided:
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # no storage at all
        return False


def is_within_reach(*tensors: torch.Tensor) -> bool:
    """True if kernels are there and can be given the addresses of these tensors' values."""
    # First, because torch.compile can't look behind the cache of `library`.
    return not is_traced() and library() is not None and all(map(has_values, tensors))


def jobs(*fields: tuple[str, Any]) -> dict[torch.dtype, type[ctypes.Structure]]:
    """Structure of a kernel's arguments by precision: names and types, None for that of numbers."""
    return {
        dtype: type("Job", (ctypes.Structure,), {"_fields_": [
            (name, kind or real) for names, kind in fields for name in names.split()
        ]})
        for dtype, real in REAL.items()
    }  # fmt: skip


class Shape(NamedTuple):
    """Sizes of dense predictions."""

    samples: int
    classes: int
    positions: int  # the product of the dimensions after the classes
    is_rows: bool  # the classes of an entry are neighbours in memory


def dense(tensor: Tensor) -> tuple[Tensor, Shape]:
    """(N, C, ...) without gaps in one of the two orders, copied if need be, and its sizes."""
    samples, classes, *rest = tensor.shape
    if not rest:
        return tensor.contiguous(), Shape(samples, classes, 1, True)
    positions = math.prod(rest)
    is_last = tensor.movedim(1, -1).is_contiguous()
    is_rows = is_last or positions == 1
    return tensor if is_last else tensor.contiguous(), Shape(samples, classes, positions, is_rows)


def in_order_of(tensor: Tensor, reference: Tensor) -> Tensor:
    """The same values in the order in memory of a dense tensor of the same shape."""
    if tensor.stride() == reference.stride():
        return tensor
    return torch.empty_like(reference, dtype=tensor.dtype).copy_(tensor)


class Distribution(NamedTuple):
    """Extremes and sum over the classes of each entry, and about its label; (N, ...) each."""

    largest: Tensor
    smallest: Tensor
    sum: Tensor
    own: Tensor  # the probability of the label
    correct: Tensor  # the label is the first class with the largest


_DISTRIBUTION_JOBS = jobs(
    ("probs label correct numbers", ctypes.c_void_p),
    ("samples classes positions", ctypes.c_int64),
    ("is_rows threads", ctypes.c_int32),
)


def read_distribution(probs: Tensor, label: Tensor) -> Distribution | None:
    """One pass over (N, C, ...) probabilities; None where there is no kernel for them."""
    if probs.dtype not in REAL or label.dtype != torch.int64 or probs.numel() == 0:
        return None
    if not is_within_reach(probs, label):
        return None
    probs, shape = dense(probs)
    label = label.contiguous()
    numbers = probs.new_empty((4, *label.shape))
    correct = label.new_empty(label.shape, dtype=torch.bool)
    pointers = [each.data_ptr() for each in (probs, label, correct, numbers)]
    job = _DISTRIBUTION_JOBS[probs.dtype](*pointers, *shape, threads(probs.numel()))
    call("distribution", probs.dtype, job)
    largest, smallest, total, own = numbers.unbind(0)
    return Distribution(largest, smallest, total, own, correct)


_HISTOGRAM_JOBS = jobs(
    ("confidence log_likelihood correct sums", ctypes.c_void_p),
    ("number cells", ctypes.c_int64),
    ("slope start", ctypes.c_double * 2),
)


def can_deposit(confidence: Tensor, sums: Tensor) -> bool:
    """True if there is a kernel for these."""
    is_known = confidence.dtype in REAL and sums.dtype == torch.float64
    return is_within_reach(confidence, sums) and is_known and sums.is_contiguous()


def deposit(
    confidence: Tensor,
    correct: Tensor,
    log_likelihood: Tensor,
    *,
    slope: tuple[float, float],
    start: tuple[float, float],
    sums: Tensor,
) -> None:
    """Add predictions to the cells that they fall in.

    Args:
        confidence: (M,) with a kernel, see `can_deposit`.
        correct: (M,) bool.
        log_likelihood: (M,).
        slope, start: of the two lines whose larger value is the number of the cell.
        sums: (2 G + 1, 2) float64, changed in place: count and confidence of the wrong and of the
            correct predictions of each cell, then log likelihood and its square.
    """
    confidence, correct = confidence.contiguous(), correct.contiguous()
    log_likelihood = log_likelihood.to(confidence.dtype).contiguous()
    pointers = [each.data_ptr() for each in (confidence, log_likelihood, correct, sums)]
    job = _HISTOGRAM_JOBS[confidence.dtype]
    sizes = (len(confidence), len(sums) // 2)
    lost = call("deposit", confidence.dtype, job(*pointers, *sizes, slope, start))
    if lost:
        raise ValueError(
            f"confidences must be numbers in [0, 1], got NaN or less than 0 for {lost} of them"
        )


_SMOOTHING_JOBS = jobs(
    ("x upstream out", ctypes.c_void_p),
    ("samples height width channels", ctypes.c_int64),
    ("temperature", None),
    ("threads", ctypes.c_int32),
)


def can_smooth(z: Tensor) -> bool:
    """True if there is a kernel for this map: on the CPU, (N, C, H, W) in channels_last."""
    is_known = is_within_reach(z) and z.dtype in REAL and z.numel() > 0
    return is_known and z.is_contiguous(memory_format=torch.channels_last)


def smooth_map(z: Tensor, temperature: float, upstream: Tensor | None = None) -> Tensor:
    """Blur(Prob(z)) with the 2x2 box, tanh and zeros outside; or its gradient."""
    # The kernel walks both maps with one index, so their order in memory must agree.
    if upstream is not None:
        upstream = upstream.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(z, memory_format=torch.channels_last)
    samples, channels, height, width = z.shape
    pointers = [None if each is None else each.data_ptr() for each in (z, upstream, out)]
    sizes = (samples, height, width, channels)
    job = _SMOOTHING_JOBS[z.dtype](*pointers, *sizes, temperature, threads(z.numel()))
    if call("smooth", z.dtype, job):
        raise MemoryError("no memory for a row of the map")
    return out
