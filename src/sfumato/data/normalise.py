"""From images as files hold them to those that a network takes: (x / 255 - mean) / std."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_number


class Normalise(nn.Module):
    """Images with the mean and spread of each channel taken out, the same to the last bit wherever.

    Computed as x * scale - shift; what it holds is moved with a network but is no part of its
    weights.

    Args:
        channels: of the images.
        mean: per channel, on the [0, 1] scale. None is 0.
        std: per channel, on the [0, 1] scale. None is 1.

    Shape:
        images: (N, C, H, W), uint8, or floating point in [0, 1]; the result is float32 for uint8.

    Raises:
        ValueError: statistics or images of another number of channels, or a `std` of 0.
        TypeError: images that are neither uint8 nor floating point.

    Example:
        >>> normalise = Normalise(1, mean=(0.5,), std=(0.25,))
        >>> normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item()
        2.0
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, channels: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        mean = (0.0,) * channels if mean is None else mean
        std = (1.0,) * channels if std is None else std
        for name, values in (("mean", mean), ("std", std)):
            if len(values) != channels:
                raise ValueError(
                    f"{name} must have {channels} entries (channels), got {len(values)}"
                )
        for center, spread in zip(mean, std, strict=True):
            check_number("mean", center)
            check_number("std", spread, low=0.0, open_low=True)
        scale = [1 / (255 * spread) for spread in std]
        shift = [center / spread for center, spread in zip(mean, std, strict=True)]
        for name, values in (("scale", scale), ("shift", shift)):
            each = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, each, persistent=False)

    def forward(
        self, images: Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        """The images as a network takes them."""
        channels = len(self.scale)
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"images must be (N, {channels}, H, W), got {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            floats = images.to(self.scale.dtype, memory_format=memory_format)
            return floats.mul_(self.scale).sub_(self.shift)
        if not images.is_floating_point():
            raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
        return images.to(memory_format=memory_format) * (255 * self.scale) - self.shift
