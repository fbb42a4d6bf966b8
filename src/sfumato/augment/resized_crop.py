"""Random resized crops of a whole batch at once, with everything that is drawn on the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_number
from sfumato.augment.moving import bounding_boxes, has_label_maps, sample_at
from sfumato.augment.protocol import Sample, check_uniforms


@dataclass(frozen=True)
class _Window:
    """The part of each image that is shown: its centre, its size, its turn, mirrored or not."""

    flip: Tensor  # (N,) bool
    centre: Tensor  # (N, 2) as x, y, pixels
    size: Tensor  # (N, 2) as width, height, pixels
    angle: Tensor  # (N,) radians

    def to_device(self, device: torch.device) -> _Window:
        parts = (self.flip, self.centre, self.size, self.angle)
        return _Window(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class ResizedCrop:
    """Show a random part of each image at full size, mirrored and turned at random.

    The part has a share of the image's area drawn evenly from `scale` and an aspect drawn evenly
    on a logarithmic scale from `ratio`, cut to the image where it is longer than that; its place
    is drawn evenly. It may start between two pixels. Images are sampled bilinearly, masks and
    label maps by the nearest pixel; boxes become the bounding boxes of what is left of
    them (zeros where nothing is). `objectness` is measured again on the mask.

    Args:
        scale: least and largest share of the area that is shown.
        ratio: least and largest width over height of the part.
        flip: mirror each image with probability 1/2.
        rotation: largest angle in degrees, either way; what is turned into view from outside of
            the image is black. 0 is off.

    Example:
        >>> images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        >>> boxes = torch.tensor([[[0.0, 0.0, 2.0, 4.0]]])
        >>> crop = ResizedCrop(scale=(0.25, 0.25), ratio=(1.0, 1.0), flip=False)
        >>> moved = crop.apply({"image": images, "boxes": boxes}, torch.full((1, 6), 0.5))
        >>> moved["boxes"]  # the middle quarter; the box reaches its middle
        tensor([[[0., 0., 2., 4.]]])

    Differs: torchvision's RandomResizedCrop draws up to ten times until a part fits, then takes
        the centre, and starts on whole pixels. Here one draw is cut to the image, so that all
        samples of a batch take the same steps. The outermost half pixel blends with what lies
        beyond the part.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: bool = True
    rotation: float = 0.0

    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        for name, pair, high in (("scale", self.scale, 1.0), ("ratio", self.ratio, math.inf)):
            if len(pair) != 2:
                raise ValueError(f"{name} must be two numbers (least, largest), got {pair!r}")
            for value in pair:
                check_number(name, value, low=0.0, high=high, open_low=True)
            if pair[0] > pair[1]:
                raise ValueError(f"{name} must be (least, largest), got {pair!r}")
        check_choice("flip", self.flip, (True, False))
        check_number("rotation", self.rotation, low=0.0, high=180.0)

    @property
    def rotates(self) -> bool:
        """Whether the parts shown are turned, so that moved boxes are only bounds."""
        return self.rotation > 0

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images alone, with numbers from `generator` (on the CPU)."""
        uniforms = torch.rand(len(images), self.draws, generator=generator)
        return self.apply({"image": images}, uniforms)["image"]

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with image, masks, boxes and label maps moved together.

        Args:
            sample: a batch as `ArrayDataset.batch` gives it; images uint8 or floating point.
            uniforms: (N, 6) numbers in [0, 1).
            void: label of pixels from outside the image, where the labels are maps.
        """
        images = sample["image"]
        self._check(sample, uniforms, void)
        window = self._window(uniforms, *images.shape[-2:]).to_device(images.device)
        grid = _grid(window, *images.shape[-2:])
        moved = {**sample, "image": self._sample(images, grid, fill=0, mode="bilinear")}
        if "masks" in sample:
            moved["masks"] = self._sample(sample["masks"][:, None], grid, fill=0)[:, 0]
        if has_label_maps(sample):
            moved["label"] = self._sample(sample["label"][:, None], grid, fill=void or 0)[:, 0]
        if "boxes" in sample:
            moved["boxes"] = _move_boxes(sample["boxes"], window, *images.shape[-2:])
        if "objectness" in sample:
            moved["objectness"] = moved["masks"].float().mean((1, 2))
        return moved

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """(N, 4, 2) corners (x, y) in the source image of what `apply` shows with `uniforms`."""
        window = self._window(uniforms, height, width)
        x = torch.tensor([-0.5, 0.5, 0.5, -0.5])
        y = torch.tensor([-0.5, -0.5, 0.5, 0.5])
        return torch.stack(_to_source(window, x, y), -1)

    def _check(self, sample: Sample, uniforms: Tensor, void: int | None) -> None:
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        if "objectness" in sample and "masks" not in sample:
            raise ValueError("objectness can't follow a crop without masks: drop it")
        if has_label_maps(sample) and void is None and self.rotation:
            raise ValueError(
                "label maps need a void label for pixels from outside the image: give the data "
                "set `void`, or use rotation=0"
            )

    def _window(self, uniforms: Tensor, height: int, width: int) -> _Window:
        flip, area, aspect, left, top, turn = uniforms.float().unbind(1)
        pixels = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * height * width
        low, high = (math.log(value) for value in self.ratio)
        ratio = torch.exp(low + aspect * (high - low))
        full = torch.tensor([float(width), float(height)])
        size = torch.stack(((pixels * ratio).sqrt(), (pixels / ratio).sqrt()), 1).minimum(full)
        centre = size / 2 + torch.stack((left, top), 1) * (full - size)
        angle = (2 * turn - 1) * math.radians(self.rotation)
        return _Window((flip < 0.5) & self.flip, centre, size, angle)

    def _sample(
        self,
        images: Tensor,  # (N, C, H, W)
        grid: Tensor,
        *,
        fill: int,
        mode: Literal["nearest", "bilinear"] = "nearest",
    ) -> Tensor:
        # A part within the image asks for at most half a pixel beyond its border.
        padding: Literal["zeros", "border"] = "zeros" if self.rotation else "border"
        return sample_at(images, grid, mode=mode, padding=padding, fill=fill)


