"""Random resized crops of a whole batch at once, with everything that is drawn on the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_number
from sfumato.augment.crop_window import CropWindow
from sfumato.augment.cutting import cut_windows, on_whole_pixels
from sfumato.augment.moving import bounding_boxes, has_label_maps, sample_at
from sfumato.augment.protocol import Originals, Sample, check_uniforms


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

    Where images are decoded from files when they are needed, parts are cut from the files: what is
    shown then starts and ends on whole pixels of the file (unless it is turned) and is brought to
    full size by one antialiased bilinear scaling. A file that has the very size of the data set's
    images is treated as those are.

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
    cuts_originals: ClassVar[bool] = True

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
        self._check(sample, uniforms, void)
        images = cast("Tensor | Originals", sample["image"])
        height, width = images.shape[-2:]
        if isinstance(images, Tensor):
            full = torch.tensor([[float(width), float(height)]])
            window = self._window(uniforms, full).to_device(images.device)
            grid = window.grid(height, width)
            shown = self._sample(images, grid, fill=0, mode="bilinear")
            maps = self._maps(sample, grid, void)
        else:
            window = self._window(uniforms, images.frames)
            window = window if self.rotation else on_whole_pixels(window, images)
            shown = cut_windows(images, window, padding=self._padding)
            has_maps = "masks" in sample or has_label_maps(sample)
            maps = self._maps(sample, window.grid(height, width), void) if has_maps else {}
        moved = {**sample, **maps, "image": shown}
        if "boxes" in sample:
            in_frame = sample["boxes"] * (window.frame[:, :1, None] / width)
            moved["boxes"] = _move_boxes(in_frame, window, height, width)
        if "objectness" in sample:
            moved["objectness"] = moved["masks"].float().mean((1, 2))
        return moved

    def _maps(self, sample: Sample, grid: Tensor, void: int | None) -> Sample:
        """Masks and label maps as the grid shows them, where there are any."""
        maps = {}
        if "masks" in sample:
            maps["masks"] = self._sample(sample["masks"][:, None], grid, fill=0)[:, 0]
        if has_label_maps(sample):
            maps["label"] = self._sample(sample["label"][:, None], grid, fill=void or 0)[:, 0]
        return maps

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """(N, 4, 2) corners (x, y) in the source image of what `apply` shows with `uniforms`."""
        window = self._window(uniforms, torch.tensor([[float(width), float(height)]]))
        x = torch.tensor([-0.5, 0.5, 0.5, -0.5])
        y = torch.tensor([-0.5, -0.5, 0.5, 0.5])
        return torch.stack(window.to_source(x, y), -1)

    def _check(self, sample: Sample, uniforms: Tensor, void: int | None) -> None:
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        if "objectness" in sample and "masks" not in sample:
            raise ValueError("objectness can't follow a crop without masks: drop it")
        if has_label_maps(sample) and void is None and self.rotation:
            raise ValueError(
                "label maps need a void label for pixels from outside the image: give the data "
                "set `void`, or use rotation=0"
            )

    def _window(self, uniforms: Tensor, full: Tensor) -> CropWindow:
        """The windows of images whose width and height are `full`, (N, 2) or (1, 2)."""
        flip, area, aspect, left, top, turn = uniforms.float().unbind(1)
        pixels = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * full[:, 1] * full[:, 0]
        low, high = (math.log(value) for value in self.ratio)
        ratio = torch.exp(low + aspect * (high - low))
        size = torch.stack(((pixels * ratio).sqrt(), (pixels / ratio).sqrt()), 1).minimum(full)
        centre = size / 2 + torch.stack((left, top), 1) * (full - size)
        angle = (2 * turn - 1) * math.radians(self.rotation)
        return CropWindow((flip < 0.5) & self.flip, centre, size, angle, full.expand(len(flip), 2))

    def _sample(
        self,
        images: Tensor,  # (N, C, H, W)
        grid: Tensor,
        *,
        fill: int,
        mode: Literal["nearest", "bilinear"] = "nearest",
    ) -> Tensor:
        return sample_at(images, grid, mode=mode, padding=self._padding, fill=fill)

    @property
    def _padding(self) -> Literal["zeros", "border"]:
        """A part within the image asks for at most half a pixel beyond its border."""
        return "zeros" if self.rotation else "border"


def _move_boxes(boxes: Tensor, window: CropWindow, height: int, width: int) -> Tensor:
    """Bounding boxes of the moved corners, as `bounding_boxes` cuts them."""
    across = boxes[..., [0, 2, 2, 0]] - window.centre[:, 0, None, None]  # (N, B, 4 corners)
    down = boxes[..., [1, 1, 3, 3]] - window.centre[:, 1, None, None]
    cos, sin = (f(window.angle)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = cos * across - sin * down, cos * down + sin * across
    x = x / window.size[:, 0, None, None]
    x = (torch.where(window.flip[:, None, None], -x, x) + 0.5) * width
    y = (y / window.size[:, 1, None, None] + 0.5) * height
    return bounding_boxes(boxes, x, y, height, width)
