"""Uncertainty of one prediction: entropy, and how far samples of it disagree."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_floating
from sfumato.metrics.scored_samples import check_distribution


def predictive_entropy(probs: Tensor, *, validate: bool = True) -> Tensor:
    """Entropy of each prediction in nats, H = -sum_c p_c log p_c.

    Args:
        probs: class probabilities; for samples of a prediction, their mean.
        validate: check that rows sum to one.

    Shape:
        probs: (N, C) or (N, C, d1, ...); output: (N,) or (N, d1, ...).

    Example:
        >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    check_floating("probs", probs)
    if probs.ndim < 2:
        raise ValueError(f"probs must be (N, C) or (N, C, d1, ...), got {tuple(probs.shape)}")
    if validate:
        check_distribution("probs", probs)
    return _entropy(probs, dim=1)


def mutual_information(samples: Tensor, *, validate: bool = True) -> Tensor:
    """How much samples of a prediction (dropout masks, ensemble members) disagree, in nats.

    I = H[mean_s p_s] - mean_s H[p_s]: total uncertainty less the part that every sample has.
    Zero where all samples agree.

    Args:
        samples: class probabilities of S samples.
        validate: check that rows sum to one.

    Shape:
        samples: (S, N, C) or (S, N, C, d1, ...); output: (N,) or (N, d1, ...).

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    check_floating("samples", samples)
    if samples.ndim < 3 or not len(samples):
        raise ValueError(
            f"samples must be (S, N, C) or (S, N, C, d1, ...) with S >= 1, "
            f"got {tuple(samples.shape)}. Stack the probabilities of the samples on axis 0."
        )
    if validate:
        check_distribution("samples", samples.flatten(0, 1))
    total = _entropy(samples.mean(0), dim=1)
    return (total - _entropy(samples, dim=2).mean(0)).clamp(min=0)


def _entropy(probs: Tensor, *, dim: int) -> Tensor:
    return torch.special.entr(probs).sum(dim)
