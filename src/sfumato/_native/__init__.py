"""Passes over memory that PyTorch has no single operation for, in C.

Installing the package compiles `kernels.c` where there is a C compiler (`hatch_build.py`), once for
each level of vector instructions. Where there is none, or the environment says SFUMATO_NATIVE=0,
`library()` is None and the same results come from PyTorch's operations, with more passes.

The kernels share PyTorch's own pool of threads: they name OpenMP's functions without linking a
second OpenMP, so that the one PyTorch has loaded answers.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

from sfumato._native.sources import sources_id

# Old compilers don't know the higher levels; the best that was made is taken.
_LEVELS = {"AVX512": ("avx512", "avx2", "base"), "AVX2": ("avx2", "base")}
# Fewer elements than this aren't worth waking a thread; PyTorch's own measure.
GRAIN = 1 << 15
# What there are kernels for.
REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


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


def call(kernel: str, dtype: torch.dtype, job: ctypes.Structure) -> int:
    """Run a kernel, in the precision of `dtype`; gives what it returns."""
    kernels = library()
    if kernels is None:
        raise RuntimeError(f"there is no kernel {kernel}; ask is_within_reach first")
    suffix = "float" if dtype == torch.float32 else "double"
    result: int = kernels[f"{kernel}_{suffix}"](ctypes.byref(job))
    return result


def threads(elements: int) -> int:
    """How many of PyTorch's threads to use for so many elements."""
    return max(1, min(torch.get_num_threads(), elements // GRAIN))


def is_within_reach(tensor: torch.Tensor) -> bool:
    """Whether kernels are there and can be given the address of this tensor's values."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack():  # make_fx, FlopCounterMode, ... watch operations
        return False
    if tensor.device.type != "cpu" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return not torch._C._are_functorch_transforms_active() and library() is not None
