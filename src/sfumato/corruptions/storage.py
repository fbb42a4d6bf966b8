"""Read and write corrupted sets and sequences in the layouts of the published ones."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_choice, check_class_indices, check_integer
from sfumato._core.files import (
    check_inside,
    full_disk,
    is_full_disk,
    map_array,
    open_file,
    write_atomically,
)
from sfumato._core.statistics import spread_evenly
from sfumato.corruptions.catalogue import (
    CATEGORIES,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    Constants,
    check_corruptible,
    corrupt,
)
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.corruptions.sequences import HARDER_PERTURBATIONS, PERTURBATIONS

_SUFFIXES = {".jpeg", ".jpg", ".png"}
_FORMATS = ("JPEG", "PNG")  # Pillow hands others to other programs, whatever a file is called
_UNREADABLE = (OSError, SyntaxError, EOFError, ValueError, MemoryError)


def stored_corruptions(folder: Path | str) -> tuple[str, ...]:
    """The types found in a folder of either layout, in the benchmark's order."""
    folder = Path(folder)
    found = tuple(
        name
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        if _array(folder, name).is_file() or _place(folder, name).is_dir()
    )
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no corrupted images: expected files such as fog.npy with labels.npy, "
            "or folders such as fog/1/<class>/<image>"
        )
    return found


def read_corrupted(
    folder: Path | str, name: str, severity: int, *, batch_size: int = 256, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of one type and severity with their labels, batch by batch, in either layout.

    Args:
        folder: the set, for example the unpacked CIFAR-10-C or ImageNet-C.
        name: type of corruption.
        severity: 1 to 5.
        batch_size: images in a batch; the last may have fewer.
        limit: as many images, from all over the set; None for all.

    Returns:
        An iterator over uint8 (N, C, H, W) and int64 (N,). In folders a label is the position of
        the class folder in sorted order, and images are read as RGB.
    """
    check_integer("batch_size", batch_size, low=1)
    labels = stored_labels(folder, name, severity, limit=limit)
    if _array(folder, name).is_file():
        images = load_array(_array(folder, name))
        count = len(images) // len(SEVERITIES)
        return _batches(images[(severity - 1) * count :].__getitem__, count, labels, batch_size)
    paths = [path for path, _ in _listed(_place(folder, name) / str(severity))]
    return _batches(partial(_decode_all, paths), len(paths), labels, batch_size)


def _batches(
    load: Callable[[np.ndarray], np.ndarray], count: int, labels: Tensor, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The images at as many of `count` positions as there are labels, with their labels."""
    positions = spread_evenly(count, len(labels))
    for rows, target in zip(positions.split(batch_size), labels.split(batch_size), strict=True):
        yield _channels_first(load(rows.numpy())), target


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(pixels)).movedim(-1, -3).contiguous()


def stored_labels(
    folder: Path | str, name: str, severity: int, *, limit: int | None = None
) -> Tensor:
    """int64 (N,), the labels of what `read_corrupted` reads, without reading an image."""
    check_integer("severity", severity, low=1, high=5)
    place = _place(folder, name) / str(severity)
    if _array(folder, name).is_file():
        labels = _array_labels(folder, name, severity)
    elif place.is_dir():
        labels = torch.tensor([label for _, label in _listed(place)])
    else:
        raise FileNotFoundError(
            f"{folder} has neither {name}.npy nor {name}/{severity}/. "
            f"It holds {', '.join(stored_corruptions(folder))}."
        )
    if limit is not None:
        check_integer("limit", limit, low=1)
    return labels[spread_evenly(len(labels), limit)]


def stored_classes(folder: Path | str, name: str, severity: int) -> tuple[str, ...] | None:
    """The names of the class folders in the order of their labels; None in the other layout."""
    place = _place(folder, name) / str(severity)
    return _classes(place) if place.is_dir() else None


