"""Per-channel mean and standard deviation, the numbers that standardise images."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.data.file_tensor import FileTensor

_FILES = 4096
_AT_A_TIME = 256


def channel_statistics(
    images: Tensor | FileTensor,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the [0, 1] scale.

    Counts the 256 grey levels instead of converting the images, so it is exact and needs no
    float copy. A constant channel gets standard deviation 1, so that dividing by it is safe. Where
    images are more than 4,096 files, 4,096 that are spread evenly over them are looked at.

    Shape:
        images: (N, C, H, W), uint8.

    Example:
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> channel_statistics(images)
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for counts in _grey_levels(images):
        share = counts / counts.sum()
        mean = (share * levels).sum()
        variance = (share * (levels - mean).square()).sum()
        means.append(float(mean))
        deviations.append(float(variance.sqrt()) if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def _grey_levels(images: Tensor | FileTensor) -> Tensor:
    """How often each of 256 levels occurs in each channel, (C, 256)."""
    if isinstance(images, Tensor):
        channels = images.unbind(1)
        counted = [torch.bincount(each.reshape(-1), minlength=256).double() for each in channels]
        return torch.stack(counted)
    number = min(len(images), _FILES)
    chosen = images.select(torch.arange(number) * len(images) // number)
    total = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for decoded in chosen.split(_AT_A_TIME):
        total += _grey_levels(decoded)
    return total
