"""Lists beside folders of images: of classes (ImageNet's synsets), and of a folder's labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def read_class_list(path: Path) -> dict[str, str]:
    """Folder name to class name, in the order of the file, which is that of the labels.

    A line is the name of a folder (`n01440764`), and perhaps words for it, of which the first
    synonym is taken: `n01440764 tench, Tinca tinca`. Two classes with one word keep their
    folder's name in brackets.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an empty list, or a folder that is there twice.
    """
    rows = [line.split(maxsplit=1) for line in _lines(path)]
    folders = [row[0] for row in rows]
    twice = [name for name, count in Counter(folders).items() if count > 1]
    if twice or not rows:
        what = f"lists {twice[0]!r} twice" if twice else "lists no classes"
        raise ValueError(f"{path}: {what}")
    words = [row[1].split(",")[0].strip() if len(row) > 1 else row[0] for row in rows]
    uses = Counter(words)
    named = (
        word if uses[word] == 1 else f"{word} ({folder})"
        for folder, word in zip(folders, words, strict=True)
    )
    return dict(zip(folders, named, strict=True))


def read_labels(
    path: Path, folder: Path, classes: Sequence[str], extensions: Sequence[str]
) -> tuple[list[str], list[int]]:
    """The images of a folder without class folders, by name, and their labels from a list.

    A line is an image and its class, separated by a comma or blank, with anything behind them:
    `ILSVRC2012_val_00000001.JPEG n01751748`, or as `LOC_val_solution.csv` has it. The image may
    lack its ending.

    Args:
        path: the list.
        folder: where the images are.
        classes: folder names of the classes.
        extensions: endings of images.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line without class, of an unknown class, or of an image that is not there; an
            image without a line.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    files = {each.name for each in folder.iterdir() if each.suffix.lower() in extensions}
    by_stem = {Path(name).stem: name for name in files}
    found: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        image, *rest = line.replace(",", " ").split()
        if number == 1 and image.lower() in ("imageid", "image", "file", "filename"):
            continue  # a heading
        if not rest:
            raise ValueError(
                f"{path}, line {number}: {line!r} has no class; expected an image and its class, "
                "as 'ILSVRC2012_val_00000001.JPEG n01751748'"
            )
        if rest[0] not in numbers:
            raise ValueError(f"{path}, line {number}: {rest[0]!r} is none of the classes")
        name = image if image in files else by_stem.get(image)
        if name is None:
            raise ValueError(f"{path}, line {number}: no image {image} in {folder}")
        found[name] = numbers[rest[0]]
    missing = sorted(files - found.keys())
    if missing:
        raise ValueError(f"{path}: has no line for {missing[0]} (and {len(missing) - 1} more)")
    names = sorted(found)
    return names, [found[name] for name in names]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
