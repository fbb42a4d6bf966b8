"""In which order an epoch goes through a set."""

from __future__ import annotations

import torch
from torch import Tensor

_BATCHES_SORTED_TOGETHER = 50


def epoch_order(
    total: int, batch_size: int, lengths: Tensor | None, generator: torch.Generator
) -> Tensor:
    """A random order of `total` samples; where they have lengths, with similar ones in a batch.

    A batch is as long as its longest text. The shuffled samples are therefore sorted by length
    within groups of 50 batches, and the batches are shuffled again: the company of a text changes
    from epoch to epoch, and little padding is computed. What doesn't fill a batch comes last and
    is as random as the rest, so that leaving it out leaves out no special length.

    Example:
        >>> lengths = torch.tensor([9, 1, 8, 2, 7])
        >>> order = epoch_order(5, 2, lengths, torch.Generator().manual_seed(0))
        >>> lengths[order].tolist()
        [2, 1, 9, 7, 8]
    """
    order = torch.randperm(total, generator=generator)
    if lengths is None:
        return order
    full = total - total % batch_size
    groups = order[:full].split(batch_size * _BATCHES_SORTED_TOGETHER)
    ordered = [group[lengths[group].argsort(descending=True, stable=True)] for group in groups]
    batches = torch.cat([*ordered, order[:0]]).view(-1, batch_size)
    batches = batches[torch.randperm(len(batches), generator=generator)]
    return torch.cat([batches.flatten(), order[full:]])
