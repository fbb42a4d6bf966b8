"""Which frequencies a corruption changes.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, appendix B.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.images import check_batch, check_images, working_dtype


def dct(images: Tensor) -> Tensor:
    """Two-dimensional discrete cosine transform (type II, orthonormal) of every channel.

    Args:
        images: (N, C, H, W), floating point.

    Returns:
        Coefficients like `images`; the mean of a channel times sqrt(H W) is at [..., 0, 0].

    Example:
        >>> dct(torch.tensor([[[[1.0, 2.0]]]])).flatten()
        tensor([ 2.1213, -0.7071])
    """
    check_images(images)
    with torch.autocast(device_type=images.device.type, enabled=False):
        pixels = images.to(working_dtype(images))
        height, width = (_cosines(size).to(pixels) for size in images.shape[-2:])
        return (height @ pixels @ width.T).to(images.dtype)


def dct_change(
    images: Tensor, corruption: Callable[[Tensor], Tensor], *, batch_size: int = 256
) -> Tensor:
    """Mean absolute change of each frequency under a corruption.

        1/N sum_i | DCT[corruption(x_i)] - DCT[x_i] |                                  (Eq. 16)

    Noise changes all frequencies alike; blur changes those that images are made of.

    Args:
        images: (N, C, H, W), floating point, or uint8 (both sides are then divided by 255).
        corruption: maps a batch to a batch of the same shape and kind.
        batch_size: images at a time.

    Returns:
        (H, W) float64, mean over images and channels; [0, 0] is the mean colour, the axes are the
        vertical and the horizontal frequency.

    Raises:
        ValueError: no images, or a corruption that changes the shape.

    Example:
        >>> dct_change(torch.zeros(3, 1, 2, 2), lambda x: x + 1)
        tensor([[2.0000, 0.0000],
                [0.0000, 0.0000]], dtype=torch.float64)

    Reference: mollification paper, Eq. (16) and Fig. 11.
    """
    check_batch(images)
    check_integer("batch_size", batch_size, low=1)
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got an empty batch")
    total = torch.zeros(images.shape[-2:], dtype=torch.float64)
    for batch in images.split(batch_size):
        corrupted = corruption(batch)
        if corrupted.shape != batch.shape or corrupted.dtype != batch.dtype:
            raise ValueError(
                f"corruption must return images like its input, {batch.dtype} "
                f"{tuple(batch.shape)}, got {corrupted.dtype} {tuple(corrupted.shape)}"
            )
        # The transform is linear, so that one of the difference is enough.
        change = dct(_unit_scale(corrupted) - _unit_scale(batch)).abs()
        total += change.double().mean(1).sum(0).cpu()
    return total / len(images)  # Eq. (16)


def _unit_scale(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images / 255


def _cosines(size: int) -> Tensor:
    """The orthonormal transform of `size` numbers as a matrix, float64."""
    frequency = torch.arange(size, dtype=torch.float64)
    position = torch.arange(size, dtype=torch.float64) + 0.5
    matrix = torch.cos(frequency[:, None] * position * (math.pi / size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix
