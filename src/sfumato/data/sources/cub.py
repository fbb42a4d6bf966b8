"""CUB-200-2011 in its own layout, with its official split and its bounding boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import image_size
from sfumato.data.index import listed_text, present
from sfumato.data.splits import Shared, image_files, source

Box = tuple[float, float, float, float]
Value = TypeVar("Value")
_LANDMARK = "train_test_split.txt"


@source("validation", "limit_train", "limit_test", "seed", "in_memory", "on_bad_image")
def load_cub(shared: Shared, *, root: str | Path, size: int = 224) -> DataSplits:
    """Splits from CUB-200-2011 (200 kinds of birds, 11,788 images), as folder or archive.

    `train_test_split.txt` says what is trained and what is tested on; validation comes from the
    training part. Every image is scaled to cover a square and cut at its centre, and so is its
    box; a box of which nothing is left counts as none.

    Args:
        root: the folder that holds `images.txt`, the one above it, or a tar archive of either.
        size: side of the square in pixels.
    """
    check_integer("size", size, low=1)

    def read(found: Path) -> DataSplits:
        inner = found / "CUB_200_2011"
        folder = inner if not (found / _LANDMARK).is_file() and inner.is_dir() else found
        return shared.with_test(*_sets(folder, size))

    return shared.of_archive(root, read, landmark=_LANDMARK)


def _sets(folder: Path, size: int) -> tuple[ArrayDataset, ArrayDataset]:
    names = _table(folder / "classes.txt", _text)
    files = _table(folder / "images.txt", _inside)
    labels = _of_images(folder / "image_class_labels.txt", _integer, files)
    is_train = _of_images(folder / _LANDMARK, _flag, files)
    boxes = _of_images(folder / "bounding_boxes.txt", _box, files)
    places = {number: place for place, number in enumerate(sorted(names))}
    for image, label in labels.items():
        if label not in places:
            raise ValueError(
                f"{folder / 'image_class_labels.txt'}: image {image} has the class {label}, which "
                "classes.txt does not list"
            )
    parts = []
    for part, wanted in (("training", True), ("test", False)):
        chosen = [image for image in files if is_train[image] == wanted]
        if not chosen:
            raise ValueError(f"{folder / _LANDMARK}: marks no {part} images")
        paths = [folder / "images" / files[image] for image in chosen]
        images = image_files(present(paths, folder / "images.txt"), size=size)
        numbers = torch.tensor([places[labels[image]] for image in chosen])
        cut = _cut([boxes[image] for image in chosen], paths, size)
        parts.append(
            ArrayDataset(images, numbers, tuple(names[each] for each in places), boxes=cut)
        )
    return parts[0], parts[1]


def _cut(boxes: Sequence[Box], paths: Sequence[Path], size: int) -> Tensor:
    """(N, 1, 4), the boxes in the squares that images are cut to."""
    sides = torch.tensor([image_size(path) for path in paths], dtype=torch.float32)  # width, height
    shortest = sides.amin(1, keepdim=True)
    x, y, width, height = torch.tensor(boxes, dtype=torch.float32).unbind(1)
    corners = torch.stack([x, y, x + width, y + height], 1)
    margins = ((sides - shortest) / 2).repeat(1, 2)
    found = ((corners - margins) * size / shortest).clamp(0, size)
    is_there = (found[:, 2:] > found[:, :2]).all(1)
    return (found * is_there.unsqueeze(1)).unsqueeze(1)


def _table(path: Path, read: Callable[[str], Value]) -> dict[int, Value]:
    """Read what the file says of each number, read by `read`, in the order of its lines."""
    text = listed_text(path, "; is its folder CUB-200-2011?", "; fetch it again")
    found: dict[int, Value] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        first, _, rest = line.strip().partition(" ")
        try:
            key = _integer(first)
            value = read(rest.strip())
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {line!r}: {error}") from None
        if key in found:
            raise ValueError(f"{path}, line {number}: {key} is there twice")
        found[key] = value
    if not found:
        raise ValueError(f"{path}: has no lines")
    return found


def _of_images(
    path: Path, read: Callable[[str], Value], files: Mapping[int, str]
) -> dict[int, Value]:
    """A table that has a line for each image and for nothing else."""
    found = _table(path, read)
    for image in (*files, *found):
        if image not in found:
            raise ValueError(f"{path}: has no line for image {image}, which images.txt lists")
        if image not in files:
            raise ValueError(f"{path}: has a line for image {image}, which images.txt has not")
    return found


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a number and a name")
    return text


def _inside(text: str) -> str:
    """A path that stays in the folder of images, whoever wrote the list."""
    path = PurePosixPath(_text(text))
    if path.is_absolute() or ".." in path.parts or any(mark in text for mark in "\\:"):
        raise ValueError("the path may point out of the data set; correct the line")
    return text


def _integer(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(text)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"expected 1 for training or 0 for test, got {text!r}")
    return text == "1"


def _box(text: str) -> Box:
    try:
        x, y, width, height = (float(field) for field in text.split())
    except ValueError:
        raise ValueError("expected x, y, width and height as four numbers") from None
    if not (0 <= x < math.inf and 0 <= y < math.inf):
        raise ValueError("a box must begin in the image")
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise ValueError("a box must have a width and a height above 0")
    return x, y, width, height
