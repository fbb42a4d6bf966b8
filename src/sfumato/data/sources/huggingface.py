"""Sets of Hugging Face's `datasets`: folders, Parquet, Arrow; names on the hub where told to."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.exports import optional
from sfumato._core.files import (
    UnreadableFileError,
    checked_file,
    plain_name,
    read_json,
    unreadable_file,
)
from sfumato._core.spec import in_data_root, nearest
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import File, Picture
from sfumato.data.splits import Shared, check_same_shape, image_files, source

_FILES = {".parquet": "parquet", ".arrow": "arrow"}
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".lz4")
_FREE_CLASSES = 10_000  # numbered ones, however few rows there are
_SAVED = ("state.json", "dataset_dict.json")  # what `save_to_disk` writes


@source("limit_train", "limit_test", "seed", "in_memory", "on_bad_image")
def load_huggingface(
    shared: Shared,
    *,
    path: str,
    image: str = "image",
    label: str = "label",
    subset: str | None = None,
    train_split: str = "train",
    validation_split: str = "validation",
    test_split: str = "test",
    download: bool = False,
    validation: float | int | None = None,
    test: float | int | None = None,
    size: int | None = None,
) -> DataSplits:
    """Splits from a data set of Hugging Face's `datasets`.

    `path` is a folder of images, of Parquet or of Arrow files, a folder of `save_to_disk`, one
    such file, or a name on the hub. Where it has no test split, all its samples are divided.

    Args:
        path: the folder or file, or the name on the hub.
        image: the column of images.
        label: the column of labels: classes, whole numbers, or strings, which are sorted.
        subset: of a set on the hub that has several, also called its configuration.
        train_split: the split to train on.
        validation_split: the validation split, used where it exists.
        test_split: the test split.
        download: fetch the set from the hub. Nothing is fetched without it.
        validation: share or count of training samples; 0.1 unless there is a validation split.
        test: share or count of all samples where there is no test split; 0.2 by default.
        size: scale and centre-crop every image to this square. Without it all images must have
            the same size.
    """
    if size is not None:
        check_integer("size", size, low=1)
    cache = _Cache()
    found = _open(path, subset, download, cache.folder)
    names = _split_names(path, list(found), train_split, validation_split, test_split)
    chosen = {role: found[name] for role, name in names.items()}
    sets = _read(path, chosen, image, label, size, cache)
    if "test" not in sets:
        if shared.limit_test is not None:
            raise ValueError(
                f"{path}: has no test split to limit; say test: {shared.limit_test} instead"
            )
        return shared.held(shared.divide(sets["train"], test=test, validation=validation))
    for name, value in (("validation", validation), ("test", test)):
        if value is not None and name in sets:
            raise ValueError(f"{path}: has its own {name} split; remove {name}={value}")
    check_same_shape({Path(path) / role: each for role, each in sets.items()})
    own = sets.get("validation") if validation is None else validation
    return shared.held(shared.with_test(sets["train"], sets["test"], validation=own))


def _open(path: str, subset: str | None, download: bool, cache: str) -> Mapping[str, Any]:
    """The splits of a set by name; only a name on the hub is ever fetched."""
    place = in_data_root(path)
    if not place.exists() and not download:
        raise FileNotFoundError(
            f"{path}: no such folder or file. A name on the hub is fetched with download: true only"
        )
    datasets = optional("datasets", "data huggingface needs", "huggingface")
    optional("pyarrow", "data huggingface needs", "huggingface")
    if not place.exists():
        return _as_splits(datasets.load_dataset(path, subset))
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # which asks a host, also for local files
    if subset is not None:
        raise ValueError(f"{path}: subset is for sets on the hub; remove subset={subset!r}")
    if not place.is_dir() and place.suffix not in _FILES:
        raise ValueError(f"{path}: expected a folder, or a file of {', '.join(_FILES)}")
    if place.is_dir():
        read = _of_folder(place, cache)
    else:
        files, kind = {"train": str(checked_file(place))}, _FILES[place.suffix]
        read = partial(datasets.load_dataset, kind, data_files=files, cache_dir=cache)
    with _one_line(f"{path}: can't be read"):
        return _as_splits(read())


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Say in a line what can't be read: the library lets errors of any kind pass."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error or type(error).__name__).split())[:200]
        raise ValueError(f"{what} ({reason})") from error


def _of_folder(place: Path, cache: str) -> Callable[[], Any]:
    """Reads the files of a folder by their kind; addresses that a README.md gives are not read."""
    import datasets

    if any((place / name).exists() for name in _SAVED):
        _check_saved(place)
        return partial(datasets.load_from_disk, str(place))
    files = [each for each in place.rglob("*") if each.is_file()]
    odd = [each for each in files if each.suffix in _ARCHIVES or "::" in str(each)]
    if odd:
        raise ValueError(f"{odd[0]}: archives are not unpacked; unpack it, or move it elsewhere")
    for suffix, kind in _FILES.items():
        if any(each.suffix == suffix and each.stem != "metadata" for each in files):
            return lambda: datasets.load_dataset(
                kind, data_files=_files_by_split(place, suffix), cache_dir=cache
            )
    return partial(datasets.load_dataset, "imagefolder", data_dir=str(place), cache_dir=cache)


def _files_by_split(place: Path, suffix: str) -> dict[str, list[str]]:
    """The files of one kind by split, as the library tells splits by the names of files."""
    from datasets.data_files import DataFilesDict, get_data_patterns

    base = place.resolve().as_posix()
    found = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    chosen = {
        split: [glob.escape(str(each)) for each in files if str(each).endswith(suffix)]
        for split, files in found.items()
    }
    return {str(split): files for split, files in chosen.items() if files}


def _check_saved(place: Path) -> None:
    """Raise where a folder of `save_to_disk` names files outside of it."""
    splits = place / "dataset_dict.json"
    names = _listed(splits, "splits", place) if splits.exists() else []
    for folder in [place, *(place / plain_name(name, splits) for name in names)]:
        state = folder / "state.json"
        for each in _listed(state, "_data_files", place) if state.exists() else []:
            name = each.get("filename") if isinstance(each, dict) else None
            checked_file(folder / plain_name(name, state), within=place)


def _listed(file: Path, key: str, place: Path) -> list[Any]:
    content = read_json(file, within=place)
    found = content.get(key, []) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise unreadable_file(file, f"it lists no {key}", "Save the set anew.")
    return found


def _as_splits(found: Any) -> Mapping[str, Any]:
    """Splits by name, their rows as plain Python: a saved set may ask for another library's."""
    splits = found if isinstance(found, Mapping) else {"train": found}
    return {str(name): each.with_format(None) for name, each in splits.items()}


