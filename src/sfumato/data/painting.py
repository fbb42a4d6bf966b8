"""Objects painted over when an image is made, so that painted images need not be kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.corruptions import remove_objects


@dataclass(frozen=True, eq=False)
class Painting:
    """What is painted over in each image, and what stays whole although a box reaches over it.

    Args:
        hidden: (N, B, 4) boxes that are painted over; those without area change nothing.
        kept: (N, 1, 4) the box that stays as it is; without area where there is none.
        fill: one number in [0, 1] for each channel.
    """

    hidden: Tensor
    kept: Tensor
    fill: tuple[float, ...]

    @classmethod
    def over(cls, hidden: Tensor, fill: tuple[float, ...]) -> Painting:
        """Everything that the boxes cover."""
        return cls(hidden, torch.zeros(len(hidden), 1, 4), fill)

    def at(self, rows: Tensor) -> Painting:
        """The painting of some of the images."""
        return Painting(self.hidden[rows], self.kept[rows], self.fill)

    def moved(self, scale: float, left: float, top: float) -> Painting:
        """The painting of the same images in other pixels: scaled, then shifted."""
        shift = torch.tensor([left, top, left, top])

        def move(boxes: Tensor) -> Tensor:
            real = (boxes[..., 2:] > boxes[..., :2]).all(-1, keepdim=True)
            return torch.where(real, boxes * scale + shift, boxes)

        return Painting(move(self.hidden), move(self.kept), self.fill)

    def apply(self, images: Tensor) -> Tensor:
        """The painted images, uint8 (N, C, H, W)."""
        painted = remove_objects(images, self.hidden, fill=self.fill)
        return torch.where(self.kept_pixels(*images.shape[-2:])[:, None], images, painted)

    def kept_pixels(self, height: int, width: int) -> Tensor:
        """(N, H, W) true in the pixels that a kept box touches, as `remove_objects` counts them."""
        blank = torch.zeros(len(self.kept), 1, height, width, dtype=torch.uint8)
        return remove_objects(blank, self.kept, fill=(1.0,))[:, 0] > 0

    def before(self, other: Painting | None, count: int) -> Painting:
        """This for the first images, then `other`, or nothing, for `count` more."""
        following = other or self.nothing(count)
        parts = (self.hidden, following.hidden)
        most = max(part.shape[1] for part in parts)
        padded = [torch.nn.functional.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts]
        return Painting(torch.cat(padded), torch.cat((self.kept, following.kept)), self.fill)

    def nothing(self, count: int) -> Painting:
        """Of `count` images in which nothing is painted."""
        return Painting(torch.zeros(count, 1, 4), torch.zeros(count, 1, 4), self.fill)