def _to_source(window: _Window, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where points of the output, in sides from its middle, lie in the source; (N, *shape) each."""
    extra = (1,) * x.ndim
    flip, angle = window.flip.view(-1, *extra), window.angle.view(-1, *extra)
    width, height = (part.view(-1, *extra) for part in window.size.unbind(1))
    across, down = torch.where(flip, -x, x) * width, y * height
    cos, sin = angle.cos(), angle.sin()
    left, top = (part.view(-1, *extra) for part in window.centre.unbind(1))
    return left + cos * across + sin * down, top + cos * down - sin * across


def _grid(window: _Window, height: int, width: int) -> Tensor:
    """Where each pixel comes from, in `grid_sample`'s coordinates, (N, H, W, 2)."""
    device = window.angle.device
    x = (torch.arange(width, device=device) + 0.5) / width - 0.5
    y = (torch.arange(height, device=device) + 0.5) / height - 0.5
    source_x, source_y = _to_source(window, x.expand(height, width), y[:, None].expand(-1, width))
    return torch.stack((source_x * (2 / width) - 1, source_y * (2 / height) - 1), -1)


def _move_boxes(boxes: Tensor, window: _Window, height: int, width: int) -> Tensor:
    """Bounding boxes of the moved corners, as `bounding_boxes` cuts them."""
    across = boxes[..., [0, 2, 2, 0]] - window.centre[:, 0, None, None]  # (N, B, 4 corners)
    down = boxes[..., [1, 1, 3, 3]] - window.centre[:, 1, None, None]
    cos, sin = (f(window.angle)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = cos * across - sin * down, cos * down + sin * across
    x = x / window.size[:, 0, None, None]
    x = (torch.where(window.flip[:, None, None], -x, x) + 0.5) * width
    y = (y / window.size[:, 1, None, None] + 0.5) * height
    return bounding_boxes(boxes, x, y, height, width)
