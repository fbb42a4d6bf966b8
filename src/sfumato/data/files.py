"""Image files as tensors, decoded when they are asked for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import get_worker_info

from sfumato._core.files import ContentError, open_file, read_bytes
from sfumato.augment.geometry import remove_objects

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
_EXIF_ORIENTATION = 0x0112

# What Pillow raises for files that are no images, cut short or unreasonably large.
UNREADABLE = (
    *(OSError, SyntaxError, EOFError, Image.DecompressionBombError),
    *(ValueError, MemoryError),  # numbers of a header
)


class Picture(NamedTuple):
    """An encoded image that is not a file by itself, and what messages call it."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


File = Path | Picture


# Not all of Pillow's: PostScript would be handed to another program, Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "JPEG2000")


@contextmanager
def open_image(file: File) -> Iterator[Image.Image]:
    """A plain file or an encoded image as Pillow opens it, its header read.

    Whatever is wrong with it, then or while it is decoded, is a ValueError that names it.
    """
    try:
        with (
            BytesIO(file.content) if isinstance(file, Picture) else open_file(file) as content,
            Image.open(content, formats=FORMATS) as image,
        ):
            yield image
    except ContentError:  # names the file already
        raise
    except UNREADABLE as error:
        raise unreadable(file, error) from error


@dataclass(frozen=True)
class ReadImage:
    """Decodes a file to RGB, upright by its EXIF mark: uint8 (H, W, 3)."""

    # scale each image to cover this square and crop the centre. None keeps its size.
    size: int | None = None
    # height and width to which images are brought whatever their own are.
    stretched: tuple[int, int] | None = None
    padded: bool = False  # fit the whole image into the square's upper left instead, the rest black
    # decode a large JPEG at reduced scale, which is faster and a little less exact.
    draft: bool = True

    def __call__(self, file: File) -> npt.NDArray[Any]:
        with open_image(file) as image:
            check_bits(image, file)
            if self.size is not None and self.draft:
                image.draft("RGB", (self.size, self.size))
            # Looking into EXIF costs as much as decoding a small image, hence the first test.
            upright = ImageOps.exif_transpose(image) if "exif" in image.info else image
            rgb = upright.convert("RGB")
        return _fitted(rgb, self, Image.Resampling.BILINEAR, 0)


@dataclass(frozen=True)
class ReadLabels:
    """Decodes a mask whose pixels, or palette's indices, are the classes: int64 (H, W)."""

    num_classes: int  # classes are 0 to this, exclusive
    file_void: int  # what the file has in pixels that count for nothing
    void: int  # what they have in the data set
    # as of `ReadImage`, by the nearest pixel, and void in place of black
    size: int | None = None
    stretched: tuple[int, int] | None = None
    padded: bool = False

    def __call__(self, file: File) -> npt.NDArray[Any]:
        with open_image(file) as image:
            # Of a palette the indices are the classes; converting gives greys of its colours.
            labels = image.copy() if image.mode == "P" else image.convert("L")
        found = _fitted(labels, self, Image.Resampling.NEAREST, self.file_void).astype(np.int64)
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
) -> npt.NDArray[Any]:
    if how.size is not None and how.padded:
        # By hand: Pillow's own padding colours masks, which have a palette, by its entries.
        longest = max(image.size)
        width, height = (max(1, round(side * how.size / longest)) for side in image.size)
        scaled = np.asarray(image.resize((width, height), method))
        padded = np.full((how.size, how.size, *scaled.shape[2:]), fill, dtype=np.uint8)
        padded[:height, :width] = scaled
        return padded
    if how.size is not None:
        image = ImageOps.fit(image, (how.size, how.size), method)
    if how.stretched is not None:
        # Pillow counts width first.
        image = image.resize(how.stretched[::-1], method)
    return np.asarray(image)


def image_size(file: File, *, upright: bool = False) -> tuple[int, int]:
    """Width and height from a file's header, as stored or as `ReadImage` turns it by EXIF."""
    with open_image(file) as image:
        return _upright_size(image) if upright else image.size


def _orientation(image: Image.Image) -> int:
    return int(image.getexif().get(_EXIF_ORIENTATION, 1)) if "exif" in image.info else 1


def _upright_size(image: Image.Image) -> tuple[int, int]:
    # From 5 on, orientations exchange rows and columns.
    return image.size[::-1] if _orientation(image) > 4 else image.size


def check_bits(image: Image.Image, file: File) -> None:
    """Raise where an image has more than 8 bits a channel, which would be cut off silently."""
    if image.mode.startswith(("I", "F")):
        raise ContentError(f"{file}: pixels don't fit into 8 bits; convert the image")


