"""Arrays as people have them: tensors, numpy arrays or lists in, the same kind out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import check_class_indices


def to_tensor(name: str, value: Any) -> Tensor:
    """A tensor of `value`, detached; anything that numpy takes for an array of numbers."""
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must be numbers, got {type(value).__name__} of {array.dtype}. Turn names of "
            "classes into their positions first."
        )
    if array.dtype.kind == "u":  # PyTorch does little with unsigned numbers
        array = array.astype(np.int64)
    native = array.astype(array.dtype.newbyteorder("="))  # a copy: no negative strides, writable
    return torch.from_numpy(native)


def numpy_to_tensor(value: Any) -> Any:
    """A tensor of a numpy array; anything else as it is, to be checked where it is used."""
    return to_tensor("array", value) if isinstance(value, np.ndarray) else value


def like_input(result: Tensor, value: Any) -> Any:
    """`result` as a tensor where `value` is one, else as a numpy array."""
    return result if isinstance(value, Tensor) else result.cpu().numpy()


def to_scores(name: str, value: Any) -> Tensor:
    """One number in [0, 1] for each sample, (N,) float64."""
    scores = to_tensor(name, value).double()
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"{name} must be (N,) with N >= 1, got {tuple(scores.shape)}")
    bad = ~((scores >= 0) & (scores <= 1))
    if bool(bad.any()):
        where = int(bad.nonzero()[0])
        raise ValueError(
            f"{name} must be numbers in [0, 1], got {float(scores[where]):g} at position {where}"
        )
    return scores


def to_outcomes(name: str, value: Any, count: int) -> Tensor:
    """Yes or no for each of `count` samples, (N,) bool."""
    outcomes = to_tensor(name, value)
    if tuple(outcomes.shape) != (count,):
        raise ValueError(f"{name} must be ({count},), got {tuple(outcomes.shape)}")
    if not bool(((outcomes == 0) | (outcomes == 1)).all()):
        raise ValueError(f"{name} must be true or false (1 or 0) for each sample")
    return outcomes.bool()


def to_labels(name: str, value: Any, count: int, num_classes: int) -> Tensor:
    """A class index for each of `count` samples, (N,) int64."""
    labels = to_tensor(name, value)
    if tuple(labels.shape) != (count,):
        raise ValueError(f"{name} must be ({count},), got {tuple(labels.shape)}")
    check_class_indices(name, labels, num_classes)
    return labels.long()


def to_codes(name: str, value: Any, count: int) -> Tensor:
    """Numbers from 0 for the names or numbers of `count` samples, equal for equal ones, (N,)."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.shape != (count,):
        raise ValueError(f"{name} must be ({count},), got {array.shape}")
    _, codes = np.unique(array, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64))
