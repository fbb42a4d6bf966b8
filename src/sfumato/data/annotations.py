"""Boxes from VOC / ImageNet XML, COCO JSON and OpenImages CSV, and sets made from them."""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree
from xml.parsers import expat

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.files import (
    ContentError,
    csv_rows,
    is_file,
    open_file,
    read_bytes,
    read_text,
    text_lines,
)
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import EXTENSIONS, image_size
from sfumato.data.sources.objects import real_boxes, single_objects
from sfumato.data.sources.tiny_imagenet import padded_boxes
from sfumato.data.splits import OnBadImage, Shared, bad_rows, image_files, keeps_in_memory, source

OnBadBox = Literal["error", "skip", "clip"]
Box = tuple[float, float, float, float]
_MOST_PADDING = 100  # for each box: OpenImages has 88


@dataclass
class AnnotatedImage:
    """One image file and its objects.

    Args:
        path: of the image.
        width: in pixels.
        height: in pixels.
        boxes: x1, y1, x2, y2 in pixels, the far edges exclusive.
        labels: the class of each box.
    """

    path: Path
    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


@dataclass
class Annotations:
    """The images of a set, and what was left out of it, counted by reason.

    Args:
        images: in the order of the source.
        skipped: reason -> how many boxes or images.
        clipped: how many boxes were cut to their image.
        unreadable: images that were left out because they can't be decoded: file -> reason.
    """

    images: list[AnnotatedImage]
    skipped: Counter[str] = field(default_factory=Counter)
    clipped: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def report(self) -> str:
        """One line: how much was read, and how much was not, and why."""
        boxes = sum(len(image.boxes) for image in self.images)
        text = f"{boxes} boxes in {len(self.images)} images"
        if self.clipped:
            text += f"; {self.clipped} boxes cut to their image"
        left = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"{text}; skipped: {left}" if left else text


@dataclass
class BoxReader:
    """Checks boxes one by one: the first bad one is an error, or all of them are counted."""

    # "error" raises; "skip" leaves the box out and counts it; "clip" cuts a box that reaches over
    # the border to its image, and skips all others that are bad.
    on_bad_box: OnBadBox
    found: Annotations = field(default_factory=lambda: Annotations([]))

    def __post_init__(self) -> None:
        check_choice("on_bad_box", self.on_bad_box, ("error", "skip", "clip"))

    def add(self, image: AnnotatedImage, box: Sequence[float], label: str, where: str) -> None:
        """Put a box into its image, unless it is bad; `where` says where it was read."""
        fault = _fault(box, image.width, image.height)
        x1, y1, x2, y2 = box
        if fault == "reaching outside the image" and self.on_bad_box == "clip":
            self.found.clipped += 1
            x1, x2 = max(x1, 0.0), min(x2, float(image.width))
            y1, y2, fault = max(y1, 0.0), min(y2, float(image.height)), None
        if fault is not None:
            corners = ", ".join(f"{value:g}" for value in box)
            message = f"{where}: box ({corners}) of {label!r} is {fault}"
            self.refuse(f"boxes {fault}", f"{message} ({image.width}x{image.height})")
            return
        image.boxes.append((x1, y1, x2, y2))
        image.labels.append(label)

    def refuse(self, reason: str, message: str) -> None:
        if self.on_bad_box == "error":
            raise ContentError(f"{message}. on_bad_box='skip' leaves such out and counts them.")
        self.found.skipped[reason] += 1


def _fault(box: Sequence[float], width: int, height: int) -> str | None:
    x1, y1, x2, y2 = box
    if not all(math.isfinite(value) for value in box):
        return "not finite"
    if x2 < x1 or y2 < y1:
        return "reversed"
    if x1 == x2 or y1 == y2:
        return "empty"
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        return "outside the image"
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        return "reaching outside the image"
    return None


