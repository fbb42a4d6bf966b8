"""Flip, crop and rotation of a whole batch at once, with everything that is drawn on the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato.augment.moving import bounding_boxes, has_label_maps, sample_at
from sfumato.augment.protocol import Sample, check_uniforms


@dataclass(frozen=True)
class _Motion:
    """Where each sample goes: flipped, shifted (down, right), then turned about the centre."""

    flip: Tensor  # (N,) bool
    down: Tensor  # (N,) int64, pixels
    right: Tensor  # (N,) int64, pixels
    angle: Tensor  # (N,) float32, radians


@dataclass(frozen=True)
class Augment:
    """Random horizontal flip, shift ("crop with padding") and rotation, drawn for each sample.

    Flip and crop are one gather of pixels; with rotation, all three are one bilinear sampling,
    so that corners turned into view show the image where there is some, not an extra border.
    Masks and label maps move by the nearest pixel, boxes by the bounding box of their moved
    corners, clipped to the image; a box that leaves the image becomes all zeros. `objectness` is
    measured again on the moved mask.

    Args:
        flip: mirror each image with probability 1/2.
        crop: padding in pixels; the image shifts by up to this much in both directions. 0 is off.
        rotation: largest angle in degrees, either way. 0 is off.
        padding: what lies outside the image: black ("zeros") or its mirror image ("reflect").

    Example:
        >>> images = torch.arange(4, dtype=torch.uint8).reshape(1, 1, 1, 4)
        >>> sample = {"image": images, "boxes": torch.tensor([[[0.0, 0.0, 1.0, 1.0]]])}
        >>> moved = Augment(crop=0).apply(sample, torch.zeros(1, 4))  # 0 < 1/2: flipped
        >>> moved["image"].flatten().tolist(), moved["boxes"].flatten().tolist()
        ([3, 2, 1, 0], [3.0, 0.0, 4.0, 1.0])
    """

    flip: bool = True
    crop: int = 4
    rotation: float = 0.0
    padding: Literal["zeros", "reflect"] = "zeros"

    draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_choice("flip", self.flip, (True, False))
        check_integer("crop", self.crop, low=0)
        check_number("rotation", self.rotation, low=0.0, high=180.0)
        check_choice("padding", self.padding, ("zeros", "reflect"))

    @property
    def rotates(self) -> bool:
        """Whether images are turned, so that moved boxes are only bounds."""
        return self.rotation > 0

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """(N, 4, 2) corners (x, y) in the source image of what `apply` shows with `uniforms`."""
        motion = self._motion(uniforms, uniforms.device)
        x = torch.tensor([-0.5, 0.5, 0.5, -0.5]) * width
        y = torch.tensor([-0.5, -0.5, 0.5, 0.5]) * height
        source_x, source_y = _to_source(motion, x, y)
        return torch.stack((source_x + width / 2, source_y + height / 2), -1)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images alone, with numbers from `generator` (on the CPU)."""
        uniforms = torch.rand(len(images), self.draws, generator=generator)
        return self.apply({"image": images}, uniforms)["image"]

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with image, masks, boxes and label maps moved together.

        Args:
            sample: a batch as `ArrayDataset.batch` gives it; images uint8 or floating point.
            uniforms: (N, 4) numbers in [0, 1).
            void: label of pixels from outside the image, where the labels are maps.
        """
        images = sample["image"]
        self._check(sample, uniforms, void)
        if not (self.flip or self.crop or self.rotation):
            return sample
        motion = self._motion(uniforms, images.device)
        moved = {**sample, "image": self._move(images, motion, fill=0, mode="bilinear")}
        if "masks" in sample:
            moved["masks"] = self._move(sample["masks"][:, None], motion, fill=0)[:, 0]
        if has_label_maps(sample):
            moved["label"] = self._move(sample["label"][:, None], motion, fill=void or 0)[:, 0]
        if "boxes" in sample:
            moved["boxes"] = _move_boxes(sample["boxes"], motion, *images.shape[-2:])
        if "objectness" in sample and (self.crop or self.rotation):
            moved["objectness"] = moved["masks"].float().mean((1, 2))
        return moved

    def _check(self, sample: Sample, uniforms: Tensor, void: int | None) -> None:
        height, width = sample["image"].shape[-2:]
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        reflect = self.padding == "reflect"
        if reflect and self.crop >= min(height, width):
            raise ValueError(f"crop={self.crop} can't be reflected in {height}x{width} images")
        if not (self.crop or self.rotation):
            return
        if "objectness" in sample and "masks" not in sample:
            raise ValueError("objectness can't follow crop or rotation without masks: drop it")
        if has_label_maps(sample) and void is None and not reflect:
            raise ValueError(
                "label maps need a void label for pixels from outside the image: "
                "give the data set `void`, or use padding='reflect'"
            )

    def _motion(self, uniforms: Tensor, device: torch.device) -> _Motion:
        steps = 2 * self.crop + 1
        # A product just below `steps` may round up to it, hence the clamp.
        shift = (uniforms[:, 1:3] * steps).long().clamp_(max=steps - 1) - self.crop
        angle = (2 * uniforms[:, 3] - 1) * math.radians(self.rotation)
        flip = (uniforms[:, 0] < 0.5) & self.flip
        return _Motion(*(x.to(device) for x in (flip, shift[:, 0], shift[:, 1], angle)))

    def _move(
        self,
        images: Tensor,  # (N, C, H, W)
        motion: _Motion,
        *,
        fill: int,
        mode: Literal["nearest", "bilinear"] = "nearest",
    ) -> Tensor:
        if self.rotation:
            return _sample(images, motion, self.padding == "reflect", fill, mode)
        return _gather(images, motion, self.padding == "reflect", fill)


def _gather(images: Tensor, motion: _Motion, reflect: bool, fill: int) -> Tensor:
    """Flip and shift as one gather of pixels."""
    channels, height, width = images.shape[1:]
    rows = torch.arange(height, device=images.device) - motion.down[:, None]  # (N, H)
    columns = torch.arange(width, device=images.device) - motion.right[:, None]  # (N, W)
    columns = torch.where(motion.flip[:, None], width - 1 - columns, columns)
    if reflect:
        rows, columns = _reflected(rows, height), _reflected(columns, width)
    near_rows, near_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    pixels = near_rows[:, :, None] * width + near_columns[:, None, :]  # (N, H, W)
    pixels = pixels.flatten(1)[:, None].expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, pixels).view(images.shape)
    if reflect:
        return moved
    inside = (rows == near_rows)[:, None, :, None] & (columns == near_columns)[:, None, None, :]
    return moved.masked_fill_(~inside, fill)


def _reflected(position: Tensor, size: int) -> Tensor:
    """Positions outside [0, size) mirrored at the centres of the border pixels."""
    last = size - 1
    return last - (last - position.abs()).abs()


def _sample(
    images: Tensor,
    motion: _Motion,
    reflect: bool,
    fill: int,
    mode: Literal["nearest", "bilinear"],
) -> Tensor:
    """Flip, shift and rotation as one sampling at the inverse of the motion."""
    return sample_at(
        images,
        _grid(motion, *images.shape[-2:], reflect=reflect),
        mode=mode,
        padding="reflection" if reflect else "zeros",
        fill=fill,
        align_corners=reflect,  # reflection at pixel centres, as in `_reflected`
    )


def _to_source(motion: _Motion, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where points of the output, in pixels from the centre, come from; (N, *shape) each."""
    extra = (1,) * x.ndim
    flip, down, right, angle = (
        part.view(-1, *extra) for part in (motion.flip, motion.down, motion.right, motion.angle)
    )
    cos, sin = angle.cos(), angle.sin()
    source_x = cos * x + sin * y - right
    return torch.where(flip, -source_x, source_x), cos * y - sin * x - down


