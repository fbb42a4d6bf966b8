"""Flips, crops, rotations and windows of whole batches, with everything drawn on the images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_uniforms,
    check_unit_images,
)
from sfumato.augment.policies import ColourJitter
from sfumato.augment.protocol import Originals, Sample


def has_label_maps(sample: Sample) -> bool:
    return "label" in sample and sample["label"].ndim == 3


def sample_at(
    values: Tensor,  # (N, C, H, W)
    grid: Tensor,  # (N, h, w, 2), as `grid_sample` wants it
    *,
    mode: Literal["nearest", "bilinear"] = "nearest",
    padding: Literal["zeros", "border", "reflection"] = "zeros",
    fill: int = 0,
    align_corners: bool = False,
) -> Tensor:
    """`grid_sample` that keeps the type of `values`; what comes from outside is `fill`."""
    # Outside is 0 for grid_sample, hence the shift by `fill` and back.
    shifted = values.float() - fill if fill else values.float()
    moved = F.grid_sample(shifted, grid, mode, padding, align_corners)
    moved = moved + fill if fill else moved
    return (moved if values.is_floating_point() else moved.round_()).to(values.dtype)


def bounding_boxes(boxes: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    """Boxes (N, B, 4) around moved corners (N, B, 4 corners), clipped to the image.

    A box that was empty before, or is now, becomes all zeros.
    """
    x, y = x.clamp(0, width), y.clamp(0, height)
    moved = torch.stack((x.amin(-1), y.amin(-1), x.amax(-1), y.amax(-1)), -1)
    real = (boxes[..., 2:] > boxes[..., :2]).all(-1) & (moved[..., 2:] > moved[..., :2]).all(-1)
    return torch.where(real[..., None], moved, 0.0)


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
        """Map points of the output, in sides from its middle, to the image; (N, *shape)."""
        parts = (self.flip, self.angle, *self.size.unbind(1), *self.centre.unbind(1))
        extra = (1,) * x.ndim
        flip, angle, width, height, left, top = (part.view(-1, *extra) for part in parts)
        across, down = torch.where(flip, -x, x) * width, y * height
        cos, sin = angle.cos(), angle.sin()
        return left + cos * across + sin * down, top + cos * down - sin * across

    def grid(self, height: int, width: int) -> Tensor:
        """(N, height, width, 2), source of each pixel for `grid_sample`: -1 to 1 over the image."""
        device = self.angle.device
        x = (torch.arange(width, device=device) + 0.5) / width - 0.5
        y = (torch.arange(height, device=device) + 0.5) / height - 0.5
        source_x, source_y = self.to_source(x.expand(height, width), y[:, None].expand(-1, width))
        across, down = (part[:, None, None] for part in self.frame.unbind(1))
        return torch.stack((source_x * (2 / across) - 1, source_y * (2 / down) - 1), -1)


@dataclass(frozen=True)
class _Motion:
    """The motion of each sample: flipped, shifted (down, right), then turned about the centre."""

    flip: Tensor  # (N,) bool
    down: Tensor  # (N,) int64, pixels
    right: Tensor  # (N,) int64, pixels
    angle: Tensor  # (N,) float32, radians


@dataclass(frozen=True)
class Augment:
    """Random horizontal flip, shift ("crop with padding") and rotation, drawn for each sample.

    Flip and crop are one gather of pixels; with rotation, all three are one bilinear sampling, so
    that corners turned into view show the image where there is some. Masks move by the nearest
    pixel, boxes by the bounding box of their moved corners, clipped to the image; a box that leaves
    the image becomes all zeros. `objectness` is measured again on the moved mask.

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
        return self.rotation > 0

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """(N, 4, 2) corners (x, y) in the source image of what `apply` shows with `uniforms`."""
        motion = self._motion(uniforms, uniforms.device)
        source_x, source_y = _to_source(motion, _CORNERS_X * width, _CORNERS_Y * height)
        return torch.stack((source_x + width / 2, source_y + height / 2), -1)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images alone, with numbers from `generator` (on the CPU)."""
        uniforms = torch.rand(len(images), self.draws, generator=generator)
        return self.apply({"image": images}, uniforms)["image"]

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with image, object masks, boxes and segmentation masks moved together.

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
            moved["boxes"] = _flip_boxes(sample["boxes"], motion, *images.shape[-2:])
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
                "segmentation masks need a void label for pixels from outside the image: "
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
        reflect = self.padding == "reflect"
        if not self.rotation:
            return _gather(images, motion, reflect, fill)
        return sample_at(
            images,
            _grid(motion, *images.shape[-2:], reflect=reflect),
            mode=mode,
            padding="reflection" if reflect else "zeros",
            fill=fill,
            align_corners=reflect,  # reflection at pixel centres, as in `_reflected`
        )


def _gather(images: Tensor, motion: _Motion, reflect: bool, fill: int) -> Tensor:
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


def _to_source(motion: _Motion, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Map points of the output, in pixels from the centre, to the source; (N, *shape) each."""
    extra = (1,) * x.ndim
    parts = (motion.flip, motion.down, motion.right, motion.angle)
    flip, down, right, angle = (part.view(-1, *extra) for part in parts)
    cos, sin = angle.cos(), angle.sin()
    source_x = cos * x + sin * y - right
    return torch.where(flip, -source_x, source_x), cos * y - sin * x - down