def unreadable(file: File, error: Exception) -> ValueError:
    reason = "it asks for too much memory" if isinstance(error, MemoryError) else error
    return ValueError(f"{file}: unreadable image: {reason}")


def with_remedy(error: ValueError) -> ValueError:
    """The error of a file that stops a run, with what can be done about it."""
    return ValueError(
        f"{error}. Repair or remove the file, or leave all such files out: on_bad_image: skip, "
        "beside the name of the data"
    )


@dataclass(frozen=True, eq=False)
class Painting:
    """Boxes that are painted over in each image, and one that stays whole where they overlap it."""

    hidden: Tensor  # (N, B, 4) boxes that are painted over; those without area change nothing
    kept: Tensor  # (N, 1, 4) the box that stays as it is; without area where there is none
    fill: tuple[float, ...]  # one number in [0, 1] for each channel

    def at(self, rows: Tensor) -> Painting:
        return Painting(self.hidden[rows], self.kept[rows], self.fill)

    def moved(self, scale: float, left: float, top: float) -> Painting:
        shift = torch.tensor([left, top, left, top])

        def move(boxes: Tensor) -> Tensor:
            real = (boxes[..., 2:] > boxes[..., :2]).all(-1, keepdim=True)
            return torch.where(real, boxes * scale + shift, boxes)

        return Painting(move(self.hidden), move(self.kept), self.fill)

    def apply(self, images: Tensor) -> Tensor:
        painted = remove_objects(images, self.hidden, fill=self.fill)
        return torch.where(self.kept_pixels(*images.shape[-2:])[:, None], images, painted)

    def kept_pixels(self, height: int, width: int) -> Tensor:
        """(N, H, W) true in the pixels that a kept box touches, as `remove_objects` counts them."""
        blank = torch.zeros(len(self.kept), 1, height, width, dtype=torch.uint8)
        return remove_objects(blank, self.kept, fill=(1.0,))[:, 0] > 0

    def before(self, other: Painting) -> Painting:
        parts = [self.hidden, other.hidden]
        most = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts]
        return Painting(torch.cat(parts), torch.cat((self.kept, other.kept)), self.fill)


try:
    # The same pixels as Pillow's, from the same library, in two thirds of its time
    # (benchmarks/loading.py).
    from simplejpeg import decode_jpeg
