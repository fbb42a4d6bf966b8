"""Detection data in COCO's format: one JSON file of annotations and a folder of images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato.data.annotations import coco_content, coco_image, four_numbers
from sfumato.data.detection import DetectionDataset, DetectionSplits, Objects
from sfumato.data.files import FileTensor, ReadImage, image_size
from sfumato.data.splits import OnBadImage, bad_rows

OnBadBox = Literal["error", "skip"]
_READ = ReadImage()

_Row = tuple[list[float], int, float, bool]  # corners, class, area, crowd


class ImageFiles(Sequence[Tensor]):
    """Images that are decoded when asked for, none larger than `longest` on its longer side."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[tuple[int, int]]) -> None:
        self.paths, self.sizes = paths, sizes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return ImageFiles(self.paths[position], self.sizes[position])
        path, size = self.paths[position], self.sizes[position]
        pixels = _READ(path)
        if pixels.shape[1::-1] != size:
            pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def read_coco_detection(
    annotations: str | Path,
    images: str | Path,
    *,
    longest: int | None = None,
    on_bad_box: OnBadBox = "error",
) -> DetectionDataset:
    """Read boxes from COCO JSON; image files are decoded when they are asked for.

    Classes are the file's categories in the order of their ids. Boxes are cut at the border of
    their image. Images without objects are kept: they teach what is no object.

    Args:
        annotations: the JSON file (`images`, `annotations`, `categories`).
        images: the folder that the file names are relative to.
        longest: images are scaled down so that the longer side has at most this many pixels; AP of
            small, medium and large objects still counts the original's pixels.
        on_bad_box: a box without area inside its image, or of an unknown image or category, is an
            `error`, or is left out with a warning that says how many (`skip`).
    """
    file, folder = Path(annotations), Path(images)
    check_choice("on_bad_box", on_bad_box, ("error", "skip"))
    if longest is not None:
        check_integer("longest", longest, low=16)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of images")
    content = coco_content(file)
    if not content["images"] or not content["categories"]:
        raise ValueError(f"{file}: images and categories must not be empty")
    categories = sorted(
        content["categories"], key=lambda each: (isinstance(each["id"], str), each["id"])
    )
    names = tuple(str(each["name"]) for each in categories)
    number = {each["id"]: position for position, each in enumerate(categories)}
    entries = {entry["id"]: entry for entry in content["images"]}
    grouped, bad = _group(file, content["annotations"], entries, number)
    if bad and on_bad_box == "error":
        raise ValueError(f"{bad[0]} ({len(bad)} such); on_bad_box='skip' leaves them out")
    if bad:
        warnings.warn(f"left out {len(bad)} boxes; first: {bad[0]}", stacklevel=2)
    paths, sizes, scales, objects = [], [], [], []
    for key, entry in entries.items():
        path = coco_image(folder, entry)
        if path is None:
            raise FileNotFoundError(f"{folder / entry['file_name']}: named by {file}, not there")
        _check_size(path, entry)
        side = max(entry["width"], entry["height"])
        factor = 1.0 if longest is None else min(1.0, longest / side)
        width, height = (max(1, round(entry[name] * factor)) for name in ("width", "height"))
        paths.append(path)
        sizes.append((width, height))
        scales.append(1 / factor)
        objects.append(_objects(grouped.get(key, []), factor))
    return DetectionDataset(ImageFiles(paths, sizes), objects, names, scales)