def _grid(motion: _Motion, height: int, width: int, *, reflect: bool) -> Tensor:
    """Map each pixel to its source in `grid_sample`'s coordinates, (N, H, W, 2)."""
    device = motion.angle.device
    x = torch.arange(width, device=device) + (0.5 - width / 2)  # from the centre
    y = torch.arange(height, device=device) + (0.5 - height / 2)
    source = _to_source(motion, x.expand(height, width), y[:, None].expand(height, width))
    scale = torch.tensor([width - reflect, height - reflect], device=device) / 2
    return torch.stack(source, -1) / scale


def _flip_boxes(boxes: Tensor, motion: _Motion, height: int, width: int) -> Tensor:
    x = boxes[..., [0, 2, 2, 0]] - width / 2  # (N, B, 4 corners)
    y = boxes[..., [1, 1, 3, 3]] - height / 2
    x = torch.where(motion.flip[:, None, None], -x, x) + motion.right[:, None, None]
    y = y + motion.down[:, None, None]
    cos, sin = (f(motion.angle)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = cos * x - sin * y + width / 2, sin * x + cos * y + height / 2
    return bounding_boxes(boxes, x, y, height, width)


_CORNERS_X = torch.tensor([-0.5, 0.5, 0.5, -0.5])
_CORNERS_Y = torch.tensor([-0.5, -0.5, 0.5, 0.5])


def on_whole_pixels(window: CropWindow, images: Originals) -> CropWindow:
    """The windows with edges on whole pixels of the file, but for files of the stored size.

    Whole pixels are cut fast, and labels, which follow the same edges, are those of what is shown.
    """
    first = (window.centre - window.size / 2).round()
    last = torch.maximum((window.centre + window.size / 2).round(), first + 1).minimum(window.frame)
    first = torch.minimum(first, last - 1)
    stays = images.is_stored_size[:, None]
    centre = torch.where(stays, window.centre, (first + last) / 2)
    size = torch.where(stays, window.size, last - first)
    return dataclasses.replace(window, centre=centre, size=size)


def cut_windows(
    images: Originals, window: CropWindow, *, padding: Literal["zeros", "border"]
) -> Tensor:
    """Cut what the windows show, (N, C, H, W) in uint8.

    A window that isn't turned is the part itself. A turned one is sampled from the part around
    it, and a file of the stored size is sampled as a whole, as if it were in memory.
    """
    count, channels, height, width = images.shape
    shown = torch.empty(count, height, width, channels, dtype=torch.uint8).permute(0, 3, 1, 2)
    regions = _regions(window, images.is_stored_size)
    is_part = (window.angle == 0) & ~images.is_stored_size
    for row, region in enumerate(regions.tolist()):
        part = images.part(row, tuple(region))
        shown[row] = part.flip(-1) if is_part[row] and window.flip[row] else part
    sampled = (~is_part).nonzero()[:, 0]
    if len(sampled):
        grid = _grid_in_regions(window, regions, height, width)[sampled]
        shown[sampled] = sample_at(shown[sampled], grid, mode="bilinear", padding=padding)
    return shown


def _regions(window: CropWindow, whole: Tensor) -> Tensor:
    """(N, 4) whole pixels around each window, inside of its image; all of it where `whole`."""
    x, y = window.to_source(_CORNERS_X, _CORNERS_Y)
    # A part's edges are whole numbers up to rounding in the last digits.
    low = torch.stack((x.amin(1), y.amin(1)), 1).add(1e-3).floor().clamp(min=0)
    high = torch.stack((x.amax(1), y.amax(1)), 1).sub(1e-3).ceil().minimum(window.frame)
    low = low.minimum(high - 1)
    around = torch.cat((low, high), 1)
    everything = torch.cat((torch.zeros_like(window.frame), window.frame), 1)
    return torch.where(whole[:, None], everything, around).long()


def _grid_in_regions(window: CropWindow, regions: Tensor, height: int, width: int) -> Tensor:
    grid = window.grid(height, width)
    low, sides = regions[:, :2], regions[:, 2:] - regions[:, :2]
    pixels = (grid + 1) / 2 * window.frame[:, None, None]
    inside = (pixels - low[:, None, None]) / sides[:, None, None] * 2 - 1
    is_whole = (sides == window.frame).all(1)
    return torch.where(is_whole[:, None, None, None], grid, inside)


@dataclass(frozen=True)
class ResizedCrop:
    """Show a random part of each image at full size, mirrored and turned at random.

    The part has a share of the image's area drawn evenly from `scale` and an aspect drawn evenly
    on a logarithmic scale from `ratio`, cut to the image where it is longer than that; its place
    is drawn evenly. Images are sampled bilinearly, masks and segmentation masks by the nearest
    pixel; boxes become the bounding boxes of what is left of them (zeros where nothing is).
    `objectness` is measured again on the mask.

    Args:
        scale: least and largest share of the area that is shown.
        ratio: least and largest width over height of the part.
        flip: mirror each image with probability 1/2.
        rotation: largest angle in degrees, either way; what is turned into view from outside of
            the image is black. 0 is off.

    From image files, parts are cut in the file's own pixels: what is shown starts and ends on whole
    pixels (unless it is turned) and is scaled once, antialiased. A file of the very size of the
    data set's images is treated as one in memory.

    Example:
        >>> images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        >>> boxes = torch.tensor([[[0.0, 0.0, 2.0, 4.0]]])
        >>> crop = ResizedCrop(scale=(0.25, 0.25), ratio=(1.0, 1.0), flip=False)
        >>> moved = crop.apply({"image": images, "boxes": boxes}, torch.full((1, 6), 0.5))
        >>> moved["boxes"]  # the middle quarter; the box reaches its middle
        tensor([[[0., 0., 2., 4.]]])

    Differs: torchvision's RandomResizedCrop draws up to ten times until a part fits, then takes
        the centre, and starts on whole pixels. Here one draw is cut to the image and may start
        between two pixels. The outermost half pixel blends with what lies beyond the part.
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
        return self.rotation > 0

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images alone, with numbers from `generator` (on the CPU)."""
        uniforms = torch.rand(len(images), self.draws, generator=generator)
        return self.apply({"image": images}, uniforms)["image"]

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with image, object masks, boxes and segmentation masks moved together."""
        self._check(sample, uniforms, void)
        images = cast("Tensor | Originals", sample["image"])
        height, width = images.shape[-2:]
        if isinstance(images, Tensor):
            full = torch.tensor([[float(width), float(height)]])
            window = self._window(uniforms, full).to_device(images.device)
            grid = window.grid(height, width)
            shown = sample_at(images, grid, mode="bilinear", padding=self._padding)
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
            moved["boxes"] = _crop_boxes(in_frame, window, height, width)
        if "objectness" in sample:
            moved["objectness"] = moved["masks"].float().mean((1, 2))
        return moved

    def _maps(self, sample: Sample, grid: Tensor, void: int | None) -> Sample:
        maps, padding = {}, self._padding
        if "masks" in sample:
            maps["masks"] = sample_at(sample["masks"][:, None], grid, padding=padding)[:, 0]
        if has_label_maps(sample):
            label = sample["label"][:, None]
            maps["label"] = sample_at(label, grid, padding=padding, fill=void or 0)[:, 0]
        return maps

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """(N, 4, 2) corners (x, y) in the source image of what `apply` shows with `uniforms`."""
        window = self._window(uniforms, torch.tensor([[float(width), float(height)]]))
        return torch.stack(window.to_source(_CORNERS_X, _CORNERS_Y), -1)

    def _check(self, sample: Sample, uniforms: Tensor, void: int | None) -> None:
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        if "objectness" in sample and "masks" not in sample:
            raise ValueError("objectness can't follow a crop without masks: drop it")
        if has_label_maps(sample) and void is None and self.rotation:
            raise ValueError(
                "segmentation masks need a void label for pixels from outside the image: give the "
                "data set `void`, or use rotation=0"
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

    @property
    def _padding(self) -> Literal["zeros", "border"]:
        # A part within the image asks for at most half a pixel beyond its border.
        return "zeros" if self.rotation else "border"


def _crop_boxes(boxes: Tensor, window: CropWindow, height: int, width: int) -> Tensor:
    across = boxes[..., [0, 2, 2, 0]] - window.centre[:, 0, None, None]  # (N, B, 4 corners)
    down = boxes[..., [1, 1, 3, 3]] - window.centre[:, 1, None, None]
    cos, sin = (f(window.angle)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = cos * across - sin * down, cos * down + sin * across
    x = x / window.size[:, 0, None, None]
    x = (torch.where(window.flip[:, None, None], -x, x) + 0.5) * width
    y = (y / window.size[:, 1, None, None] + 0.5) * height
    return bounding_boxes(boxes, x, y, height, width)


@dataclass(frozen=True)
class RandomWindow:
    """Look at each image through a window of fixed size, mirrored and magnified at random.

    The image is magnified by s, log-uniform in `scale`, and a window of `height` x `width` taken
    from it. Where the window is smaller than the magnified image it lies inside; where it is
    larger, what is outside is black, with the label `void`. Pixels are bilinear, labels those of
    the nearest pixel; at a scale of exactly 1 all are copied.

    Args:
        flip: mirror each image with probability 1/2.
        scale: smallest and largest magnification.
        height: of the window in pixels; None for that of the image.
        width: of the window in pixels; None for that of the image.
        jitter: strength of `ColourJitter` on brightness and contrast, before the window is taken;
            None for none. 0.3 is that of MbLS on PASCAL VOC.

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
    jitter: float | None = None

    def __post_init__(self) -> None:
        check_choice("flip", self.flip, (True, False))
        if len(self.scale) != 2:
            raise ValueError(f"scale must be a pair (smallest, largest), got {self.scale!r}")
        check_number("scale", self.scale[0], low=0.0, open_low=True)
        check_number("scale", self.scale[1], low=self.scale[0])
        for name, side in (("height", self.height), ("width", self.width)):
            if side is not None:
                check_integer(name, side, low=1)
        if self.jitter is not None:
            check_number("jitter", self.jitter, low=0.0, open_low=True)

    @property
    def draws(self) -> int:
        """Uniform numbers of each image: flip, scale and two positions, then the jitter's."""
        return 4 + (0 if self._colour is None else self._colour.draws)

    @property
    def _colour(self) -> ColourJitter | None:
        return None if self.jitter is None else ColourJitter(self.jitter, saturation=False)

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch as seen through its windows."""
        self._check(sample, uniforms, void)
        images = sample["image"]
        if self._colour is not None:
            images = self._colour.apply(images, uniforms[:, 4:])
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
                "a random window needs segmentation masks (N, H, W), got labels "
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
        """Map each pixel of the window to its source, (N, h, w, 2), as `grid_sample` wants it."""
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


def remove_objects(images: Tensor, boxes: Tensor, *, fill: Sequence[float]) -> Tensor:
    """Fill the boxes with the mean colour, so that only the context is left.

    A pixel that a box touches is filled. `sfumato.metrics.context_scores` says if a model still
    claims to see an object.

    Args:
        images: uint8, or floating point in [0, 1].
        boxes: x1, y1, x2, y2 in pixels, x2 and y2 exclusive; a missing box is all zeros.
        fill: one number in [0, 1] for each channel, the data set's mean.

    Shape:
        images (N, C, H, W) with 1 or 3 channels, boxes (N, B, 4); the result like the images.

    Example:
        >>> images = torch.zeros(1, 1, 16, 16)
        >>> boxes = torch.tensor([[[4.0, 4.0, 8.0, 12.0], [0.0, 0.0, 0.0, 0.0]]])
        >>> remove_objects(images, boxes, fill=(0.5,)).sum()
        tensor(16.)

    Reference: Krothapalli and Abbott, Adaptive Label Smoothing, 2020, table 1.
    """
    check_unit_images(images)
    if boxes.ndim != 3 or boxes.shape[::2] != (len(images), 4):
        raise ValueError(
            f"boxes must be ({len(images)}, B, 4), some for each image, got {tuple(boxes.shape)}"
        )
    if len(fill) != images.shape[1] or not all(0.0 <= value <= 1.0 for value in fill):
        raise ValueError(
            f"fill must be {images.shape[1]} numbers in [0, 1], one for each channel, got {fill!r}"
        )
    height, width = images.shape[-2:]
    x1, y1, x2, y2 = boxes.to(images.device).float()[..., None].unbind(dim=2)
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device)
    columns = (x >= x1.floor()) & (x < x2.ceil())  # (N, B, W)
    rows = (y >= y1.floor()) & (y < y2.ceil())  # (N, B, H)
    covered = (rows[..., None] & columns[..., None, :]).any(dim=1)
    colour = torch.tensor(fill, device=images.device).view(1, -1, 1, 1)
    if images.dtype == torch.uint8:
        colour = (255.0 * colour).round()
    return torch.where(covered[:, None], colour.to(images.dtype), images)
