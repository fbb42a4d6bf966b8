"""How (N, C, ...) predictions lie in memory: rows of classes, or a plane for each class."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Shape(NamedTuple):
    """Sizes of dense predictions.

    Attributes:
        samples: N.
        classes: C.
        positions: the product of the dimensions after the classes.
        is_rows: whether the classes of an entry are neighbours in memory.
    """

    samples: int
    classes: int
    positions: int
    is_rows: bool


def dense(tensor: Tensor) -> tuple[Tensor, Shape]:
    """(N, C, ...) without gaps in one of the two orders, copied if need be, and its sizes."""
    samples, classes, *rest = tensor.shape
    if not rest:
        return tensor.contiguous(), Shape(samples, classes, 1, True)
    order = _CHANNELS_LAST.get(tensor.ndim)
    positions = math.prod(rest)
    is_last = order is not None and tensor.is_contiguous(memory_format=order)
    is_rows = is_last or positions == 1
    return tensor if is_last else tensor.contiguous(), Shape(samples, classes, positions, is_rows)


def in_order_of(tensor: Tensor, reference: Tensor) -> Tensor:
    """The same values in the order in memory of a dense tensor of the same shape."""
    if tensor.stride() == reference.stride():
        return tensor
    return torch.empty_like(reference).copy_(tensor)