def _split_names(
    path: str, there: Sequence[str], train: str, validation: str, test: str
) -> dict[str, str]:
    if train not in there:
        raise ValueError(f"{path}: has no split {train!r}, it has {list(there)}: say train_split")
    names = {"train": train}
    if test in there:
        names["test"] = test
    elif validation in there or test != "test":
        raise ValueError(
            f"{path}: has no split {test!r}, it has {list(there)}: say which one is the test set, "
            f"as test_split: {validation}"
        )
    if validation in there and validation != test:
        names["validation"] = validation
    return names


def _read(
    path: str, splits: Mapping[str, Any], image: str, label: str, size: int | None, cache: _Cache
) -> dict[str, ArrayDataset]:
    for each in splits.values():
        for what, column in (("image", image), ("label", label)):
            if column not in each.column_names:
                hint, columns = nearest(column, each.column_names), list(each.column_names)
                raise ValueError(
                    f"{path}: has no column {column!r}{hint}, it has {columns}: say {what}: COLUMN"
                )
    values = {role: _values(f"{path}, {role}", each, label) for role, each in splits.items()}
    names = getattr(splits["train"].features[label], "names", None)
    classes = _class_names(path, values["train"]) if names is None else tuple(names)
    sets = {}
    for role, each in splits.items():
        where = f"{path}, {role}"
        labels = _labels(where, values[role], classes)
        if not len(labels):
            raise ValueError(f"{path}: the {role} split is empty")
        pictures = _Pictures(where, _encoded(where, each, image), cache, _root(path))
        sets[role] = ArrayDataset(image_files(pictures, size=size), labels, classes)
    return sets


def _values(where: str, split: Any, column: str) -> list[Any]:
    """A column as Arrow stores it: nothing is decoded, which would open and fetch what it names."""
    with _one_line(f"{where}: column {column!r} can't be read"):
        values = split.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    return list(values)


def _class_names(path: str, labels: Sequence[Any]) -> tuple[str, ...]:
    """Of numbers their digits; of strings the sorted ones."""
    if all(isinstance(each, str) for each in labels):
        return tuple(sorted(set(labels)))
    if not all(isinstance(each, int) for each in labels):
        kinds = sorted({type(each).__name__ for each in labels})
        raise ValueError(f"{path}: labels must be classes, whole numbers or strings, got {kinds}")
    if max(labels) >= max(len(labels), _FREE_CLASSES):
        raise ValueError(f"{path}: label {max(labels)} is refused: it has {len(labels):,} rows")
    return tuple(map(str, range(max(labels) + 1)))


def _labels(where: str, values: Sequence[Any], classes: tuple[str, ...]) -> Tensor:
    places: dict[Any, int] = {name: place for place, name in enumerate(classes)}
    places |= {place: place for place in range(len(classes))}
    for row, value in enumerate(values):
        if isinstance(value, dict | list) or value not in places:
            raise ValueError(
                f"{where}, row {row}: label {repr(value)[:80]} is none of the classes "
                f"{list(classes)[:10]}; test sets of the hub are often without labels"
            )
    return torch.tensor([places[value] for value in values], dtype=torch.int64)


def _encoded(where: str, split: Any, image: str) -> Any:
    import datasets

    with _one_line(f"{where}: column {image!r} holds no images"):
        return split.select_columns([image]).cast_column(image, datasets.Image(decode=False))


class _Cache:
    """A folder to which local sets are converted; it goes when no image needs it any more."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="sfumato-")
        weakref.finalize(self, _remove, self.folder, os.getpid())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # worker processes have copies of the object, not of the folder
        shutil.rmtree(folder, ignore_errors=True)


class _Pictures(Sequence[File]):
    """Encoded images, from the table or from the files that it names, read when asked for."""

    def __init__(self, where: str, rows: Any, cache: _Cache, root: Path) -> None:
        self._where, self._rows, self._cache, self._root = where, rows, cache, root

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        ((column, found),) = self._rows[position].items()
        content = found or {}
        if content.get("bytes"):
            return Picture(f"{self._where}, row {position}", content["bytes"])
        if content.get("path"):
            return self._file(position, content["path"])
        raise ValueError(f"{self._where}, row {position}: no image in column {column!r}")

    def _file(self, position: int, path: str) -> Path:
        try:
            return checked_file(self._root / path, within=self._root)
        except (OSError, UnreadableFileError) as error:
            raise ValueError(
                f"{self._where}, row {position}: {path} is no image in {self._root} ({error}). "
                "Keep the images themselves in the table, or beside it"
            ) from error


def _root(path: str) -> Path:
    """The folder whose files the rows of a set may name: its own, or what was fetched."""
    import datasets

    place = in_data_root(path)
    if not place.exists():
        return Path(datasets.config.HF_CACHE_HOME)
    return place if place.is_dir() else place.parent