def load_coco(
    *,
    train: Path,
    train_images: Path,
    validation: Path,
    validation_images: Path,
    test: Path,
    test_images: Path,
    longest: int | None = None,
    on_bad_box: OnBadBox = "error",
    on_bad_image: OnBadImage = None,
) -> DetectionSplits:
    """Three COCO files with their folders of images; all must have the same categories.

    Args:
        train: annotations of the training set; so for `validation` and `test`.
        train_images: folder of its images; so for the others.
        validation: annotations.
        validation_images: folder.
        test: annotations.
        test_images: folder.
        longest: as in `read_coco_detection`.
        on_bad_box: as in `read_coco_detection`.
        on_bad_image: "error" stops where a file can't be decoded; "skip" decodes all of them
            first, leaves such files out of their part, and lists them with the run.
    """
    check_choice("on_bad_image", on_bad_image, (None, "error", "skip"))
    places = ((train, train_images), (validation, validation_images), (test, test_images))
    made = [read_coco_detection(*each, longest=longest, on_bad_box=on_bad_box) for each in places]
    for place, each in zip(places[1:], made[1:], strict=True):
        if each.classes != made[0].classes:
            raise ValueError(f"{place[0]}: categories differ from those of {train}")
    if on_bad_image != "skip":
        return DetectionSplits(*made)
    skipped: dict[str, str] = {}
    kept = [_decodable(each, skipped) for each in made]
    return DetectionSplits(*kept, skipped=skipped)


def _decodable(part: DetectionDataset, skipped: dict[str, str]) -> DetectionDataset:
    """The images that can be decoded, with their objects; the others go to `skipped`."""
    images = part.images
    assert isinstance(images, ImageFiles)  # of `read_coco_detection`
    faults = bad_rows(FileTensor.of(images.paths, _READ))
    skipped |= {str(images.paths[row]): reason for row, reason in faults.items()}
    columns: list[Sequence[Any]] = [images.paths, images.sizes, part.objects, part.scales]
    good = [[each for row, each in enumerate(column) if row not in faults] for column in columns]
    return replace(part, images=ImageFiles(*good[:2]), objects=good[2], scales=good[3])


def _group(
    file: Path,
    annotations: list[dict[str, Any]],
    entries: dict[int, Any],
    number: dict[int, int],
) -> tuple[dict[int, list[_Row]], list[str]]:
    """Boxes (corners, class, area, crowd) by image, and what is wrong with those left out."""
    grouped: dict[int, list[_Row]] = {}
    bad = []
    for each in annotations:
        where = f"{file}: annotation {each.get('id')}"
        entry = entries.get(each["image_id"])
        if entry is None or each["category_id"] not in number:
            bad.append(f"{where} has an unknown image or category")
            continue
        left, top, width, height = four_numbers(each["bbox"], where)
        area = _area(each.get("area"), width * height, where)
        box = [max(left, 0.0), max(top, 0.0)]
        box += [min(left + width, entry["width"]), min(top + height, entry["height"])]
        if not all(map(math.isfinite, (left, top, width, height, area))):
            bad.append(f"{where} has a number that is not finite: {each['bbox']}, area {area}")
        elif box[2] <= box[0] or box[3] <= box[1]:
            bad.append(f"{where} has no area inside its image: {each['bbox']}")
        else:
            row = (box, number[each["category_id"]], area, bool(each.get("iscrowd", 0)))
            grouped.setdefault(each["image_id"], []).append(row)
    return grouped, bad


def _check_size(path: Path, entry: dict[str, Any]) -> None:
    """Raise where an image has another size than its annotation; scaling would move its boxes."""
    try:
        found = image_size(path, upright=True)
    except ValueError:
        return  # that a file can't be read is said, or skipped, where it is decoded
    if found != (entry["width"], entry["height"]):
        raise ValueError(
            f"{path}: annotated as {entry['width']}x{entry['height']} pixels, but has "
            f"{found[0]}x{found[1]}; correct width and height of image {entry['id']}"
        )


def _area(given: Any, of_box: float, where: str) -> float:
    """The area of an object as the file says it, or of its box where it says none."""
    if given is None:
        return of_box
    try:
        if not isinstance(given, bool) and isinstance(given, int | float):
            return float(given)
    except OverflowError:  # an integer past all floats
        pass
    raise ValueError(f"{where}: area must be a number, got {given!r}; leave it out for the box")


def _objects(rows: list[_Row], factor: float) -> Objects:
    types = (torch.float32, torch.int64, torch.float32, torch.bool)
    columns = [torch.tensor([row[n] for row in rows], dtype=each) for n, each in enumerate(types)]
    return Objects(columns[0].reshape(-1, 4) * factor, *columns[1:])