def read_coco(
    annotations: str | Path, images: str | Path, *, on_bad_box: OnBadBox = "error"
) -> Annotations:
    """The objects of a COCO "instances" file, images in the file's order.

    Boxes are x, y, width, height. Crowds (`iscrowd`: 1), whose boxes cover many objects, are left
    out and counted, whatever `on_bad_box`.

    Args:
        annotations: the JSON file, with `images`, `annotations` and `categories`.
        images: the folder of the images.
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
    """
    file, root = Path(annotations).expanduser(), Path(images).expanduser()
    content = coco_content(file)
    reader = BoxReader(on_bad_box)
    names = {each["id"]: str(each["name"]) for each in content["categories"]}
    found: dict[Any, AnnotatedImage] = {}
    missing = set()
    for each in content["images"]:
        path = coco_image(root, each)
        if path is None:
            missing.add(each["id"])
            reader.refuse("images missing", f"{file}: no image {root / each['file_name']}")
            continue
        found[each["id"]] = AnnotatedImage(path, int(each["width"]), int(each["height"]))
    for each in content["annotations"]:
        where = f"{file}: annotation {each.get('id', '?')}"
        if each.get("iscrowd"):
            reader.found.skipped["crowds"] += 1
        elif each["image_id"] in missing:
            reader.found.skipped["boxes of missing images"] += 1
        elif each["image_id"] not in found:
            reader.refuse("boxes of unlisted images", f"{where}: unlisted image {each['image_id']}")
        elif each["category_id"] not in names:
            reader.refuse("boxes of unknown class", f"{where}: no category {each['category_id']}")
        else:
            x, y, width, height = four_numbers(each["bbox"], where)
            image = found[each["image_id"]]
            reader.add(image, (x, y, x + width, y + height), names[each["category_id"]], where)
    return replace(reader.found, images=list(found.values()))


def coco_image(root: Path, entry: dict[str, Any]) -> Path | None:
    """The file of an image; None where it is not there, or is named outside of the folder."""
    path = root / entry["file_name"]
    is_inside = ".." not in path.parts and path.is_relative_to(root)
    return path if is_inside and is_file(path) else None


_NUMBER, _KEY = (int, float), (int, str)
_MOST_PIXELS = 2**31  # of a side, as in formats of images

_NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "images": {"id": _KEY, "file_name": (str,), "width": _NUMBER, "height": _NUMBER},
    "annotations": {"image_id": _KEY, "category_id": _KEY, "bbox": (list,)},
    "categories": {"id": _KEY, "name": _KEY},
}


def coco_content(file: Path) -> dict[str, list[dict[str, Any]]]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected COCO's instances JSON")
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ContentError(f"{file}: not readable as JSON: {error}") from error
    for section, keys in _NEEDED.items():
        entries = content.get(section) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ContentError(f"{file}: needs a list {section!r}")
        for number, entry in enumerate(entries):
            _check_entry(f"{file}: {section}[{number}]", entry, keys)
    return content


def _check_entry(where: str, entry: object, keys: dict[str, tuple[type, ...]]) -> None:
    if not isinstance(entry, dict) or set(keys) - set(entry):
        raise ContentError(f"{where} needs the keys {sorted(keys)}")
    for key, kinds in keys.items():
        expected = " or ".join(kind.__name__ for kind in kinds)
        is_good = isinstance(entry[key], kinds)
        if is_good and kinds is _NUMBER:
            expected = "a number of pixels, at least 1"
            is_good = 1 <= entry[key] < _MOST_PIXELS
        if not is_good:
            raise ContentError(f"{where} has {entry[key]!r} for {key}, which must be {expected}")


def four_numbers(box: Any, where: str) -> Box:
    try:
        x, y, width, height = (float(value) for value in box)
    except (TypeError, ValueError, OverflowError):
        raise ContentError(f"{where}: bbox must be x, y, width, height, got {box!r}") from None
    return x, y, width, height


_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax")


