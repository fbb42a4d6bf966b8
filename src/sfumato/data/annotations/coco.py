"""COCO JSON: one file for the whole set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sfumato.data.annotations.objects import AnnotatedImage, Annotations, BoxReader, OnBadBox


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

    Raises:
        FileNotFoundError: no such file.
        ValueError: what is wrong in it.
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
            reader.skipped["crowds"] += 1
        elif each["image_id"] in missing:
            reader.skipped["boxes of missing images"] += 1
        elif each["image_id"] not in found:
            reader.refuse("boxes of unlisted images", f"{where}: unlisted image {each['image_id']}")
        elif each["category_id"] not in names:
            reader.refuse("boxes of unknown class", f"{where}: no category {each['category_id']}")
        else:
            x, y, width, height = _four_numbers(each["bbox"], where)
            image = found[each["image_id"]]
            reader.add(image, (x, y, x + width, y + height), names[each["category_id"]], where)
    return reader.finish(list(found.values()))


def coco_image(root: Path, entry: dict[str, Any]) -> Path | None:
    """The file of an image; None where it is not there, or is named outside of the folder."""
    path = root / entry["file_name"]
    is_inside = ".." not in path.parts and path.is_relative_to(root)
    return path if is_inside and path.is_file() else None


_NUMBER, _KEY = (int, float), (int, str)
_NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "images": {"id": _KEY, "file_name": (str,), "width": _NUMBER, "height": _NUMBER},
    "annotations": {"image_id": _KEY, "category_id": _KEY, "bbox": (list,)},
    "categories": {"id": _KEY, "name": _KEY},
}


def coco_content(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The JSON of a COCO file, all entries of which have the keys that readers need."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected COCO's instances JSON")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: not readable as JSON: {error}") from error
    for section, keys in _NEEDED.items():
        entries = content.get(section) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError(f"{file}: needs a list {section!r}")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or set(keys) - set(entry):
                raise ValueError(f"{file}: {section}[{number}] needs the keys {sorted(keys)}")
            for key, kinds in keys.items():
                if not isinstance(entry[key], kinds):
                    raise ValueError(
                        f"{file}: {section}[{number}] has {entry[key]!r} for {key}, which must be "
                        f"{' or '.join(kind.__name__ for kind in kinds)}"
                    )
    return content


def _four_numbers(box: Any, where: str) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = (float(value) for value in box)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: bbox must be x, y, width, height, got {box!r}") from None
    return x, y, width, height