def _grid(motion: _Motion, height: int, width: int, *, reflect: bool) -> Tensor:
    """Where each pixel comes from, in `grid_sample`'s coordinates, (N, H, W, 2)."""
    device = motion.angle.device
    x = torch.arange(width, device=device) + (0.5 - width / 2)  # (W,) from the centre
    y = (torch.arange(height, device=device) + (0.5 - height / 2))[:, None]  # (H, 1)
    source_x, source_y = _to_source(motion, x.expand(height, width), y.expand(height, width))
    border = 1 if reflect else 0
    scale = torch.tensor([width - border, height - border], device=device) / 2
    return torch.stack((source_x, source_y), -1) / scale


def _move_boxes(boxes: Tensor, motion: _Motion, height: int, width: int) -> Tensor:
    """Bounding boxes of the moved corners, as `bounding_boxes` cuts them."""
    x = boxes[..., [0, 2, 2, 0]] - width / 2  # (N, B, 4 corners)
    y = boxes[..., [1, 1, 3, 3]] - height / 2
    x = torch.where(motion.flip[:, None, None], -x, x) + motion.right[:, None, None]
    y = y + motion.down[:, None, None]
    cos, sin = (f(motion.angle)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = cos * x - sin * y + width / 2, sin * x + cos * y + height / 2
    return bounding_boxes(boxes, x, y, height, width)
