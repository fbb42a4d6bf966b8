"""OpenImages CSV: one line a box, in shares of the image."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TextIO

from sfumato._core.checks import check_choice
from sfumato.data.annotations.objects import AnnotatedImage, Annotations, BoxReader, OnBadBox
from sfumato.data.decode import image_size
from sfumato.data.holding import OnBadImage

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
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
        on_bad_image: "error", or "skip" to leave out images whose header can't be read, which
            `unreadable` then lists.

    Raises:
        FileNotFoundError: no such file.
        ValueError: what is wrong on which line.
    """
    file, root = Path(annotations).expanduser(), Path(images).expanduser()
    names = {} if class_names is None else class_descriptions(Path(class_names).expanduser())
    check_choice("on_bad_image", on_bad_image, (None, "error", "skip"))
    reader = BoxReader(on_bad_box)
    found: dict[str, AnnotatedImage | None] = {}
    with _opened(file) as lines:
        rows = csv.DictReader(lines)
        lacking = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if lacking:
            raise ValueError(f"{file}: has no column {lacking[0]!r}, has {rows.fieldnames}")
        for row in rows:
            where = f"{file}, line {rows.line_num}"
            if row.get("IsGroupOf") == "1":
                reader.skipped["groups"] += 1
                continue
            if row["ImageID"] not in found:
                skips = on_bad_image == "skip"
                found[row["ImageID"]] = _image(root, row["ImageID"], where, reader, skips=skips)
            image = found[row["ImageID"]]
            if image is None:
                reader.skipped["boxes of images left out"] += 1
                continue
            x1, x2, y1, y2 = _shares(row, where)
            box = (x1 * image.width, y1 * image.height, x2 * image.width, y2 * image.height)
            reader.add(image, box, names.get(row["LabelName"], row["LabelName"]), where)
    return reader.finish([image for image in found.values() if image is not None])


def _opened(file: Path) -> TextIO:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected an OpenImages CSV")
    return file.open(encoding="utf-8", newline="")


def class_descriptions(file: Path) -> dict[str, str]:
    """The name of each code (`/m/011k07`); a heading, which newer files have, is left out."""
    with _opened(file) as lines:
        rows = {row[0]: row[1] for row in csv.reader(lines) if len(row) >= 2}
    rows.pop("LabelName", None)
    return rows


def _image(
    root: Path, name: str, where: str, reader: BoxReader, *, skips: bool
) -> AnnotatedImage | None:
    path = root / f"{name}.jpg"
    if Path(name).name != name or not path.is_file():
        reader.refuse("images missing", f"{where}: no image {path}")
        return None
    try:
        return AnnotatedImage(path, *image_size(path))
    except ValueError as error:
        if not skips:
            raise
        reader.unreadable[str(path)] = str(error)
        return None


def _shares(row: dict[str, str], where: str) -> tuple[float, float, float, float]:
    try:
        x1, x2, y1, y2 = (float(row[name]) for name in ("XMin", "XMax", "YMin", "YMax"))
    except (TypeError, ValueError):
        raise ValueError(f"{where}: XMin, XMax, YMin and YMax must be numbers") from None
    return x1, x2, y1, y2
