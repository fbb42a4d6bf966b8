"""Where the pixels of a set are: in memory, or in files that are decoded when needed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor

from sfumato._core.checks import check_choice
from sfumato.data.bad_images import without_bad_images
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import File, ReadImage
from sfumato.data.file_tensor import FileTensor

InMemory = Literal["auto"] | bool | None
OnBadImage = Literal["error", "skip"] | None

MEMORY_LIMIT = 2_000_000_000
"""Bytes of decoded pixels, over all parts of a set, up to which `auto` keeps them in memory.

A number of its own and not a share of the machine's memory: crops from files differ from crops of
smaller copies, and a run's numbers must not depend on where it runs.
"""


def image_files(files: Sequence[File], *, size: int | None = None) -> FileTensor:
    """Image files, at least one, as a tensor that decodes them when needed.

    Args:
        files: paths, or encoded images.
        size: scale each image to cover this square and crop the centre. Without it all images
            must have one size.
    """
    return FileTensor.of(files, ReadImage(size))


def read_images(files: Sequence[File], *, size: int | None = None) -> Tensor:
    """Decode files to RGB, upright by their EXIF mark: uint8 (N, 3, H, W), channels last in memory.

    Args:
        files: paths, or encoded images; at least one.
        size: as in `image_files`.

    Raises:
        ValueError: a file that can't be decoded, or has another size than the first.
    """
    return image_files(files, size=size)[:]


def keeps_in_memory(parts: Iterable[object], in_memory: InMemory) -> bool:
    """Whether the files among `parts`, images or label maps, are to be decoded at once.

    Args:
        parts: `FileTensor`s; anything else counts for nothing.
        in_memory: true, false, or "auto" (None): where all of them fit into `MEMORY_LIMIT`.
    """
    check_choice("in_memory", in_memory, (None, "auto", True, False))
    if isinstance(in_memory, bool):
        return in_memory
    return sum(part.num_bytes for part in parts if isinstance(part, FileTensor)) <= MEMORY_LIMIT


def memory_of_archive(path: Path, in_memory: InMemory) -> InMemory:
    """`in_memory` of an archive, whose unpacked files are gone once it is read: true.

    Raises:
        ValueError: files of an archive were to be decoded when needed.
    """
    if in_memory is False:
        raise ValueError(
            f"{path}: in_memory: false needs files, and this is an archive; unpack it and name the "
            "folder"
        )
    return True


def held(splits: DataSplits, in_memory: InMemory, on_bad_image: OnBadImage = None) -> DataSplits:
    """The same splits with the pixels of their files decoded at once, if they are to be.

    The last step of every source that reads files: what was left out before is never decoded.

    Args:
        splits: sets whose images, and label maps, may be `FileTensor`s.
        in_memory: as in `keeps_in_memory`.
        on_bad_image: "error" (None) raises for a file that can't be decoded, when it is; "skip"
            decodes all files now, leaves such out of their part and lists them in `skipped`.
    """
    check_choice("on_bad_image", on_bad_image, (None, "error", "skip"))
    if on_bad_image == "skip":
        splits = without_bad_images(splits)
    parts = (splits.train, splits.validation, splits.test)
    pixels = [each for part in parts for each in (part.images, part.labels)]
    if not keeps_in_memory(pixels, in_memory):
        return splits
    return DataSplits(*(_decoded(part) for part in parts), skipped=splits.skipped)


def named_by_archive(splits: DataSplits, folder: Path, archive: Path) -> DataSplits:
    """The same splits whose `skipped` names the archive, where `folder` is what it unpacked to."""
    if not splits.skipped or not archive.is_file():
        return splits

    def told(text: str) -> str:
        return text.replace(f"{folder}{os.sep}", f"{archive}: ")

    skipped = {told(file): told(reason) for file, reason in splits.skipped.items()}
    return dataclasses.replace(splits, skipped=skipped)


def _decoded(part: ArrayDataset) -> ArrayDataset:
    return dataclasses.replace(part, images=part.images[:], labels=part.labels[:])
