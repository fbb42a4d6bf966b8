"""The compiled kernels: which are loaded, which tensors they can be given, how they are called.

The kernels share PyTorch's own pool of threads: they name OpenMP's functions without linking a
second OpenMP, so that the one PyTorch has loaded answers.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

from sfumato._core.tracing import is_watched
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
    result: int = getattr(kernels, kernel + _SUFFIXES[dtype])(ctypes.byref(job))
    return result


def threads(elements: int) -> int:
    """How many of PyTorch's threads to use for so many elements."""
    return max(1, min(torch.get_num_threads(), elements // GRAIN))


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a kernel finds this tensor's values at its address.

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
    """Whether kernels are there and can be given the addresses of these tensors' values."""
    # First, because torch.compile can't look behind the cache of `library`.
    return not is_watched() and library() is not None and all(map(has_values, tensors))
