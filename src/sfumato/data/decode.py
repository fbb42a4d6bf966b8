"""Image files and encoded images to pixels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)

# What Pillow raises for files that are no images, cut short or unreasonably large.
UNREADABLE = (OSError, SyntaxError, EOFError, Image.DecompressionBombError)


class Picture(NamedTuple):
    """An encoded image that is not a file by itself, and what messages call it."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


File = Path | Picture


@dataclass(frozen=True)
class ReadImage:
    """Decodes a file to RGB, upright by its EXIF mark: uint8 (H, W, 3).

    Args:
        size: scale each image to cover this square and crop the centre. None keeps its size.
        stretched: height and width to which images are brought whatever their own are.
        padded: fit the whole image into the square's upper left instead, the rest black.
        draft: decode a large JPEG at reduced scale, which is faster and a little less exact.

    Raises:
        ValueError: a file that can't be decoded.
    """

    size: int | None = None
    stretched: tuple[int, int] | None = None
    padded: bool = False
    draft: bool = True

    def __call__(self, file: File) -> Pixels:
        try:
            with Image.open(BytesIO(file.content) if isinstance(file, Picture) else file) as image:
                check_bits(image, file)
                if self.size is not None and self.draft:
                    image.draft("RGB", (self.size, self.size))
                # Looking into EXIF costs as much as decoding a small image, hence the first test.
                upright = ImageOps.exif_transpose(image) if "exif" in image.info else image
                rgb = upright.convert("RGB")
        except UNREADABLE as error:
            raise unreadable(file, error) from error
        return _fitted(rgb, self, Image.Resampling.BILINEAR, 0)


@dataclass(frozen=True)
class ReadLabels:
    """Decodes a label map whose pixels, or palette's indices, are the classes: int64 (H, W).

    Args:
        num_classes: classes are 0 to this, exclusive.
        file_void: what the file has in pixels that count for nothing.
        void: what they have in the data set.
        size: scale each map to cover this square, by the nearest pixel, and crop the centre.
        stretched: height and width to which maps are brought whatever their own are.
        padded: fit the whole map into the square's upper left instead, the rest void.

    Raises:
        ValueError: a file that can't be decoded, or has other labels.
    """

    num_classes: int
    file_void: int
    void: int
    size: int | None = None
    stretched: tuple[int, int] | None = None
    padded: bool = False

    def __call__(self, file: File) -> npt.NDArray[Any]:
        try:
            with Image.open(BytesIO(file.content) if isinstance(file, Picture) else file) as image:
                labels = image.copy() if image.mode == "P" else image.convert("L")
        except UNREADABLE as error:
            raise unreadable(file, error) from error
        pixels = _fitted(labels, self, Image.Resampling.NEAREST, self.file_void)
        found = pixels.astype(np.int64)
        found[found == self.file_void] = self.void
        highest = int(found.max(initial=0))
        if highest >= self.num_classes:
            raise ValueError(
                f"{file}: labels must be 0 to {self.num_classes - 1}, or {self.file_void} for "
                f"void, got {highest}"
            )
        return found


def _fitted(
    image: Image.Image, how: ReadImage | ReadLabels, method: Image.Resampling, fill: int
) -> Pixels:
    if how.size is not None and how.padded:
        return _padded(image, how.size, method, fill)
    if how.size is not None:
        image = ImageOps.fit(image, (how.size, how.size), method)
    if how.stretched is not None:
        image = image.resize(how.stretched[::-1], method)
    return np.asarray(image)


def _padded(image: Image.Image, size: int, method: Image.Resampling, fill: int) -> Pixels:
    """By hand: Pillow's own padding colours label maps, which have a palette, by its entries."""
    longest = max(image.size)
    width, height = (max(1, round(side * size / longest)) for side in image.size)
    scaled = np.asarray(image.resize((width, height), method))
    padded = np.full((size, size, *scaled.shape[2:]), fill, dtype=np.uint8)
    padded[:height, :width] = scaled
    return padded


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from a file's header, as its pixels are stored."""
    try:
        with Image.open(path) as image:
            return image.size
    except UNREADABLE as error:
        raise unreadable(path, error) from error


def check_bits(image: Image.Image, file: File) -> None:
    """Raise where an image has more than 8 bits a channel, which would be cut off silently."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{file}: pixels don't fit into 8 bits; convert the image")


def unreadable(file: File, error: Exception) -> ValueError:
    """The error of a file that can't be decoded."""
    return ValueError(f"{file}: unreadable image: {error}")


def with_remedy(error: ValueError) -> ValueError:
    """The error of a file that stops a run, with what can be done about it."""
    return ValueError(
        f"{error}. Repair or remove the file, or leave all such files out: on_bad_image: skip, "
        "beside the name of the data"
    )


def decoding_threads() -> int:
    """Threads that decode at a time: Pillow lets others work meanwhile."""
    return os.cpu_count() or 1
