"""A tensor whose rows are files, decoded when they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sfumato.data.decode import File, ReadImage, decoding_threads, with_remedy
from sfumato.data.originals import OpenedImages
from sfumato.data.painting import Painting

_CHUNK = 64


@dataclass(frozen=True, eq=False)
class FileTensor:
    """Images (N, C, H, W), or label maps (N, H, W), held as files: what a data set needs of them.

    Indexing decodes and gives a tensor; `select` chooses rows and decodes nothing.

    Args:
        files: where the rows come from.
        read: decodes one file: (H, W, C) of an image, (H, W) of a label map.
        row_shape: (C, H, W) or (H, W), the same for all files.
        positions: int64, (N,), which files are the rows.
        dtype: uint8 of images, int64 of label maps.
        paintings: what is painted over in each row, one after the other.
    """

    files: Sequence[File]
    read: Callable[[File], npt.NDArray[Any]]
    row_shape: tuple[int, ...]
    positions: Tensor
    dtype: torch.dtype = torch.uint8
    paintings: tuple[Painting, ...] = ()

    @classmethod
    def of(
        cls,
        files: Sequence[File],
        read: Callable[[File], npt.NDArray[Any]],
        *,
        dtype: torch.dtype = torch.uint8,
    ) -> FileTensor:
        """All of the files; the first one that can be decoded gives the shape.

        Raises:
            ValueError: what is wrong with the first file, where none can be decoded.
        """
        shape = _first_decoded(files, read).shape
        row = shape if len(shape) == 2 else (shape[2], shape[0], shape[1])
        return cls(files, read, row, torch.arange(len(files)), dtype)

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
        """What the rows would take in memory."""
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
        """Some of the rows, none of them decoded."""
        paintings = tuple(painting.at(rows) for painting in self.paintings)
        return dataclasses.replace(self, positions=self.positions[rows], paintings=paintings)

    def painted(self, painting: Painting) -> FileTensor:
        """The same rows with objects painted over, on top of what is painted already."""
        return dataclasses.replace(self, paintings=(*self.paintings, painting))

    def followed_by(self, other: FileTensor) -> FileTensor:
        """These rows and then those of a tensor of the same files."""
        paintings = []
        for mine, theirs in zip_longest(self.paintings, other.paintings):
            first = mine or theirs.nothing(len(self))
            paintings.append(first.before(theirs, len(other)))
        positions = torch.cat((self.positions, other.positions))
        return dataclasses.replace(self, positions=positions, paintings=tuple(paintings))

    def originals(self, rows: Tensor, *, whole: bool) -> OpenedImages | None:
        """Images as their files, for crops; None where files have the size of the rows anyway.

        Args:
            rows: which ones.
            whole: crops may show all of a file, not only the middle that a row shows.
        """
        if not isinstance(self.read, ReadImage) or self.read.size is None or self.read.padded:
            return None
        files = [self.files[int(each)] for each in self.positions[rows]]
        paintings = tuple(painting.at(rows) for painting in self.paintings)
        return OpenedImages(files, self.read, self.row_shape[1:], paintings, whole=whole)

    def _decoded(self, positions: Tensor) -> Tensor:
        area = self.row_shape[-2:]
        channels = self.row_shape[:-2]
        rows = np.empty(
            (len(positions), *area, *channels), dtype=np.uint8 if channels else np.int64
        )
        numbers = positions.tolist()

        def fill(start: int) -> None:
            for row in range(start, min(start + _CHUNK, len(numbers))):
                rows[row] = self._read(numbers[row], rows.shape[1:])

        starts = range(0, len(numbers), _CHUNK)
        if len(starts) > 1 and get_worker_info() is None:
            with ThreadPoolExecutor(decoding_threads()) as pool:
                for _ in pool.map(fill, starts):
                    pass
        else:
            for start in starts:
                fill(start)
        decoded = torch.from_numpy(rows)
        return decoded.permute(0, 3, 1, 2) if channels else decoded

    def _read(self, number: int, expected: tuple[int, ...]) -> npt.NDArray[Any]:
        try:
            pixels = self.read(self.files[number])
        except ValueError as error:
            raise with_remedy(error) from error
        if pixels.shape != expected:
            raise ValueError(
                f"{self.files[number]}: {_kind(expected)} of {_dimensions(pixels.shape)} pixels, "
                f"but {self.files[0]} has {_dimensions(expected)}. An image folder takes size= to "
                "bring all to one size."
            )
        return pixels


def _first_decoded(
    files: Sequence[File], read: Callable[[File], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Whoever decodes the files before it says what is wrong with them, or leaves them out."""
    problem = None
    for file in files:
        try:
            return read(file)
        except ValueError as error:
            problem = problem or error
    raise problem or ValueError("there are no image files")


def _kind(shape: Sequence[int]) -> str:
    return "image" if len(shape) == 3 else "label map"


def _dimensions(shape: Sequence[int]) -> str:
    return f"{shape[1]}x{shape[0]}"
