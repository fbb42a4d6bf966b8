"""Image files to one tensor, decoded on all cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)

_CHUNK = 64


class Picture(NamedTuple):
    """An encoded image that is not a file by itself, and what messages call it."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


def read_images(paths: Sequence[Path | Picture], *, size: int | None = None) -> Tensor:
    """Decode files to RGB, upright by their EXIF mark: uint8 (N, 3, H, W), channels last in memory.

    Args:
        paths: at least one file, or encoded image.
        size: scale each image to cover this square and crop the centre. Without it all images
            must have one size.

    Raises:
        ValueError: a file that can't be decoded, or has another size than the first.
    """
    first = _decode(paths[0], size)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for position in range(start, min(start + _CHUNK, len(paths))):
            pixels = _decode(paths[position], size)
            if pixels.shape != first.shape:
                raise ValueError(
                    f"{paths[position]}: image of {_dimensions(pixels)} pixels, but {paths[0]} has "
                    f"{_dimensions(first)}. An image folder takes size= to bring all to one size."
                )
            images[position] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(paths), _CHUNK)):
            pass
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from a file's header, as its pixels are stored."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: unreadable image: {error}") from error


def _decode(path: Path | Picture, size: int | None) -> Pixels:
    try:
        with Image.open(BytesIO(path.content) if isinstance(path, Picture) else path) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"{path}: pixels don't fit into 8 bits; convert the image")
            if size is not None:
                image.draft("RGB", (size, size))  # a large JPEG decodes at reduced scale
            # Looking into EXIF costs as much as decoding a small image, hence the first test.
            upright = ImageOps.exif_transpose(image) if "exif" in image.info else image
            rgb = upright.convert("RGB")
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: unreadable image: {error}") from error
    if size is not None:
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def _dimensions(pixels: Pixels) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"
