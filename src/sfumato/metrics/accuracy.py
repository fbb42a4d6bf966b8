"""Share of correct predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.metrics.scored_samples import flat_rows


def accuracy(
    probs: Tensor,
    target: Tensor,
    *,
    top_k: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Share of samples whose label is among the `top_k` most probable classes.

    Equal probabilities rank in the order of their class index, as `argmax` has it.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        top_k: how many classes may be named.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
        >>> accuracy(probs, torch.tensor([0, 2]))
        tensor(0.5000, dtype=torch.float64)
    """
    check_integer("top_k", top_k, low=1)
    rows, labels = flat_rows(probs, target, ignore_index=ignore_index, validate=validate)
    return label_in_top(rows, labels, top_k).double().mean()


def label_in_top(rows: Tensor, labels: Tensor, top_k: int) -> Tensor:
    """True where fewer than `top_k` classes rank before the label, (M,)."""
    own = rows.gather(1, labels.unsqueeze(1))
    earlier = torch.arange(rows.shape[1], device=rows.device) < labels.unsqueeze(1)
    before = (rows > own) | ((rows == own) & earlier)
    return before.sum(1) < top_k
