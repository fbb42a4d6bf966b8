"""Find files: folders of classes, lists of classes, and the index of a scan."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._core.files import UnreadableFileError, is_file, read_arrays, read_text, write_arrays
from sfumato._core.text import progress_bar


class FileList(Sequence[Path]):
    """The paths of files below one folder, made when they are asked for.

    A list of a million `Path` objects takes half a gigabyte, in each worker process anew, since
    counting references writes to them.

    Example:
        >>> files = FileList.of(Path("photos"), ["ant/1.jpg", "bee/2.jpg"])
        >>> len(files), files[1].as_posix()
        (2, 'photos/bee/2.jpg')
    """

    def __init__(self, root: Path, names: np.ndarray, ends: np.ndarray) -> None:
        self.root, self.names, self.ends = root, names, ends

    @classmethod
    def of(cls, root: Path, names: Sequence[str]) -> FileList:
        # Names of files need not be text.
        encoded = [os.fsencode(name) for name in names]
        joined = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        lengths = np.fromiter((len(each) for each in encoded), np.int64, len(encoded))
        return cls(root, joined, lengths.cumsum())

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        number = range(len(self))[position]
        start = int(self.ends[number - 1]) if number else 0
        return self.root / os.fsdecode(self.names[start : int(self.ends[number])].tobytes())


_CLUTTER = ("thumbs.db", "desktop.ini")
_PARTS = {"train", "test", "val"}


@dataclass(frozen=True)
class FileKind:
    """A kind of files that class folders hold."""

    name: str  # of one file, for messages ("image")
    extensions: Sequence[str]  # in lower case, with the dot


def split_folders(root: Path) -> set[str]:
    """`train`, `test` and `val` as far as there are, or nothing where `root` holds the classes."""
    names = {folder.name for folder in folders_in(root)}
    # Beside other folders, "test" and "val" are names of classes.
    return set() if "train" not in names or names - _PARTS else names


def class_names(root: Path) -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in folders_in(root)))


def labelled_names(
    root: Path,
    classes: tuple[str, ...],
    kind: FileKind,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[str], list[int]]:
    """The files of all class folders, as names below `root`, and the number of each one's class."""
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
    return [folder / name for name in _file_names(folder, kind)]


def _file_names(folder: Path, kind: FileKind) -> list[str]:
    # Without a look at each file by itself: there may be a million of them.
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
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()}: no such folder")
    return [path for path in root.iterdir() if path.is_dir() and not _is_clutter(path)]


def check_split_folders(
    root: Path, names: Set[str], kind: FileKind, *, validation: object, test: object
) -> None:
    """Raise unless a folder of `split_folders` has what it needs, and no option contradicts it."""
    if not names & {"test", "val"}:
        raise ValueError(
            f"{root}: has train/ but no test/ and no val/; put the test {kind.name}s there"
        )
    tested = "test" if "test" in names else "val"
    if test is not None:
        raise ValueError(f"{root}: has its own {tested}/; remove test={test} or the folder")
    if tested != "val" and "val" in names and validation is not None:
        raise ValueError(f"{root}: has its own val/; remove validation={validation} or the folder")


def folder_of_splits(names: Set[str]) -> dict[str, str]:
    """The folder of each part that there is: `val/` is the test set where there is no `test/`.

    Example:
        >>> folder_of_splits({"train", "val"})
        {'train': 'train', 'test': 'val'}
    """
    if "test" not in names:
        return {"train": "train", "test": "val"}
    found = {"train": "train", "test": "test"}
    return {**found, "validation": "val"} if "val" in names else found


def _is_clutter(path: Path | os.DirEntry[str]) -> bool:
    return path.name.startswith(".") or path.name.lower() in _CLUTTER


# Files from which on what is known of them is kept for the next start.
WORTH_KEEPING = 5000
_RECENT_SECONDS = 2.0


