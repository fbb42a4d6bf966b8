"""Per-channel mean and standard deviation, the numbers that standardise images."""

from __future__ import annotations

import torch
from torch import Tensor


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the [0, 1] scale.

    Counts the 256 grey levels instead of converting the images, so it is exact and needs no
    float copy. A constant channel gets standard deviation 1, so that dividing by it is safe.

    Shape:
        images: (N, C, H, W), uint8.

    Example:
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> channel_statistics(images)
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].reshape(-1), minlength=256).double()
        share = counts / counts.sum()
        mean = (share * levels).sum()
        variance = (share * (levels - mean).square()).sum()
        means.append(float(mean))
        deviations.append(float(variance.sqrt()) if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)
