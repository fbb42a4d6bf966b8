"""Reading corrupted sets, in the two layouts in which the published ones come.

arrays: `<type>.npy`, uint8 (5 N, H, W, C), severity 1 first, and `labels.npy`, (5 N,) or (N,).
folders: `<type>/<severity>/<class>/<image>`, JPEG or PNG.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.corruptions.catalogue import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES

_SUFFIXES = {".jpeg", ".jpg", ".png"}


def stored_corruptions(folder: Path | str) -> tuple[str, ...]:
    """The types found in a folder of either layout, in the benchmark's order.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = Path(folder)
    found = tuple(
        name
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        if (folder / f"{name}.npy").is_file() or (folder / name).is_dir()
    )
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no corrupted images: expected files such as fog.npy with labels.npy, "
            "or folders such as fog/1/<class>/<image>"
        )
    return found


def read_corrupted(
    folder: Path | str, name: str, severity: int, *, batch_size: int = 256
) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of one type and severity with their labels, batch by batch, in either layout.

    Args:
        folder: the set, for example the unpacked CIFAR-10-C or ImageNet-C.
        name: type of corruption.
        severity: 1 to 5.
        batch_size: images in a batch; the last may have fewer.

    Returns:
        An iterator over uint8 (N, C, H, W) and int64 (N,). In folders a label is the position of
        the class folder in sorted order, and images are read as RGB.

    Raises:
        FileNotFoundError: the type or severity is not there.
        ValueError: the files are not of the form above.
    """
    folder = Path(folder)
    check_integer("severity", severity, low=1, high=5)
    check_integer("batch_size", batch_size, low=1)
    if (folder / f"{name}.npy").is_file():
        return _read_arrays(folder, name, severity, batch_size)
    if (folder / name / str(severity)).is_dir():
        return _read_folders(folder / name / str(severity), batch_size)
    raise FileNotFoundError(
        f"{folder} has neither {name}.npy nor {name}/{severity}/. "
        f"It holds {', '.join(stored_corruptions(folder))}."
    )


def _read_arrays(
    folder: Path, name: str, severity: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    path = folder / f"{name}.npy"
    images = np.load(path, mmap_mode="r", allow_pickle=False)
    if images.ndim != 4 or images.dtype != np.uint8 or len(images) % len(SEVERITIES):
        raise ValueError(
            f"{path} must be uint8 (5 N, H, W, C), got {images.dtype} {tuple(images.shape)}"
        )
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    count = len(images) // len(SEVERITIES)
    first = (severity - 1) * count
    if len(labels) == len(images):
        labels = labels[first : first + count]
    if len(labels) != count:
        raise ValueError(
            f"labels.npy must have {count} or {len(images)} entries for {path.name}, "
            f"got {len(labels)}"
        )
    for start in range(0, count, batch_size):
        stop = min(start + batch_size, count)
        batch = torch.from_numpy(np.array(images[first + start : first + stop]))
        yield (
            batch.permute(0, 3, 1, 2).contiguous(),
            torch.from_numpy(labels[start:stop].astype(np.int64)),
        )


def _read_folders(folder: Path, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    entries = [
        (path, label)
        for label, class_name in enumerate(classes)
        for path in sorted((folder / class_name).iterdir())
        if path.suffix.lower() in _SUFFIXES
    ]
    for start in range(0, len(entries), batch_size):
        part = entries[start : start + batch_size]
        images = [np.array(Image.open(path).convert("RGB")) for path, _ in part]
        if len({image.shape for image in images}) > 1:
            raise ValueError(
                f"the images of {folder} differ in size; resize them to one size first"
            )
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
        yield batch, torch.tensor([label for _, label in part])
