"""Reading corrupted sets, in the layouts in which the published ones come.

arrays: `<type>.npy`, uint8 (5 N, H, W, C), severity 1 first, and `labels.npy`, (5 N,) or (N,).
folders: `<type>/<severity>/<class>/<image>`, JPEG or PNG, or with a folder for each group of types
(`noise/<type>/...`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.corruptions.catalogue import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES

_SUFFIXES = {".jpeg", ".jpg", ".png"}
_GROUPS = ("noise", "blur", "weather", "digital", "extra")


def stored_corruptions(folder: Path | str) -> tuple[str, ...]:
    """The types found in a folder of either layout, in the benchmark's order.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = Path(folder)
    found = tuple(
        name
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        if (folder / f"{name}.npy").is_file() or _place(folder, name).is_dir()
    )
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no corrupted images: expected files such as fog.npy with labels.npy, "
            "or folders such as fog/1/<class>/<image>"
        )
    return found


def read_corrupted(
    folder: Path | str,
    name: str,
    severity: int,
    *,
    batch_size: int = 256,
    limit: int | None = None,
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

    Raises:
        FileNotFoundError: the type or severity is not there.
        ValueError: the files are not of the form above.
    """
    check_integer("batch_size", batch_size, low=1)
    folder, labels = Path(folder), stored_labels(folder, name, severity, limit=limit)
    if (folder / f"{name}.npy").is_file():
        return _read_arrays(folder / f"{name}.npy", severity, labels, batch_size)
    return _read_folders(_place(folder, name) / str(severity), labels, batch_size)


def stored_labels(
    folder: Path | str, name: str, severity: int, *, limit: int | None = None
) -> Tensor:
    """int64 (N,), the labels of what `read_corrupted` reads, without reading an image."""
    folder = Path(folder)
    check_integer("severity", severity, low=1, high=5)
    if (folder / f"{name}.npy").is_file():
        labels = _array_labels(folder, name, severity)
    elif (_place(folder, name) / str(severity)).is_dir():
        place = _place(folder, name) / str(severity)
        labels = torch.tensor([label for _, label in _listed(place)])
    else:
        raise FileNotFoundError(
            f"{folder} has neither {name}.npy nor {name}/{severity}/. "
            f"It holds {', '.join(stored_corruptions(folder))}."
        )
    return labels[spread(len(labels), limit)]


def stored_classes(folder: Path | str, name: str, severity: int) -> tuple[str, ...] | None:
    """The names of the class folders in the order of their labels; None in the other layout."""
    place = _place(Path(folder), name) / str(severity)
    return _classes(place) if place.is_dir() else None


def spread(count: int, limit: int | None) -> Tensor:
    """Positions of `limit` of `count` things from all over them, in order; all for None."""
    if limit is None or limit >= count:
        return torch.arange(count)
    check_integer("limit", limit, low=1)
    return torch.arange(limit) * count // limit


def load_array(path: Path) -> npt.NDArray[Any]:
    """A `.npy` file that stays on disk until it is read.

    Raises:
        FileNotFoundError, ValueError: no such file, or one that only pickle could read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a set of arrays needs it")
    try:
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: not readable as .npy without pickle: {error}") from error
    return found


def _place(folder: Path, name: str) -> Path:
    """The folder of a type; ImageNet-C comes in one archive for each group of types."""
    places = (folder / name, *(folder / group / name for group in _GROUPS))
    return next((place for place in places if place.is_dir()), folder / name)


def _array_labels(folder: Path, name: str, severity: int) -> Tensor:
    path = folder / f"{name}.npy"
    images, labels = load_array(path), load_array(folder / "labels.npy")
    if images.ndim != 4 or images.dtype != np.uint8 or len(images) % len(SEVERITIES):
        raise ValueError(
            f"{path} must be uint8 (5 N, H, W, C), got {images.dtype} {tuple(images.shape)}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{folder / 'labels.npy'} must hold integers (N,), got {labels.dtype} {labels.shape}"
        )
    count = len(images) // len(SEVERITIES)
    first = (severity - 1) * count
    if len(labels) == len(images):
        labels = labels[first : first + count]
    if len(labels) != count:
        raise ValueError(
            f"labels.npy must have {count} or {len(images)} entries for {path.name}, "
            f"got {len(labels)}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _read_arrays(
    path: Path, severity: int, labels: Tensor, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    images = load_array(path)
    count = len(images) // len(SEVERITIES)
    positions = (severity - 1) * count + spread(count, len(labels))
    for rows, target in zip(positions.split(batch_size), labels.split(batch_size), strict=True):
        batch = torch.from_numpy(np.array(images[rows.numpy()]))
        yield batch.permute(0, 3, 1, 2).contiguous(), target


def _read_folders(folder: Path, labels: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    paths = [path for path, _ in _listed(folder)]
    positions = spread(len(paths), len(labels))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows, target in zip(positions.split(batch_size), labels.split(batch_size), strict=True):
            images = list(pool.map(_decode, [paths[row] for row in rows.tolist()]))
            if len({image.shape for image in images}) > 1:
                raise ValueError(
                    f"the images of {folder} differ in size; resize them to one size first"
                )
            yield torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), target


def _decode(path: Path) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: unreadable image: {error}") from error


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def _listed(folder: Path) -> list[tuple[Path, int]]:
    """Every image with its label.

    Raises:
        ValueError: there is none.
    """
    found = [
        (path, label)
        for label, name in enumerate(_classes(folder))
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in _SUFFIXES
    ]
    if not found:
        raise ValueError(f"{folder}: holds no images; expected {folder}/<class>/<image>.JPEG")
    return found
