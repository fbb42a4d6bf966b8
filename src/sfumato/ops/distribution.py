"""What metrics read off probabilities, in one pass (`distribution.inc`)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.ops.library import REAL, call, is_within_reach, threads
from sfumato.ops.memory import dense


class Distribution(NamedTuple):
    """What is known of each entry of probabilities; (N, ...) each.

    Attributes:
        largest, smallest, sum: over the classes.
        own: the probability of the label.
        correct: whether the label is the first class with the largest.
    """

    largest: Tensor
    smallest: Tensor
    sum: Tensor
    own: Tensor
    correct: Tensor


class _Job(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("probs", "label", "correct", "numbers")),
        *((name, ctypes.c_int64) for name in ("samples", "classes", "positions")),
        *((name, ctypes.c_int32) for name in ("is_rows", "threads")),
    )


def read_distribution(probs: Tensor, label: Tensor) -> Distribution | None:
    """One pass over (N, C, ...) probabilities; None where there is no kernel for them.

    Args:
        probs: probabilities.
        label: (N, ...) class indices in [0, C); they are used as addresses.
    """
    if probs.dtype not in REAL or label.dtype != torch.int64 or probs.numel() == 0:
        return None
    if not is_within_reach(probs, label):
        return None
    probs, shape = dense(probs)
    label = label.contiguous()
    numbers = probs.new_empty((4, *label.shape))
    correct = label.new_empty(label.shape, dtype=torch.bool)
    pointers = [each.data_ptr() for each in (probs, label, correct, numbers)]
    call("distribution", probs.dtype, _Job(*pointers, *shape, threads(probs.numel())))
    largest, smallest, total, own = numbers.unbind(0)
    return Distribution(largest, smallest, total, own, correct)