def read_openimages(
    annotations: str | Path,
    images: str | Path,
    *,
    class_names: str | Path | None = None,
    on_bad_box: OnBadBox = "error",
    on_bad_image: OnBadImage = None,
) -> Annotations:
    """The objects of an OpenImages box file, images in the order of their first line.

    Groups (`IsGroupOf`: 1) are left out and counted, whatever `on_bad_box`. Each image's header is
    read, since the file gives boxes as shares of it.

    Args:
        annotations: the CSV with ImageID, LabelName, XMin, XMax, YMin, YMax.
        images: the folder of the images, `<ImageID>.jpg`.
        class_names: CSV of LabelName (`/m/011k07`) and name, without a heading; None keeps the
            codes.
        on_bad_box: as in `read_coco`.
        on_bad_image: "error", or "skip" to leave out images whose header can't be read, which
            `unreadable` then lists.
    """
    file, root = Path(annotations).expanduser(), Path(images).expanduser()
    names = {} if class_names is None else class_descriptions(Path(class_names).expanduser())
    check_choice("on_bad_image", on_bad_image, (None, "error", "skip"))
    reader = BoxReader(on_bad_box)
    found: dict[str, AnnotatedImage | None] = {}
    rows = _csv_rows(file)
    _, heading = next(rows, (0, []))
    lacking = [name for name in _COLUMNS if name not in heading]
    if lacking:
        raise ContentError(f"{file}: has no column {lacking[0]!r}, has {heading}")
    for number, cells in rows:
        where, row = f"{file}, line {number}", dict(zip(heading, cells, strict=False))
        if any(name not in row for name in _COLUMNS):
            raise ContentError(f"{where}: fewer fields than the heading has")
        if row.get("IsGroupOf") == "1":
            reader.found.skipped["groups"] += 1
            continue
        if row["ImageID"] not in found:
            skips = on_bad_image == "skip"
            found[row["ImageID"]] = _image(root, row["ImageID"], where, reader, skips=skips)
        image = found[row["ImageID"]]
        if image is None:
            reader.found.skipped["boxes of images left out"] += 1
            continue
        try:
            x1, x2, y1, y2 = (float(row[name]) for name in _COLUMNS[2:])
        except (TypeError, ValueError):
            raise ContentError(f"{where}: XMin, XMax, YMin and YMax must be numbers") from None
        box = (x1 * image.width, y1 * image.height, x2 * image.width, y2 * image.height)
        reader.add(image, box, names.get(row["LabelName"], row["LabelName"]), where)
    images_found = [image for image in found.values() if image is not None]
    return replace(reader.found, images=images_found)


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty; no line is longer than a field may be."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected an OpenImages CSV")
    with TextIOWrapper(open_file(file), "utf-8", newline="") as lines:
        rows = csv_rows(file, text_lines(lines, csv.field_size_limit()))
        yield from ((number, row) for number, row in rows if row)


def class_descriptions(file: Path) -> dict[str, str]:
    """The name of each code (`/m/011k07`); a heading, which newer files have, is left out."""
    rows = {row[0]: row[1] for _, row in _csv_rows(file) if len(row) >= 2}
    rows.pop("LabelName", None)
    return rows


def _image(
    root: Path, name: str, where: str, reader: BoxReader, *, skips: bool
) -> AnnotatedImage | None:
    path = root / f"{name}.jpg"
    if Path(name).name != name or not is_file(path):
        reader.refuse("images missing", f"{where}: no image {path}")
        return None
    try:
        return AnnotatedImage(path, *image_size(path))
    except ValueError as error:
        if not skips:
            raise
        reader.found.unreadable[str(path)] = str(error)
        return None