def cache_folder() -> Path:
    named = os.environ.get("SFUMATO_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sfumato"


def scan_folder(root: Path, classes: tuple[str, ...], kind: FileKind) -> tuple[FileList, Tensor]:
    """The files of all class folders and their labels, from the index where it is valid."""
    place = root.absolute()
    content = json.dumps([1, os.fspath(place), classes, list(kind.extensions)])
    index = cache_folder() / "folders" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.npz"
    changed = _last_changes(place, classes)
    kept = _read(index, changed)
    if kept is not None:
        return FileList(root, kept["names"], kept["ends"]), torch.from_numpy(kept["labels"])
    with progress_bar(f"scanning {root.name}", len(classes), show=shows_progress()) as bar:
        names, numbers = labelled_names(root, classes, kind, bar.advance)
    files, labels = FileList.of(root, names), np.array(numbers, dtype=np.int64)
    # A folder that changes as often as its clock ticks looks the same before and after.
    is_settled = changed.max(initial=0) < (time.time() - _RECENT_SECONDS) * 1e9
    if len(files) >= WORTH_KEEPING and is_settled:
        arrays = {"names": files.names, "ends": files.ends, "labels": labels, "changed": changed}
        with contextlib.suppress(OSError):  # an index saves time; without one nothing is lost
            write_arrays(index, arrays)
    return files, torch.from_numpy(labels)


def shows_progress() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


def _last_changes(root: Path, classes: tuple[str, ...]) -> np.ndarray:
    """Times at which each folder's files last came or went, in nanoseconds; 0 for no folder."""
    folders = [root / name for name in ("", *classes)]
    times = [each.stat().st_mtime_ns if each.is_dir() else 0 for each in folders]
    return np.array(times, dtype=np.int64)


def _read(index: Path, changed: np.ndarray) -> dict[str, np.ndarray] | None:
    with contextlib.suppress(OSError, UnreadableFileError, KeyError):
        kept = read_arrays(index)
        is_whole = len(kept["ends"]) == len(kept["labels"])
        return kept if is_whole and np.array_equal(kept["changed"], changed) else None
    return None


def read_class_list(path: Path) -> dict[str, str]:
    """Folder name to class name, in the order of the file, which is that of the labels.

    A line is the name of a folder (`n01440764`), and perhaps words for it, of which the first
    synonym is taken: `n01440764 tench, Tinca tinca`. Two classes with one word keep their
    folder's name in brackets.
    """
    found: dict[str, str] = {}
    for line in _lines(path):
        folder, *words = line.split(maxsplit=1)
        if folder in found:
            raise ValueError(f"{path}: lists {folder!r} twice")
        found[folder] = words[0].split(",")[0].strip() if words else folder
    if not found:
        raise ValueError(f"{path}: lists no classes")
    return told_apart(found)


def told_apart(names: Mapping[str, str]) -> dict[str, str]:
    """Class names by folder; where two classes share one, it has the folder in brackets."""
    uses = Counter(names.values())
    return {
        folder: name if uses[name] == 1 else f"{name} ({folder})" for folder, name in names.items()
    }


def read_labels(
    path: Path, folder: Path, classes: Sequence[str], extensions: Sequence[str]
) -> tuple[list[str], list[int]]:
    """The images of a folder without class folders, by name, and their labels from a list.

    A line is an image and its class, separated by a comma or blank, with anything behind them:
    `ILSVRC2012_val_00000001.JPEG n01751748`, or as `LOC_val_solution.csv` has it. The image may
    lack its ending.
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
    lines = listed_text(path, "", "").splitlines()
    return [line.strip() for line in lines if line.strip()]


def listed_text(path: Path, missing: str, remedy: str) -> str:
    """The text of a list; `missing` and `remedy` end the messages where there is none."""
    if not is_file(path):
        raise FileNotFoundError(f"{path}: no such file{missing}")
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error}){remedy}") from error


def present(paths: Sequence[Path], listed: Path) -> Sequence[Path]:
    """The paths, which a list names, as they are; raise where one is no file."""
    for path in paths:
        if not is_file(path):
            raise FileNotFoundError(f"{path}: no such image, though {listed} lists it")
    return paths
