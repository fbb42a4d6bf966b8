"""The kernel that adds confidences to the cells of a histogram."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sfumato.ops.library import REAL, call, is_within_reach


class _Job(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("confidence", "log_likelihood", "correct", "sums")),
        ("number", ctypes.c_int64),
        ("cells", ctypes.c_int64),
        ("slope", ctypes.c_double * 2),
        ("start", ctypes.c_double * 2),
    )


def can_deposit(confidence: Tensor, sums: Tensor) -> bool:
    """Whether there is a kernel for these."""
    within_reach = is_within_reach(confidence) and is_within_reach(sums)
    is_known = confidence.dtype in REAL and sums.dtype == torch.float64
    return within_reach and is_known and sums.is_contiguous()


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

    Raises:
        ValueError: a confidence is NaN.
    """
    confidence, correct = confidence.contiguous(), correct.contiguous()
    log_likelihood = log_likelihood.to(confidence.dtype).contiguous()
    job = _Job(
        confidence.data_ptr(),
        log_likelihood.data_ptr(),
        correct.data_ptr(),
        sums.data_ptr(),
        len(confidence),
        len(sums) // 2,
        slope,
        start,
    )
    lost = call("deposit", confidence.dtype, job)
    if lost:
        raise ValueError(
            f"confidences must be numbers in [0, 1], got NaN or less than 0 for {lost} of them"
        )