def read_voc(
    annotations: str | Path,
    images: str | Path,
    *,
    first_pixel: int = 1,
    on_bad_box: OnBadBox = "error",
) -> Annotations:
    """The objects of all `*.xml` files below a folder, in the order of their names.

    A file's image has the file's own name (or the one in `filename`), in the same subfolder of
    `images`, as in ImageNet's `n01440764/n01440764_18.xml`. Files with a document type or entities
    are refused: they could grow without bound, and no annotation needs them.

    Args:
        annotations: the folder of the XML files.
        images: the folder of the images.
        first_pixel: number of the first pixel, 1 in VOC; 0 where files count from zero. The last
            pixel named is inside the box.
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
    """
    folder, root = Path(annotations).expanduser(), Path(images).expanduser()
    check_choice("first_pixel", first_pixel, (0, 1))
    files = sorted(folder.rglob("*.xml"))
    if not files:
        raise FileNotFoundError(f"{folder}: no .xml files here")
    reader = BoxReader(on_bad_box)
    for file in files:
        tree = parse_safely(file)
        path = _image_path(file, folder, root, tree.findtext("filename", ""))
        if path is None:
            reader.refuse("images missing", f"{file}: no image for it in {root}")
            continue
        width, height = (_number(tree, f"size/{side}", file) for side in ("width", "height"))
        if not (1 <= width < math.inf and 1 <= height < math.inf):
            raise ContentError(f"{file}: the image can't have {width:g} x {height:g} pixels")
        image = AnnotatedImage(path, int(width), int(height))
        for thing in tree.iterfind("object"):
            x1, y1, x2, y2 = (
                _number(thing, f"bndbox/{side}", file) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            label = (thing.findtext("name") or "").strip()
            box = (x1 - first_pixel, y1 - first_pixel, x2 - first_pixel + 1, y2 - first_pixel + 1)
            # A box whose last pixel is just before its first is reversed, not empty.
            reader.add(image, (x1, y1, x2, y2) if x2 < x1 or y2 < y1 else box, label, str(file))
        reader.found.images.append(image)
    return reader.found


def parse_safely(file: Path) -> ElementTree.Element:
    """An XML file's tree; document types, entities and broken files are refused."""
    parser = expat.ParserCreate()
    builder = ElementTree.TreeBuilder()

    def refuse(*_: object) -> None:
        raise ContentError(f"{file}: has a document type or entities, which annotations don't need")

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(file), True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:  # also of odd encodings
        raise ContentError(f"{file}: not readable as XML: {error}") from error
    return builder.close()


def _image_path(file: Path, folder: Path, root: Path, name: str) -> Path | None:
    """The image beside the file's place; a name that leads out of `root` is not followed."""
    folder_of_image = root / file.parent.relative_to(folder)
    names = [f"{file.stem}{ending}" for ending in (*EXTENSIONS, ".JPEG", ".JPG", ".PNG")]
    if name.strip() and Path(name.strip()).name == name.strip():
        names.insert(0, name.strip())
    return next((folder_of_image / each for each in names if is_file(folder_of_image / each)), None)


def _number(element: ElementTree.Element, where: str, file: Path) -> float:
    text = element.findtext(where)
    try:
        return float(text or "")
    except ValueError:
        raise ContentError(f"{file}: {where} must be a number, got {text!r}") from None


READERS: dict[str, Callable[..., Annotations]] = {
    "voc": read_voc,
    "coco": read_coco,
    "openimages": read_openimages,
}


@source("validation", "limit_train", "seed", "in_memory", "on_bad_image")
def load_annotated(
    shared: Shared,
    *,
    format: Literal["voc", "coco", "openimages"],
    train_annotations: str | Path,
    train_images: str | Path,
    test_annotations: str | Path,
    test_images: str | Path,
    size: int = 64,
    on_bad_box: OnBadBox = "error",
    others: Literal["paint", "keep"] | None = None,
) -> DataSplits:
    """Splits from annotated images: one sample for each object, all others painted over.

    Classes are those of the training boxes, by name. What was skipped is said in one warning.

    Args:
        format: of the annotation files.
        train_annotations: file or folder, as `read_voc`, `read_coco` or `read_openimages` takes it.
        train_images: the folder of the training images.
        test_annotations: as for training.
        test_images: the folder of the test images.
        size: side in pixels of the samples; images are scaled to cover it and cut at the centre.
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
        others: "keep" gives one sample for each image instead, with all its objects, which must be
            of one class; "paint", also None, is one for each object.
    """
    check_choice("format", format, READERS)
    check_choice("others", others, (None, "paint", "keep"))
    read = READERS[format]
    if format == "openimages":  # the only reader that looks into images: its boxes are shares
        read = partial(read, on_bad_image=shared.on_bad_image)
    places = ((train_annotations, train_images), (test_annotations, test_images))
    found = [read(*place, on_bad_box=on_bad_box) for place in places]
    return annotated_splits(found, shared, size=size, keep_others=others == "keep")


def annotated_splits(
    found: Sequence[Annotations],
    shared: Shared,
    *,
    size: int,
    without: Sequence[str] = (),
    keep_others: bool = False,
) -> DataSplits:
    for name, part in zip(("training", "test"), found, strict=True):
        if part.skipped or part.clipped:
            warnings.warn(f"{name} annotations: {part.report}", UserWarning, stacklevel=3)
    labels = {label for image in found[0].images for label in image.labels}
    classes = sorted(labels - set(without))
    if shared.on_bad_image == "skip":
        found = [_decodable(part, size) for part in found]
    files = [_whole_images(part.images, classes, size) for part in found]
    if keeps_in_memory([each.images for each, _ in files], shared.in_memory):
        files = [(replace(each, images=each.images[:]), labels) for each, labels in files]
    parts = shared.with_test(
        *((_labelled if keep_others else _known_only)(*each) for each in files)
    )
    return replace(parts, skipped={**found[0].unreadable, **found[1].unreadable})


def _decodable(part: Annotations, size: int) -> Annotations:
    """The images that can be decoded, of those that have objects; `unreadable` lists the others."""
    chosen = [image for image in part.images if image.boxes]
    faults = bad_rows(image_files([image.path for image in chosen], size=size)) if chosen else {}
    bad = {str(chosen[row].path): reason for row, reason in faults.items()}
    kept = [image for row, image in enumerate(chosen) if row not in faults]
    return replace(part, images=kept, unreadable={**part.unreadable, **bad})


def _whole_images(
    images: Sequence[AnnotatedImage], classes: Sequence[str], size: int
) -> tuple[ArrayDataset, Tensor]:
    """The files of all images with objects, their boxes, and the class of each box or -1."""
    check_integer("size", size, low=1)
    chosen = [image for image in images if image.boxes]
    if not chosen:
        raise ContentError("none of the images has an object; read the annotations' report")
    for image in chosen:
        width, height = image_size(image.path)
        if (width, height) != (image.width, image.height):
            raise ContentError(
                f"{image.path}: annotated as {image.width}x{image.height} pixels, but has "
                f"{width}x{height}; its boxes can't be placed"
            )
    number = {name: label for label, name in enumerate(classes)}
    fitted = [[_fitted(box, image, size) for box in image.boxes] for image in chosen]
    paths = [image.path for image in chosen]
    boxes = padded_boxes(fitted, paths, most_padding=_MOST_PADDING)
    box_labels = torch.full(boxes.shape[:2], -1)
    for position, image in enumerate(chosen):
        codes = torch.tensor([number.get(label, -1) for label in image.labels])
        box_labels[position, : len(codes)] = codes
    files = image_files(paths, size=size)
    no_label = torch.zeros(len(chosen), dtype=torch.int64)
    return ArrayDataset(files, no_label, tuple(classes), boxes=boxes), box_labels


def _known_only(whole: ArrayDataset, box_labels: Tensor) -> ArrayDataset:
    samples = single_objects(whole, box_labels=box_labels)
    if not len(samples):
        raise ContentError(f"no object of the classes {list(whole.classes)} is in view")
    return samples


def _labelled(whole: ArrayDataset, box_labels: Tensor) -> ArrayDataset:
    """Whole images with the class of their objects; those with none in view are left out."""
    assert whole.boxes is not None  # of `_whole_images`
    known = real_boxes(whole.boxes) & (box_labels >= 0)
    highest = box_labels.where(known, -1).amax(1)
    lowest = box_labels.where(known, whole.num_classes).amin(1)
    mixed = ((highest >= 0) & (lowest != highest)).nonzero()[:, 0]
    if len(mixed):
        first = int(mixed[0])
        names = [whole.classes[int(each[first])] for each in (lowest, highest)]
        raise ContentError(
            f"image {first} has objects of several classes, such as {names}: others='keep' needs "
            "images of one class; leave it out for one sample an object"
        )
    kept = (highest >= 0).nonzero()[:, 0]
    samples = replace(whole, labels=highest.clamp(min=0)).subset(kept)
    return replace(samples, index=torch.arange(len(samples)))


def _fitted(box: Box, image: AnnotatedImage, size: int) -> Box:
    """A box in its image, scaled to cover a square and cut at the centre; zeros if cut off."""
    scale = size / min(image.width, image.height)
    left, top = (image.width * scale - size) / 2, (image.height * scale - size) / 2
    x1, x2 = (min(max(x * scale - left, 0.0), float(size)) for x in (box[0], box[2]))
    y1, y2 = (min(max(y * scale - top, 0.0), float(size)) for y in (box[1], box[3]))
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else (0.0, 0.0, 0.0, 0.0)
