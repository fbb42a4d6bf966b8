"""The kernel of `smooth.inc`: the spatial smoothing layer in one pass each way."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sfumato.ops.library import REAL, call, is_within_reach, threads


def can_smooth(z: Tensor) -> bool:
    """True if there is a kernel for this map: on the CPU, (N, C, H, W) in channels_last."""
    return (
        is_within_reach(z)
        and z.dtype in REAL
        and z.numel() > 0
        and z.is_contiguous(memory_format=torch.channels_last)
    )


def smooth_map(z: Tensor, temperature: float, upstream: Tensor | None = None) -> Tensor:
    """Blur(Prob(z)) with the 2x2 box, tanh and zeros outside; or its gradient."""
    # The kernel walks both maps with one index, so their order in memory must agree.
    if upstream is not None:
        upstream = upstream.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(z, memory_format=torch.channels_last)
    samples, channels, height, width = z.shape
    job = _JOBS[z.dtype](
        z.data_ptr(),
        None if upstream is None else upstream.data_ptr(),
        out.data_ptr(),
        samples,
        height,
        width,
        channels,
        temperature,
        threads(z.numel()),
    )
    if call("smooth", z.dtype, job):
        raise MemoryError("no memory for a row of the map")
    return out


def _structure(real: type) -> type[ctypes.Structure]:
    class Job(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in ("x", "upstream", "out")),
            *((name, ctypes.c_int64) for name in ("samples", "height", "width", "channels")),
            ("temperature", real),
            ("threads", ctypes.c_int32),
        )

    return Job


_JOBS = {dtype: _structure(real) for dtype, real in REAL.items()}
