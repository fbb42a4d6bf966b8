"""Which part of each image of a batch is shown, and where its pixels come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CropWindow:
    """The part of each image that is shown: its centre, its size, its turn, mirrored or not."""

    flip: Tensor  # (N,) bool
    centre: Tensor  # (N, 2) as x, y, pixels
    size: Tensor  # (N, 2) as width, height, pixels
    angle: Tensor  # (N,) radians
    frame: Tensor  # (N, 2) width and height of the images in the same pixels

    def to_device(self, device: torch.device) -> CropWindow:
        parts = (self.flip, self.centre, self.size, self.angle, self.frame)
        return CropWindow(*(part.to(device) for part in parts))

    def to_source(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Where points of the output, in sides from its middle, lie in the image; (N, *shape)."""
        extra = (1,) * x.ndim
        flip, angle = self.flip.view(-1, *extra), self.angle.view(-1, *extra)
        width, height = (part.view(-1, *extra) for part in self.size.unbind(1))
        across, down = torch.where(flip, -x, x) * width, y * height
        cos, sin = angle.cos(), angle.sin()
        left, top = (part.view(-1, *extra) for part in self.centre.unbind(1))
        return left + cos * across + sin * down, top + cos * down - sin * across

    def grid(self, height: int, width: int) -> Tensor:
        """Where each of `height` x `width` pixels comes from, as `grid_sample` wants it.

        Shape:
            (N, height, width, 2), from -1 to 1 over the image.
        """
        device = self.angle.device
        x = (torch.arange(width, device=device) + 0.5) / width - 0.5
        y = (torch.arange(height, device=device) + 0.5) / height - 0.5
        source_x, source_y = self.to_source(x.expand(height, width), y[:, None].expand(-1, width))
        across, down = (part[:, None, None] for part in self.frame.unbind(1))
        return torch.stack((source_x * (2 / across) - 1, source_y * (2 / down) - 1), -1)
