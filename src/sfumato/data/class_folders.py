"""Folders with one folder of files for each class, whatever the files hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_CLUTTER = ("thumbs.db", "desktop.ini")
_PARTS = {"train", "test", "val"}


@dataclass(frozen=True)
class FileKind:
    """What class folders hold.

    Args:
        name: of one file, for messages ("image").
        extensions: in lower case, with the dot.
    """

    name: str
    extensions: Sequence[str]


def named_parts(root: Path) -> set[str]:
    """`train`, `test` and perhaps `val`, or nothing where `root` holds the classes themselves."""
    names = {folder.name for folder in folders_in(root)}
    return set() if "train" not in names or names - _PARTS else names


def class_names(root: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted."""
    return tuple(sorted(folder.name for folder in folders_in(root)))


def labelled_files(
    root: Path, classes: tuple[str, ...], kind: FileKind
) -> tuple[list[Path], list[int]]:
    """The files of all class folders, and the number of each one's class.

    Raises:
        ValueError: a class that is not among `classes`, or no files at all.
    """
    unknown = {folder.name for folder in folders_in(root)} - set(classes)
    if unknown:
        raise ValueError(f"{root}: classes {sorted(unknown)} are not in the training folder")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = class_files(root / name, kind) if (root / name).is_dir() else []
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(f"{root}: holds no class folders with {kind.name}s")
    return paths, labels


def class_files(folder: Path, kind: FileKind) -> list[Path]:
    """The files of one class, sorted by name; anything else in the folder is an error."""
    files = sorted(path for path in folder.iterdir() if not _is_clutter(path))
    for path in files:
        if path.is_dir():
            raise ValueError(
                f"{path}: a folder inside the class folder {folder.name!r}. Expected "
                f"root/<class>/<{kind.name}>, or only train/, test/ and val/ in root with class "
                "folders"
            )
        if path.suffix.lower() not in kind.extensions:
            expected = ", ".join(kind.extensions)
            raise ValueError(f"{path}: is no {kind.name}; expected one of {expected}")
    if not files:
        raise ValueError(f"{folder}: class folder without {kind.name}s; fill it or remove it")
    return files


def folders_in(root: Path) -> list[Path]:
    """The folders in `root` that hold data.

    Raises:
        FileNotFoundError: no such folder.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()}: no such folder")
    return [path for path in root.iterdir() if path.is_dir() and not _is_clutter(path)]


def check_parts(
    root: Path, names: Collection[str], kind: FileKind, *, validation: object, test: object
) -> None:
    """Raise unless a folder of `named_parts` has what it needs, and no option contradicts it."""
    if "test" not in names:
        raise ValueError(f"{root}: has train/ but no test/; put the test {kind.name}s there")
    if test is not None:
        raise ValueError(f"{root}: has its own test/; remove test={test} or the folder")
    if "val" in names and validation is not None:
        raise ValueError(f"{root}: has its own val/; remove validation={validation} or the folder")


def _is_clutter(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in _CLUTTER