except ImportError:
    decode_jpeg = None


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
        frames = sides if whole else sides.amin(1, keepdim=True).expand(-1, 2)
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
        pixels = header.decode(min((x2 - x1) // width, (y2 - y1) // height))
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
    def __init__(self, file: File) -> None:
        self.file = file
        try:
            self._content = file.content if isinstance(file, Picture) else read_bytes(file)
        except OSError as error:
            raise with_remedy(unreadable(file, error)) from error
        with self._opened() as image:
            check_bits(image, file)
            is_rgb = image.format == "JPEG" and image.mode == "RGB"
            self._is_plain = is_rgb and _orientation(image) == 1
            self.size = _upright_size(image)

    @contextmanager
    def _opened(self) -> Iterator[Image.Image]:
        try:
            with open_image(Picture(str(self.file), self._content)) as image:
                yield image
        except ContentError:
            raise
        except ValueError as error:
            raise with_remedy(error) from error

    def decode(self, reduced: int) -> Tensor:
        """(3, h, w), uint8, upright."""
        if self._is_plain and reduced < 2 and decode_jpeg is not None:
            # It refuses some unreadable files that Pillow decodes, as it does for sets in memory.
            with suppress(ValueError):
                return torch.from_numpy(decode_jpeg(self._content)).permute(2, 0, 1)
        with self._opened() as image:
            if reduced > 1:
                image.draft("RGB", (image.size[0] // reduced, image.size[1] // reduced))
            upright = image if self._is_plain else ImageOps.exif_transpose(image)
            rgb = upright if upright.mode == "RGB" else upright.convert("RGB")
            return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)


def _between(first: int, last: int, scale: float, length: int) -> slice:
    start = min(round(first * scale), length - 1)
    return slice(start, max(start + 1, min(round(last * scale), length)))


_CHUNK = 64


@dataclass(frozen=True, eq=False)
class FileTensor:
    """Images (N, C, H, W), or masks (N, H, W), held as files: what a data set needs of them.

    Indexing decodes and gives a tensor; `select` chooses rows and decodes nothing.
    """

    files: Sequence[File]  # where the rows come from
    # decodes one file: (H, W, C) of an image, (H, W) of a segmentation mask.
    read: Callable[[File], npt.NDArray[Any]]
    row_shape: tuple[int, ...]  # (C, H, W) or (H, W), the same for all files
    positions: Tensor  # int64, (N,), which files are the rows
    paintings: tuple[Painting, ...] = ()  # what is painted over in each row, one after the other

    @classmethod
    def of(cls, files: Sequence[File], read: Callable[[File], npt.NDArray[Any]]) -> FileTensor:
        """All of the files; the first one that can be decoded gives the shape."""
        shape = _first_decoded(files, read).shape
        row = shape if len(shape) == 2 else (shape[2], shape[0], shape[1])
        return cls(files, read, row, torch.arange(len(files)))

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if len(self.row_shape) == 3 else torch.int64

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.positions), *self.row_shape))

    @property
    def ndim(self) -> int:
        return 1 + len(self.row_shape)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def num_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | slice | Tensor) -> Tensor:
        """Decoded rows: one as it is, several with a leading axis."""
        rows = torch.arange(len(self))[key]
        found = self._decoded(self.positions[rows.reshape(-1)])
        for painting in self.paintings:
            found = painting.at(rows.reshape(-1)).apply(found)
        return found if rows.ndim else found[0]

    def split(self, count: int) -> Iterator[Tensor]:
        """All rows, decoded `count` at a time, as `Tensor.split` gives them."""
        return (self[start : start + count] for start in range(0, len(self), count))

    def select(self, rows: Tensor) -> FileTensor:
        paintings = tuple(painting.at(rows) for painting in self.paintings)
        return dataclasses.replace(self, positions=self.positions[rows], paintings=paintings)

    def painted(self, painting: Painting) -> FileTensor:
        return dataclasses.replace(self, paintings=(*self.paintings, painting))

    def followed_by(self, other: FileTensor) -> FileTensor:
        """These rows and then those of a tensor of the same files, painted as often or more."""
        nothing = torch.zeros(len(self), 1, 4)
        more = other.paintings[len(self.paintings) :]
        mine = (*self.paintings, *(Painting(nothing, nothing, each.fill) for each in more))
        paintings = tuple(map(Painting.before, mine, other.paintings))
        positions = torch.cat((self.positions, other.positions))
        return dataclasses.replace(self, positions=positions, paintings=paintings)

    def originals(self, rows: Tensor, *, whole: bool) -> OpenedImages | None:
        """Images as their files, for crops; None where files have the size of the rows anyway."""
        if not isinstance(self.read, ReadImage) or self.read.size is None or self.read.padded:
            return None
        files = [self.files[int(each)] for each in self.positions[rows]]
        paintings = tuple(painting.at(rows) for painting in self.paintings)
        return OpenedImages(files, self.read, self.row_shape[1:], paintings, whole=whole)

    def _decoded(self, positions: Tensor) -> Tensor:
        area, channels = self.row_shape[-2:], self.row_shape[:-2]
        shape = (len(positions), *area, *channels)
        rows = np.empty(shape, dtype=np.uint8 if channels else np.int64)
        numbers = positions.tolist()

        def fill(start: int) -> None:
            for row in range(start, min(start + _CHUNK, len(numbers))):
                rows[row] = self._read(numbers[row], rows.shape[1:])

        starts = range(0, len(numbers), _CHUNK)
        # A worker of a loader is one process of many: more threads would only compete.
        if len(starts) > 1 and get_worker_info() is None:
            # Pillow lets others work while it decodes.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(fill, starts))
        else:
            list(map(fill, starts))
        decoded = torch.from_numpy(rows)
        return decoded.permute(0, 3, 1, 2) if channels else decoded

    def _read(self, number: int, expected: tuple[int, ...]) -> npt.NDArray[Any]:
        try:
            pixels = self.read(self.files[number])
        except ValueError as error:
            raise with_remedy(error) from error
        if pixels.shape != expected:
            kind = "image" if len(expected) == 3 else "segmentation mask"
            found, other = (f"{shape[1]}x{shape[0]}" for shape in (pixels.shape, expected))
            raise ValueError(
                f"{self.files[number]}: {kind} of {found} pixels, but {self.files[0]} has {other}. "
                "An image folder takes size= to bring all to one size."
            )
        return pixels


def _first_decoded(
    files: Sequence[File], read: Callable[[File], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    # Whoever decodes the others says what is wrong with them, or leaves them out.
    problem = None
    for file in files:
        try:
            return read(file)
        except ValueError as error:
            problem = problem or error
    raise problem or ValueError("there are no image files")
