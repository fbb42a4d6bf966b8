"""Negative log likelihood."""

from __future__ import annotations

import math

from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.metrics.scored_samples import score


def negative_log_likelihood(
    probs: Tensor,
    target: Tensor,
    *,
    floor: float = 0.0,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean of -log p_y; infinite where a label was given probability 0.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        floor: smallest probability that is taken; 0 leaves the definition as it is.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        tensor(1.0397, dtype=torch.float64)
    """
    check_number("floor", floor, low=0.0, high=1.0)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    likelihood = samples.log_likelihood.double()
    return -(likelihood.clamp(min=math.log(floor)) if floor else likelihood).mean()
