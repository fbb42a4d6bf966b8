"""Files that can't be decoded, found before a run and left out of its data."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from sfumato._core.files import DamagedFileError, read_json, write_json
from sfumato._core.progress import progress_bar
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import decoding_threads
from sfumato.data.file_tensor import FileTensor
from sfumato.data.folder_index import WORTH_KEEPING, cache_folder, shows_progress

Faults = dict[int, str]
"""Row of a tensor of files to what is wrong with its file."""


def without_bad_images(splits: DataSplits) -> DataSplits:
    """The splits less the samples whose files can't be decoded, which `skipped` then lists.

    Every file is decoded, so that no batch and no process meets one later: what is left out does
    not depend on when it is met. Parts are cut before, and none of them gets others instead.

    Raises:
        ValueError: nothing is left of a part.
    """
    skipped: dict[str, str] = {}
    parts = []
    for name in ("train", "validation", "test"):
        part: ArrayDataset = getattr(splits, name)
        faults = bad_rows(part.images) | bad_rows(part.labels)
        if faults and len(faults) == len(part):
            raise ValueError(
                f"no image of the {name} part can be decoded: {next(iter(faults.values()))}"
            )
        for row, reason in sorted(faults.items()):
            skipped[_file(part, row)] = reason
        parts.append(_without(part, faults) if faults else part)
    return DataSplits(*parts, skipped=skipped)


def bad_rows(values: object) -> Faults:
    """What is wrong with which rows; known from an earlier look where no file changed since.

    Args:
        values: a `FileTensor`; of anything else no row is bad.
    """
    if not isinstance(values, FileTensor):
        return {}
    kept = _index_of(values)
    with contextlib.suppress(OSError, DamagedFileError, KeyError, TypeError, ValueError):
        if kept is not None:
            return {int(row): str(reason) for row, reason in read_json(kept)["bad"].items()}
    found = dict(_looked_at(values))
    if kept is not None:
        with contextlib.suppress(OSError):
            write_json(kept, {"bad": {str(row): reason for row, reason in found.items()}})
    return found


def _without(part: ArrayDataset, faults: Faults) -> ArrayDataset:
    good = torch.tensor([row for row in range(len(part)) if row not in faults])
    left = part.subset(good)
    if part.stream is None:
        return left
    return dataclasses.replace(left, stream=_streams(part.stream[good], good))


def _streams(stream: Tensor, good: Tensor) -> Tensor:
    """A video with a frame left out is two: what follows the gap is not the next frame."""
    begins = torch.ones(len(good), dtype=torch.bool)
    begins[1:] = (stream[1:] != stream[:-1]) | (good[1:] != good[:-1] + 1)
    return begins.cumsum(0) - 1


def _file(part: ArrayDataset, row: int) -> str:
    images = part.images
    with contextlib.suppress(ValueError):  # of a table's row without an image
        if isinstance(images, FileTensor):
            return str(images.files[int(images.positions[row])])
    return f"sample {int(part.index[row])}"


def _looked_at(values: FileTensor) -> Iterator[tuple[int, str]]:
    def look(row: int) -> str | None:
        try:
            values.read(values.files[int(values.positions[row])])
        except ValueError as error:
            return str(error)
        return None

    show = shows_progress() and len(values) >= WORTH_KEEPING
    with (
        progress_bar("checking images", len(values), show=show) as bar,
        ThreadPoolExecutor(decoding_threads()) as pool,
    ):
        for row, reason in enumerate(pool.map(look, range(len(values)))):
            bar.advance()
            if reason is not None:
                yield row, reason


def _index_of(values: FileTensor) -> Path | None:
    """Where the look at these files is kept: by their names, sizes, times and how they are read."""
    if len(values) < WORTH_KEEPING:
        return None
    digest = hashlib.sha256(repr(values.read).encode())
    for row in range(len(values)):
        file = values.files[int(values.positions[row])]
        if not isinstance(file, Path):
            return None
        try:
            found = file.stat()
        except OSError:
            return None
        digest.update(os.fsencode(f"{file.absolute()}\0{found.st_size}\0{found.st_mtime_ns}\0"))
    return cache_folder() / "checked" / f"{digest.hexdigest()[:16]}.json"
