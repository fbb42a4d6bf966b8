"""Image files opened for a batch of crops, which are cut from the files' own pixels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from sfumato.data.decode import (
    UNREADABLE,
    File,
    Picture,
    ReadImage,
    check_bits,
    unreadable,
    with_remedy,
)
from sfumato.data.painting import Painting

try:
    # The same pixels as Pillow's, from the same library, in two thirds of its time
    # (benchmarks/loading.py).
    from simplejpeg import decode_jpeg
except ImportError:
    decode_jpeg = None

_EXIF_ORIENTATION = 0x0112


class OpenedImages:
    """The files of a batch, of which only headers are decoded until a part is asked for.

    Args:
        files: of the batch.
        read: what decodes them as the data set's images.
        area: height and width of the data set's images.
        paintings: what is painted over, in pixels of the data set's images.
        whole: crops may show all of a file; else only the square in its middle, which is what the
            data set's image shows and where its boxes are known.
    """

    def __init__(
        self,
        files: Sequence[File],
        read: ReadImage,
        area: tuple[int, ...],
        paintings: Sequence[Painting],
        *,
        whole: bool,
    ) -> None:
        self._read = read
        self._paintings = paintings
        self._files = [_Header(file) for file in files]
        self.shape = torch.Size((len(files), 3, *area))
        sides = torch.tensor([header.size for header in self._files]).view(-1, 2)
        self.is_stored_size = (sides == torch.tensor(area[::-1])).all(1)
        shortest = sides.amin(1, keepdim=True).expand(-1, 2)
        frames = sides if whole else shortest
        self.frames = frames.float()
        self._corners = ((sides - frames) // 2).tolist()

    def __len__(self) -> int:
        return len(self._files)

    def part(self, row: int, region: tuple[int, int, int, int]) -> Tensor:
        """(3, H, W), uint8: a region of the frame at the data set's size, scaled once.

        A file of that size already is given as it is, whatever the region.
        """
        header = self._files[row]
        if self.is_stored_size[row]:
            pixels = torch.from_numpy(self._read(header.file).copy()).permute(2, 0, 1)
            return self._painted(row, pixels, 1.0, 0, 0)
        height, width = self.shape[-2:]
        left, top = self._corners[row]
        x1, y1, x2, y2 = region
        reduced = min((x2 - x1) // width, (y2 - y1) // height)
        pixels = header.decode(reduced)
        scale = pixels.shape[-1] / header.size[0], pixels.shape[-2] / header.size[1]
        pixels = self._painted(row, pixels, scale[0], left, top)
        columns = _between(x1 + left, x2 + left, scale[0], pixels.shape[-1])
        lines = _between(y1 + top, y2 + top, scale[1], pixels.shape[-2])
        part = pixels[None, :, lines, columns]
        return F.interpolate(part, (height, width), mode="bilinear", antialias=True)[0]

    def _painted(self, row: int, pixels: Tensor, scale: float, left: int, top: int) -> Tensor:
        zoom = float(self.frames[row, 0]) / self.shape[-1]
        for painting in self._paintings:
            mine = painting.at(torch.tensor([row])).moved(zoom, left, top).moved(scale, 0, 0)
            pixels = mine.apply(pixels[None])[0]
        return pixels


class _Header:
    """An encoded image whose size is known; its pixels are decoded when asked for."""

    def __init__(self, file: File) -> None:
        self.file = file
        try:
            self._content = file.content if isinstance(file, Picture) else file.read_bytes()
            with Image.open(BytesIO(self._content)) as image:
                check_bits(image, file)
                self._is_plain = image.format == "JPEG" and image.mode == "RGB"
                self.size = image.size
                if "exif" in image.info:
                    orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
                    self._is_plain &= orientation == 1
                    self.size = image.size[::-1] if orientation >= 5 else image.size
        except UNREADABLE as error:
            raise with_remedy(unreadable(file, error)) from error

    def decode(self, reduced: int) -> Tensor:
        """(3, h, w), uint8, upright.

        Args:
            reduced: how often more pixels there are in a row than are needed; JPEG files are
                decoded with as many less, as far as that is a power of two.
        """
        if self._is_plain and reduced < 2 and decode_jpeg is not None:
            # It refuses some damaged files that Pillow decodes, as it does for sets in memory.
            with suppress(ValueError):
                return torch.from_numpy(decode_jpeg(self._content)).permute(2, 0, 1)
        try:
            with Image.open(BytesIO(self._content)) as image:
                if reduced > 1:
                    image.draft("RGB", (image.size[0] // reduced, image.size[1] // reduced))
                upright = image if self._is_plain else ImageOps.exif_transpose(image)
                rgb = upright if upright.mode == "RGB" else upright.convert("RGB")
                return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
        except (*UNREADABLE, ValueError) as error:
            raise with_remedy(unreadable(self.file, error)) from error


def _between(first: int, last: int, scale: float, length: int) -> slice:
    """The pixels from `first` to `last` in an image that was decoded at another scale."""
    start = min(round(first * scale), length - 1)
    return slice(start, max(start + 1, min(round(last * scale), length)))
