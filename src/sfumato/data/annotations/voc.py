"""PASCAL VOC and ImageNet XML: one file an image."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from sfumato._core.checks import check_choice
from sfumato.data.annotations.objects import AnnotatedImage, Annotations, BoxReader, OnBadBox
from sfumato.data.decode import EXTENSIONS


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

    Raises:
        FileNotFoundError: no folder, or no XML file in it.
        ValueError: what is wrong in which file.
    """
    folder, root = Path(annotations).expanduser(), Path(images).expanduser()
    check_choice("first_pixel", first_pixel, (0, 1))
    files = sorted(folder.rglob("*.xml"))
    if not files:
        raise FileNotFoundError(f"{folder}: no .xml files here")
    reader, found = BoxReader(on_bad_box), []
    for file in files:
        tree = parse_safely(file)
        path = _image_path(file, folder, root, tree.findtext("filename", ""))
        if path is None:
            reader.refuse("images missing", f"{file}: no image for it in {root}")
            continue
        width, height = (_number(tree, f"size/{side}", file) for side in ("width", "height"))
        image = AnnotatedImage(path, int(width), int(height))
        for thing in tree.iterfind("object"):
            x1, y1, x2, y2 = (
                _number(thing, f"bndbox/{side}", file) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            label = (thing.findtext("name") or "").strip()
            box = (x1 - first_pixel, y1 - first_pixel, x2 - first_pixel + 1, y2 - first_pixel + 1)
            # A box whose last pixel is just before its first is reversed, not empty.
            reader.add(image, (x1, y1, x2, y2) if x2 < x1 or y2 < y1 else box, label, str(file))
        found.append(image)
    return reader.finish(found)


def parse_safely(file: Path) -> ElementTree.Element:
    """An XML file's tree; document types, entities and broken files are refused."""
    parser = expat.ParserCreate()
    builder = ElementTree.TreeBuilder()

    def refuse(*_: object) -> None:
        raise ValueError(f"{file}: has a document type or entities, which annotations don't need")

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(file.read_bytes(), True)
    except expat.ExpatError as error:
        raise ValueError(f"{file}: not readable as XML: {error}") from error
    return builder.close()


def _image_path(file: Path, folder: Path, root: Path, name: str) -> Path | None:
    """The image beside the file's place; a name that leads out of `root` is not followed."""
    beside = root / file.parent.relative_to(folder)
    names = [f"{file.stem}{ending}" for ending in (*EXTENSIONS, ".JPEG", ".JPG", ".PNG")]
    if name.strip() and Path(name.strip()).name == name.strip():
        names.insert(0, name.strip())
    return next((beside / each for each in names if (beside / each).is_file()), None)


def _number(element: ElementTree.Element, where: str, file: Path) -> float:
    text = element.findtext(where)
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"{file}: {where} must be a number, got {text!r}") from None
