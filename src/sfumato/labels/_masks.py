"""Counting and finding in class-sized buffers, by operations that vectorise on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor


def flat(buffer: Tensor) -> Tensor:
    """The elements of a buffer in the order of memory; buffers have no gaps."""
    return buffer.as_strided((buffer.numel(),), (1,))


def number_of_units(buffer: Tensor) -> float:
    """How many of -1, 0 and 1 aren't 0; not known on an accelerator, as that would be a wait."""
    if buffer.device.type != "cpu":
        return float("nan")
    units = flat(buffer)
    return torch.dot(units, units).item()


def only_zero(shifted: Tensor, *, scratch: Tensor) -> Tensor | None:
    """Index of the one class that is 0 in each entry, (n, 1, s); None if it isn't one everywhere.

    On the CPU a search along a dimension runs element by element. A mask of the zeros and one
    matrix product count them and sum their indices, which is the answer where there is one. A
    product in reduced precision can round an index: what it names is looked at before use.
    """
    mask = torch.eq(shifted, 0, out=scratch)
    classes = shifted.shape[1]
    numbers = torch.arange(classes, dtype=mask.dtype)
    weights = torch.stack([torch.ones_like(numbers), numbers])
    count, index = torch.einsum("kc,ncs->kns", weights, mask).unsqueeze(2).unbind(0)
    index = index.long().clamp(0, classes - 1)
    is_found = bool((count == 1).all()) and not bool(shifted.gather(1, index).any())
    return index if is_found else None
