"""Folders with one folder of files for each class, whatever the files hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
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
    """`train`, `test` and `val` as far as there are, or nothing where `root` holds the classes."""
    names = {folder.name for folder in folders_in(root)}
    return set() if "train" not in names or names - _PARTS else names


def class_names(root: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted."""
    return tuple(sorted(folder.name for folder in folders_in(root)))


def labelled_files(
    root: Path, classes: tuple[str, ...], kind: FileKind
) -> tuple[list[Path], list[int]]:
    """The files of all class folders, and the number of each one's class; as `labelled_names`."""
    names, labels = labelled_names(root, classes, kind)
    return [root / name for name in names], labels


def labelled_names(
    root: Path,
    classes: tuple[str, ...],
    kind: FileKind,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[str], list[int]]:
    """The files of all class folders, as names below `root`, and the number of each one's class.

    Args:
        root: the folder of class folders.
        classes: the names of those that may be there.
        kind: of the files.
        advance: is called after each class.

    Raises:
        ValueError: a class that is not among `classes`, or no files at all.
    """
    unknown = {folder.name for folder in folders_in(root)} - set(classes)
    if unknown:
        raise ValueError(f"{root}: classes {sorted(unknown)} are not in the training folder")
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _file_names(root / name, kind) if (root / name).is_dir() else []
        names += [f"{name}/{each}" for each in found]
        labels += [label] * len(found)
        advance()
    if not names:
        raise ValueError(f"{root}: holds no class folders with {kind.name}s")
    return names, labels


def class_files(folder: Path, kind: FileKind) -> list[Path]:
    """The files of one class, sorted by name; anything else in the folder is an error."""
    return [folder / name for name in _file_names(folder, kind)]


def _file_names(folder: Path, kind: FileKind) -> list[str]:
    """Without a look at each file by itself: there may be a million of them."""
    with os.scandir(folder) as entries:
        found = sorted((each.name, each.is_dir()) for each in entries if not _is_clutter(each))
    for name, is_folder in found:
        if is_folder:
            raise ValueError(
                f"{folder / name}: a folder inside the class folder {folder.name!r}. Expected "
                f"root/<class>/<{kind.name}>, or only train/, test/ and val/ in root with class "
                "folders"
            )
        if Path(name).suffix.lower() not in kind.extensions:
            expected = ", ".join(kind.extensions)
            raise ValueError(
                f"{folder / name}: is no {kind.name}; expected one of {expected}. Move it out of "
                "the class folder"
            )
    if not found:
        raise ValueError(f"{folder}: class folder without {kind.name}s; fill it or remove it")
    return [name for name, _ in found]


def folders_in(root: Path) -> list[Path]:
    """The folders in `root` that hold data.

    Raises:
        FileNotFoundError: no such folder.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()}: no such folder")
    return [path for path in root.iterdir() if path.is_dir() and not _is_clutter(path)]


def check_parts(
    root: Path, names: Set[str], kind: FileKind, *, validation: object, test: object
) -> None:
    """Raise unless a folder of `named_parts` has what it needs, and no option contradicts it."""
    if not names & {"test", "val"}:
        raise ValueError(
            f"{root}: has train/ but no test/ and no val/; put the test {kind.name}s there"
        )
    tested = "test" if "test" in names else "val"
    if test is not None:
        raise ValueError(f"{root}: has its own {tested}/; remove test={test} or the folder")
    if tested != "val" and "val" in names and validation is not None:
        raise ValueError(f"{root}: has its own val/; remove validation={validation} or the folder")


def part_names(names: Set[str]) -> dict[str, str]:
    """The folder of each part that there is: `val/` is the test set where there is no `test/`.

    Example:
        >>> part_names({"train", "val"})
        {'train': 'train', 'test': 'val'}
    """
    if "test" not in names:
        return {"train": "train", "test": "val"}
    found = {"train": "train", "test": "test"}
    return {**found, "validation": "val"} if "val" in names else found


def _is_clutter(path: Path | os.DirEntry[str]) -> bool:
    return path.name.startswith(".") or path.name.lower() in _CLUTTER
