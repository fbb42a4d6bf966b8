"""Noise: every value of every channel changes on its own.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.corruptions.random_numbers import Streams, poisson


def gaussian_noise(levels: Tensor, streams: Streams, *, std: float) -> Tensor:
    """x + std * n, n standard normal."""
    return streams.normal(*levels.shape[1:], std=255.0 * std).add_(levels)


def speckle_noise(levels: Tensor, streams: Streams, *, std: float) -> Tensor:
    """x + x * std * n: noise in proportion to the light."""
    return streams.normal(*levels.shape[1:], mean=1.0, std=std).mul_(levels)


def shot_noise(levels: Tensor, streams: Streams, *, photons: float) -> Tensor:
    """Poisson(x * photons) / photons: the noise of counting light."""
    counts = poisson(levels * (photons / 255.0), streams.normal(*levels.shape[1:]))
    return counts.mul_(255.0 / photons)


def impulse_noise(levels: Tensor, streams: Streams, *, amount: float) -> Tensor:
    """A share `amount` of the values becomes black or white, with equal chance."""
    chance = streams.uniform(*levels.shape[1:])
    extreme = torch.where(chance < 0.5 * amount, 0.0, 255.0)
    return torch.where(chance < amount, extreme, levels)
