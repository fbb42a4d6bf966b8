"""Writing corrupted sets in the standard layouts (see `reading`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_choice, check_class_indices, check_integer
from sfumato.corruptions.catalogue import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    check_corruptible,
    corrupt,
)
from sfumato.corruptions.constants import Constants
from sfumato.corruptions.random_numbers import seeded_generator

_JPEG_QUALITY = 85  # of the published folders

Cell = Callable[[str, int], Iterator[tuple[int, Tensor]]]


def corruption_generator(seed: int, name: str, severity: int) -> torch.Generator:
    """The generator of one type and severity: images streamed with it equal those stored.

    Example:
        >>> images = torch.zeros(2, 3, 32, 32)
        >>> first = corrupt(images, "fog", 1, generator=corruption_generator(0, "fog", 1))
        >>> second = corrupt(images, "fog", 1, generator=corruption_generator(0, "fog", 1))
        >>> torch.equal(first, second)
        True
    """
    return seeded_generator(seed, name, severity)


def write_corrupted(
    folder: Path | str,
    images: Tensor,
    labels: Tensor,
    *,
    layout: Literal["arrays", "folders"] = "arrays",
    classes: Sequence[str] | None = None,
    names: Sequence[str] = CORRUPTIONS,
    constants: Constants | None = None,
    seed: int = 0,
    batch_size: int = 256,
    progress: Callable[[str, int], None] | None = None,
) -> None:
    """Corrupt a set with every type and severity and store it in a standard layout.

    Memory is bounded by the batch. A file, and a folder of images, has its name only when it is
    complete; existing ones are replaced.

    Args:
        folder: where to; created if absent.
        images: uint8 images.
        labels: class indices.
        layout: "arrays" (as CIFAR-10-C, lossless) or "folders" (as ImageNet-C, JPEG of quality 85).
        classes: names of the class folders, in sorted order; "folders" needs them.
        names: types of corruption.
        constants: see `corrupt`.
        seed: each type and severity uses `corruption_generator(seed, name, severity)`.
        batch_size: images at once; does not change the result.
        progress: called with type and severity after each.

    Shape:
        images (N, C, H, W) with 1 or 3 channels, labels (N,).
    """
    check_corruptible(images)
    _check_set(images, labels, layout, classes)
    check_integer("batch_size", batch_size, low=1)
    for name in names:
        check_choice("names", name, (*CORRUPTIONS, *EXTRA_CORRUPTIONS))

    def cell(name: str, severity: int) -> Iterator[tuple[int, Tensor]]:
        generator = corruption_generator(seed, name, severity)
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            changed = corrupt(part, name, severity, constants=constants, generator=generator)
            yield start, changed.cpu()
        if progress is not None:
            progress(name, severity)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "arrays":
        _write_arrays(folder, names, labels.cpu(), tuple(images.shape), cell)
    else:
        _write_folders(folder, names, labels.cpu(), classes or (), cell)


def _check_set(images: Tensor, labels: Tensor, layout: str, classes: Sequence[str] | None) -> None:
    check_choice("layout", layout, ("arrays", "folders"))
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, got {images.dtype}")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"labels must be ({len(images)},), got {tuple(labels.shape)}")
    if layout == "folders":
        if classes is None or list(classes) != sorted(set(classes)):
            raise ValueError(
                f"classes must be the class names, sorted and different, for layout='folders', "
                f"got {classes!r}"
            )
        check_class_indices("labels", labels, len(classes))


@contextmanager
def _named_when_complete(path: Path) -> Iterator[Path]:
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    os.replace(partial, path)


@contextmanager
def _folder_when_complete(path: Path) -> Iterator[Path]:
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)


def _write_arrays(
    folder: Path, names: Sequence[str], labels: Tensor, shape: tuple[int, ...], cell: Cell
) -> None:
    count, channels, height, width = shape
    total = len(SEVERITIES) * count
    with _named_when_complete(folder / "labels.npy") as path, path.open("wb") as file:
        np.save(file, labels.repeat(len(SEVERITIES)).numpy(), allow_pickle=False)
    for name in names:
        with _named_when_complete(folder / f"{name}.npy") as path:
            array = open_memmap(path, "w+", np.uint8, (total, height, width, channels))
            for severity in SEVERITIES:
                for start, batch in cell(name, severity):
                    first = (severity - 1) * count + start
                    array[first : first + len(batch)] = batch.permute(0, 2, 3, 1).numpy()
            array.flush()


def _write_folders(
    folder: Path, names: Sequence[str], labels: Tensor, classes: Sequence[str], cell: Cell
) -> None:
    digits = len(str(len(labels)))
    for name, severity in ((n, s) for n in names for s in SEVERITIES):
        with _folder_when_complete(folder / name / str(severity)) as made:
            places = [made / class_name for class_name in classes]
            for place in places:
                place.mkdir()
            for start, batch in cell(name, severity):
                for number, image in enumerate(batch, start=start):
                    path = places[int(labels[number])] / f"{number:0{digits}d}.JPEG"
                    pixels = image.permute(1, 2, 0).squeeze(2).numpy()
                    Image.fromarray(pixels).save(path, "JPEG", quality=_JPEG_QUALITY)
