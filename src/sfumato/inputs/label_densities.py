"""Which predictions a label asks for: its cross entropy as a density over predictions.

Reference: the mollification paper, Eq. (10), (11) and Fig. 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_floating


def label_density(probs: Tensor, target: Tensor) -> Tensor:
    """The density Dir(f | 1 + y) of a prediction f under a label y.

    Its logarithm is the negative cross entropy, sum_c y_c log f_c, up to a constant of y. So its
    mode is what the label asks for: a one-hot label, and a tempered one, ask for certainty; a
    smoothed label asks for itself.

    Args:
        probs: predictions f, whose rows sum to 1.
        target: the label y, at least 0; a tempered label need not sum to 1.

    Shape:
        probs (N, C), target (C,); the result (N,), float64.

    Example:
        >>> centre = torch.full((1, 3), 1 / 3)
        >>> label_density(centre, torch.tensor([1.0, 0.0, 0.0]))  # 3! / (1! 0! 0!) / 3
        tensor([2.0000], dtype=torch.float64)

    Reference: Eq. (10) and (11).
    """
    check_floating("probs", probs)
    check_floating("target", target)
    if probs.ndim != 2 or target.shape != probs.shape[1:]:
        raise ValueError(
            f"probs must be (N, C) and target (C,), got {tuple(probs.shape)} and "
            f"{tuple(target.shape)}"
        )
    if bool((target < 0).any()):
        raise ValueError(f"target must be at least 0, got {target.tolist()}")
    concentration = 1.0 + target.double()
    normaliser = torch.lgamma(concentration.sum()) - torch.lgamma(concentration).sum()
    return (torch.xlogy(target.double(), probs.double()).sum(1) + normaliser).exp()  # Eq. (11)
