"""A random window of image and label map together: flip, scale and crop of a whole batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato.augment.moving import sample_at
from sfumato.augment.protocol import Sample, check_uniforms


@dataclass(frozen=True)
class RandomWindow:
    """Look at each image through a window of fixed size, mirrored and magnified at random.

    The image is magnified by s, log-uniform in `scale`, and a window of `height` x `width` taken
    from it. Where the window is smaller than the magnified image it lies inside; where it is
    larger, the image lies inside it, and what is outside is black, with the label `void`. Pixels
    are bilinear, labels those of the nearest pixel. At a scale of exactly 1 all are copied as
    they are.

    Args:
        flip: mirror each image with probability 1/2.
        scale: smallest and largest magnification.
        height: of the window in pixels; None for that of the image.
        width: of the window in pixels; None for that of the image.

    Example:
        >>> image = torch.arange(4, dtype=torch.uint8).reshape(1, 1, 1, 4)
        >>> sample = {"image": image, "label": image[:, 0].long()}
        >>> seen = RandomWindow(flip=False, scale=(1.0, 1.0), width=2).apply(
        ...     sample, torch.full((1, 4), 0.99), void=-100)
        >>> seen["image"].flatten().tolist(), seen["label"].flatten().tolist()
        ([2, 3], [2, 3])
    """

    flip: bool = True
    scale: tuple[float, float] = (0.75, 1.5)
    height: int | None = None
    width: int | None = None

    draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_choice("flip", self.flip, (True, False))
        if len(self.scale) != 2:
            raise ValueError(f"scale must be a pair (smallest, largest), got {self.scale!r}")
        check_number("scale", self.scale[0], low=0.0, open_low=True)
        check_number("scale", self.scale[1], low=self.scale[0])
        for name, side in (("height", self.height), ("width", self.width)):
            if side is not None:
                check_integer(name, side, low=1)

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch as seen through its windows.

        Args:
            sample: a batch with `image` (N, C, H, W) and `label` (N, H, W).
            uniforms: (N, 4) numbers in [0, 1).
            void: label of pixels from outside the image.

        Raises:
            ValueError: the batch has annotations that don't follow, or needs a void label.
        """
        self._check(sample, uniforms, void)
        images = sample["image"]
        grid = self._grid(uniforms.to(images.device), *images.shape[-2:])
        label = sample["label"][:, None]
        return {
            **sample,
            "image": sample_at(images, grid, mode="bilinear"),
            "label": sample_at(label, grid, fill=void or 0)[:, 0],
        }

    def _check(self, sample: Sample, uniforms: Tensor, void: int | None) -> None:
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        if sample["label"].ndim != 3:
            raise ValueError(
                "a random window needs label maps (N, H, W), got labels "
                f"{tuple(sample['label'].shape)}. Use augment: basic for classification."
            )
        others = {"masks", "boxes", "objectness"} & set(sample)
        if others:
            raise ValueError(f"a random window can't move {sorted(others)}: drop them")
        height, width = sample["image"].shape[-2:]
        covered = (self.height or height, self.width or width)
        outside = covered[0] > height * self.scale[0] or covered[1] > width * self.scale[0]
        if outside and void is None:
            raise ValueError(
                "a window larger than the image needs a void label for what is outside: give the "
                "data set `void`, or a scale of at least 1"
            )

    def _grid(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """Where each pixel of the window comes from, (N, h, w, 2), as `grid_sample` wants it."""
        low, high = (math.log(end) for end in self.scale)
        factor = torch.exp(low + (high - low) * uniforms[:, 1])  # (N,)
        y = self._positions(uniforms[:, 2], factor, self.height or height, height)
        x = self._positions(uniforms[:, 3], factor, self.width or width, width)
        x = torch.where((uniforms[:, :1] < 0.5) & self.flip, -x, x)
        shape = (len(uniforms), y.shape[1], x.shape[1])
        return torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)

    def _positions(self, uniform: Tensor, factor: Tensor, window: int, side: int) -> Tensor:
        """Positions along one axis, (N, window), from -1 to 1 over the image's side."""
        start = uniform * (side - window / factor)
        if self.scale == (1.0, 1.0):
            start = start.round()
        steps = torch.arange(window, device=uniform.device) + 0.5
        return (start[:, None] + steps / factor[:, None]) * (2 / side) - 1
