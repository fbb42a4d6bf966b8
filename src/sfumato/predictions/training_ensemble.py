"""Training-phase ensembles: the loss sees the mean of several stochastic passes (Appendix D.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer


def mean_log_probability(model: nn.Module, images: Tensor, *, samples: int) -> Tensor:
    r"""Logarithm of the mean predicted probability over several stochastic passes.

    Dropout makes the loss fluctuate from step to step, which sharpens its landscape; the variance
    falls with the number of passes that are averaged (Eq. 28). The result is normalised,
    softmax(log p) = p, so that any loss takes it in the place of logits:

        log p(y|x) = log 1/N sum_i softmax(f(x; w_i))                                 (Eq. 2, D.4)

    All passes run as one batch of `samples` times the size: one kernel launch for each layer, and
    batch norm sees the images with all their dropout masks.

    Args:
        model: a network with dropout, in training mode, that returns logits.
        images: a batch.
        samples: N, the number of passes.

    Shape:
        images: (B, ...). Output: like the model's logits, (B, C) or (B, C, d1, ...).

    Raises:
        ValueError, TypeError: samples is not a positive integer.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
        >>> _ = torch.manual_seed(0)
        >>> logits = mean_log_probability(model, torch.ones(2, 4), samples=8)
        >>> round(logits.exp().sum().item(), 4)
        2.0

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (2)**, Appendices D.3 and D.4.
    """
    check_integer("samples", samples, low=1)
    return average_passes(model(repeat_images(images, samples)), samples)


def repeat_images(images: Tensor, samples: int) -> Tensor:
    """A batch `samples` times in a row, (B, ...) as (N B, ...)."""
    return torch.cat([images] * samples)  # cat keeps channels_last, repeat does not


def average_passes(logits: Tensor, samples: int) -> Tensor:
    """Logarithm of the mean probability of each image, of logits of `repeat_images`."""
    passes = logits.log_softmax(1).unflatten(0, (samples, len(logits) // samples))  # (N, B, C, ...)
    return passes.logsumexp(0) - math.log(samples)  # Eq. (2)
