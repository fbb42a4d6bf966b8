"""Tiny-ImageNet in its own layout, with its bounding boxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.files import ContentError
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import image_size
from sfumato.data.index import class_files, listed_text, present, told_apart
from sfumato.data.sources.folders import IMAGES
from sfumato.data.splits import Shared, image_files, source

Box = tuple[int, int, int, int]
Boxes = dict[str, list[Box]]
_LANDMARK = "wnids.txt"
# Places for boxes that are free, and that may be there for each box besides.
_FREE_PLACES, _MOST_PADDING = 2**24, 10


@source("validation", "limit_train", "limit_test", "seed", "in_memory", "on_bad_image")
def load_tiny_imagenet(
    shared: Shared, *, root: str | Path, size: int | None = None, classes: list[str] | None = None
) -> DataSplits:
    """Splits from Tiny-ImageNet (200 classes, 64 x 64, or any part of it), as folder or archive.

    `wnids.txt` lists the classes, sorted, and `words.txt` names them. Since the labels of its
    test images were never published, `val/` is the test set and validation comes from `train/`.
    Grey images become RGB. The files give the last pixel *inside* a box; here boxes end at
    the edge after it, so that a box over the whole image is 0, 0, 64, 64.

    Args:
        root: the folder that holds `wnids.txt`, or a tar archive of it.
        size: side in pixels to which images and boxes are scaled. None keeps their own.
        classes: the ones to keep, as `wnids.txt` has them (n01443537). None keeps all.
    """
    if size is not None:
        check_integer("size", size, low=1)
    return shared.of_archive(root, partial(_read, shared, size, classes), landmark=_LANDMARK)


def _read(
    shared: Shared, size: int | None, classes: Sequence[str] | None, folder: Path
) -> DataSplits:
    listed = folder / _LANDMARK
    wnids = sorted(
        _inside(wnid, listed, number) for number, (wnid,) in enumerate(_table(listed, 1), 1)
    )
    if not wnids:
        raise ContentError(f"{listed}: lists no classes")
    if classes is not None:
        missing = [wnid for wnid in classes if wnid not in wnids]
        if missing or len(set(classes)) < max(2, len(classes)):
            raise ContentError(
                f"classes must be two or more different ones of {listed}, "
                f"got {missing or list(classes)}"
            )
        wnids = sorted(classes)
    names = _class_names(folder / "words.txt", wnids)
    train = _train(folder / "train", wnids, names, size)
    return shared.with_test(train, _val(folder / "val", wnids, names, size))


def _train(
    folder: Path, wnids: Sequence[str], classes: tuple[str, ...], size: int | None
) -> ArrayDataset:
    paths: list[Path] = []
    labels: list[int] = []
    boxes: list[list[Box]] = []
    for label, wnid in enumerate(wnids):
        images = folder / wnid / "images"
        if not images.is_dir():
            raise FileNotFoundError(f"{images}: no such folder, though wnids.txt lists {wnid}")
        found = class_files(images, IMAGES)
        paths += found
        labels += [label] * len(found)
        boxes += _boxes_of(found, folder / wnid / f"{wnid}_boxes.txt")
    return _dataset(paths, labels, boxes, classes, size)


def _boxes_of(images: Sequence[Path], annotations: Path) -> list[list[Box]]:
    known = {path.name for path in images}
    by_image: Boxes = {}
    for number, (name, *box) in enumerate(_table(annotations, 5), start=1):
        if name not in known:
            raise ContentError(
                f"{annotations}, line {number}: no image {name} in {images[0].parent}"
            )
        by_image.setdefault(name, []).append(_box(box, annotations, number))
    return [by_image.get(path.name, []) for path in images]


def _val(
    folder: Path, wnids: Sequence[str], classes: tuple[str, ...], size: int | None
) -> ArrayDataset:
    annotations = folder / "val_annotations.txt"
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    labels: dict[str, int] = {}
    by_image: Boxes = {}
    for number, (name, wnid, *box) in enumerate(_table(annotations, 6), start=1):
        if wnid not in label_of:
            continue  # wnids.txt may pick a part of the classes
        if labels.setdefault(_inside(name, annotations, number), label_of[wnid]) != label_of[wnid]:
            raise ContentError(f"{annotations}, line {number}: {name} has two different classes")
        by_image.setdefault(name, []).append(_box(box, annotations, number))
    missing = set(label_of.values()) - set(labels.values())
    if missing:
        raise ContentError(
            f"{annotations}: no images of {[wnids[label] for label in sorted(missing)]}"
        )
    paths = present([folder / "images" / name for name in labels], annotations)
    return _dataset(paths, list(labels.values()), list(by_image.values()), classes, size)


def _dataset(
    paths: Sequence[Path],
    labels: Sequence[int],
    boxes: Sequence[Sequence[Box]],
    classes: tuple[str, ...],
    size: int | None,
) -> ArrayDataset:
    width, height = image_size(paths[0])
    if size is not None and width != height:
        raise ContentError(f"{paths[0]}: size= is for square images, this has {width}x{height}")
    images = image_files(paths, size=size)
    for path, several in zip(paths, boxes, strict=True):
        for x1, y1, x2, y2 in several:
            if x2 > width or y2 > height:
                raise ContentError(
                    f"{path}: box {x1, y1, x2 - 1, y2 - 1} is outside of {width}x{height}"
                )
    scale = images.shape[-1] / width
    padded = padded_boxes(boxes, paths).mul_(scale)
    return ArrayDataset(images, torch.tensor(labels), classes, boxes=padded)


def padded_boxes(
    boxes: Sequence[Sequence[Sequence[float]]],
    paths: Sequence[Path],
    *,
    most_padding: int = _MOST_PADDING,
) -> Tensor:
    """Ragged boxes as (N, B, 4), where a missing box is all zeros.

    Refused where the boxes of one of the images would take far more room than all boxes do.
    """
    counts = [len(several) for several in boxes]
    most = max((1, *counts))
    if len(boxes) * most > _FREE_PLACES + most_padding * sum(counts):
        raise ValueError(
            f"{paths[counts.index(most)]}: has {most:,} boxes, {len(boxes):,} images have "
            f"{sum(counts):,}; room for as many in each is refused: leave the image out"
        )
    padded = torch.zeros(len(boxes), most, 4)
    for position, several in enumerate(boxes):
        if several:
            padded[position, : len(several)] = torch.tensor(several, dtype=torch.float32)
    return padded


def _inside(name: str, path: Path, number: int) -> str:
    """A name that stays in its folder, whoever wrote the list."""
    is_long = len(name) > 255  # as no file's is
    if is_long or name in ("", ".", "..") or any(mark in name for mark in "/\\:"):
        raise ContentError(
            f"{path}, line {number}: {name!r} is no plain name and may point out of the data set; "
            "correct the line"
        )
    return name


def _box(fields: Sequence[str], path: Path, number: int) -> Box:
    try:
        x1, y1, x2, y2 = (int(field) for field in fields)
    except ValueError:
        raise ContentError(f"{path}, line {number}: box {fields} is not four integers") from None
    if not (0 <= x1 <= x2 and 0 <= y1 <= y2):
        raise ContentError(f"{path}, line {number}: box {x1, y1, x2, y2} is reversed or negative")
    return x1, y1, x2 + 1, y2 + 1


def _class_names(path: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first synonym of each class, with its wnid where two classes share one."""
    words = {wnid: names.split(",")[0] for wnid, names in _table(path, 2)}
    missing = [wnid for wnid in wnids if wnid not in words]
    if missing:
        raise ContentError(f"{path}: has no names for {missing}")
    return tuple(told_apart({wnid: words[wnid] for wnid in wnids}).values())


def _table(path: Path, columns: int) -> list[list[str]]:
    text = listed_text(path, "; is its folder part of Tiny-ImageNet?", "; fetch it again")
    lines = [line.split("\t") for line in text.strip().splitlines()]
    for number, fields in enumerate(lines, start=1):
        if len(fields) != columns:
            raise ContentError(
                f"{path}, line {number}: expected {columns} tab-separated fields, got {fields}"
            )
    return lines