def load_array(path: Path) -> npt.NDArray[Any]:
    """A `.npy` file that stays on disk until it is read."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a set of arrays needs it")
    try:
        return map_array(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not readable as .npy without pickle: {error}") from error


def _array(folder: Path | str, name: str) -> Path:
    return Path(folder) / f"{name}.npy"


def _place(folder: Path | str, name: str) -> Path:
    """The folder of a type; ImageNet-C comes in one archive for each group of types."""
    places = [Path(folder) / group / name for group in ("", *CATEGORIES)]
    return next((place for place in places if place.is_dir()), places[0])


def _array_labels(folder: Path | str, name: str, severity: int) -> Tensor:
    path, at_labels = _array(folder, name), _array(folder, "labels")
    images, labels = load_array(path), load_array(at_labels)
    if images.ndim != 4 or images.dtype != np.uint8 or len(images) % len(SEVERITIES):
        raise ValueError(
            f"{path} must be uint8 (5 N, H, W, C), got {images.dtype} {tuple(images.shape)}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"{at_labels} must hold integers (N,), got {labels.dtype} {labels.shape}")
    count = len(images) // len(SEVERITIES)
    if len(labels) == len(images):
        labels = labels[(severity - 1) * count :][:count]
    if len(labels) != count:
        raise ValueError(
            f"labels.npy must have {count} or {len(images)} entries for {path.name}, "
            f"got {len(labels)}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _decode_all(paths: list[Path], rows: np.ndarray) -> np.ndarray:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = list(pool.map(_decode, [paths[row] for row in rows]))
    if len({image.shape for image in images}) > 1:
        folder = paths[0].parents[1]
        raise ValueError(f"the images of {folder} differ in size; resize them to one size first")
    return np.stack(images)


def _decode(path: Path) -> npt.NDArray[np.uint8]:
    try:
        with open_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            return np.array(image.convert("RGB"))
    except (*_UNREADABLE, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: unreadable image: {error}") from error


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def _listed(folder: Path) -> list[tuple[Path, int]]:
    found = [
        (path, label)
        for label, name in enumerate(_classes(folder))
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in _SUFFIXES
    ]
    if not found:
        raise ValueError(f"{folder}: holds no images; expected {folder}/<class>/<image>.JPEG")
    return found


_JPEG_QUALITY = 85  # of the published folders
Cell = Callable[[str, int], Iterator[tuple[int, Tensor]]]


def corruption_generator(seed: int, name: str, severity: int) -> torch.Generator:
    """The generator of one type and severity: images streamed with it equal those stored.

    Example:
        >>> images = torch.zeros(2, 3, 32, 32)
        >>> foggy = corrupt(images, "fog", 1, generator=corruption_generator(0, "fog", 1))
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
        images: uint8 (N, C, H, W) with 1 or 3 channels.
        labels: (N,) class indices.
        layout: "arrays" (as CIFAR-10-C, lossless) or "folders" (as ImageNet-C, JPEG of quality 85).
        classes: names of the class folders, in sorted order; "folders" needs them.
        names: types of corruption.
        constants: see `corrupt`.
        seed: each type and severity uses `corruption_generator(seed, name, severity)`.
        batch_size: images at once; does not change the result.
        progress: called with type and severity after each.
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
def _folder_when_complete(path: Path) -> Iterator[Path]:
    # Beside its place, since renaming works within one disk only.
    made = path.with_name(f".{path.name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True)
        yield made
        shutil.rmtree(path, ignore_errors=True)
        os.replace(made, path)
    except OSError as error:
        is_full = is_full_disk(error, path.parent)  # asked before its room is given back
        shutil.rmtree(made, ignore_errors=True)
        if is_full:
            raise full_disk(path) from None
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_arrays(
    folder: Path, names: Sequence[str], labels: Tensor, shape: tuple[int, ...], cell: Cell
) -> None:
    count, channels, height, width = shape
    total = len(SEVERITIES) * count

    def images(name: str) -> Iterator[np.ndarray]:
        for severity in SEVERITIES:
            for _, batch in cell(name, severity):
                yield batch.permute(0, 2, 3, 1).numpy()

    all_labels = labels.repeat(len(SEVERITIES)).numpy()
    _write_array(_array(folder, "labels"), all_labels.dtype, (total,), [all_labels])
    for name in names:
        shape = (total, height, width, channels)
        _write_array(_array(folder, name), np.dtype(np.uint8), shape, images(name))


def _write_array(
    file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], parts: Iterable[np.ndarray]
) -> None:
    """Write an npy piece by piece.

    By hand: where a disk is full, `np.save` cuts the file short silently and writing to a memory
    map kills the process.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}

    def write(path: Path) -> None:
        with path.open("wb") as opened:
            np.lib.format.write_array_header_1_0(opened, header)
            for part in parts:
                opened.write(np.ascontiguousarray(part).tobytes())

    write_atomically(file, write)


def _write_folders(
    folder: Path, names: Sequence[str], labels: Tensor, classes: Sequence[str], cell: Cell
) -> None:
    digits = len(str(len(labels)))
    for name, severity in ((n, s) for n in names for s in SEVERITIES):
        place = folder / name / str(severity)
        check_inside(place, folder)
        with _folder_when_complete(place) as made:
            for each in classes:
                (made / each).mkdir()
            for start, batch in cell(name, severity):
                for number, image in enumerate(batch, start=start):
                    path = made / classes[int(labels[number])] / f"{number:0{digits}d}.JPEG"
                    pixels = image.permute(1, 2, 0).squeeze(2).numpy()
                    content = io.BytesIO()  # Pillow itself cuts files short where a disk is full
                    Image.fromarray(pixels).save(content, "JPEG", quality=_JPEG_QUALITY)
                    path.write_bytes(content.getvalue())


def stored_perturbations(folder: Path | str) -> tuple[str, ...]:
    """The types of sequences found in a folder; none where its arrays are of single images."""
    paths = {name: _array(folder, name) for name in (*PERTURBATIONS, *HARDER_PERTURBATIONS)}
    found = paths.items()
    return tuple(n for n, path in found if path.is_file() and load_array(path).ndim == 5)


def count_sequences(folder: Path | str, name: str) -> int:
    """Count the sequences of a type."""
    return len(load_array(_array(folder, name)))


def read_sequences(
    folder: Path | str, name: str, *, batch_size: int = 16, limit: int | None = None
) -> Iterator[Tensor]:
    """The sequences of one type, batch by batch, uint8 (N, T, C, H, W)."""
    path = _array(folder, name)
    frames = load_array(path)
    if frames.ndim != 5 or frames.dtype != np.uint8 or frames.shape[1] < 2:
        raise ValueError(
            f"{path} must be uint8 (N, T, H, W, C) with two or more frames T, got {frames.dtype} "
            f"{tuple(frames.shape)}"
        )
    if limit is not None:
        check_integer("limit", limit, low=1)
    for rows in spread_evenly(len(frames), limit).split(batch_size):
        yield _channels_first(frames[rows.numpy()])
