"""The partner of each entry in losses that rank a batch: the next valid entry, last with first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def next_valid(valid: Tensor | None, like: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from values of the entries to those of their partners, of the same shape.

    Args:
        valid: (N, ...), which entries count; None for all. An ignored entry's partner is arbitrary.
        like: (N, ...), any values of the entries.
    """
    if valid is None:
        return lambda values: values.flatten().roll(-1).view(like.shape)
    # Stable: valid entries first, in their order, whatever lies between them.
    order = (~valid.flatten()).byte().argsort(stable=True)
    place = torch.arange(len(order), device=order.device)
    following = order[torch.where(place + 1 < valid.sum(), place + 1, 0)]
    partner = torch.empty_like(order).scatter(0, order, following)
    return lambda values: values.flatten()[partner].view(like.shape)
