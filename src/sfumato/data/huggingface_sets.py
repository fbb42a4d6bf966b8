"""Sets of Hugging Face's `datasets`: folders, Parquet, Arrow; names on the hub where told to."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.data_root import in_data_root
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import File, Picture
from sfumato.data.holding import InMemory, OnBadImage, held, image_files
from sfumato.data.split import check_same_shape, divide, with_test

_FILES = {".parquet": "parquet", ".arrow": "arrow"}
_SAVED = ("state.json", "dataset_dict.json")  # what `save_to_disk` writes


def load_huggingface(
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
    limit_train: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
    in_memory: InMemory = None,
    on_bad_image: OnBadImage = None,
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
        limit_train: size of the training set, stratified. None keeps all.
        limit_test: size of the test set, stratified. None keeps all.
        seed: of the split.
        in_memory: keep decoded pixels in memory; without it images are decoded when needed, from
            the files or the table. "auto" where they fit into 2 GB.
        on_bad_image: "error", or "skip" to leave out files that can't be decoded, as `folder`.

    Raises:
        FileNotFoundError: no such folder or file, and `download` is off.
        ImportError: `datasets` is not installed.
        ValueError: a column or split that is not there, or samples without label or image.
    """
    if size is not None:
        check_integer("size", size, low=1)
    cache = _Cache()
    found = _open(path, subset, download, cache.folder)
    names = _split_names(path, list(found), train_split, validation_split, test_split)
    chosen = {role: found[name] for role, name in names.items()}
    sets = _read(path, chosen, image, label, size, cache)
    if "test" not in sets:
        if limit_test is not None:
            raise ValueError(f"{path}: has no test split to limit; say test: {limit_test} instead")
        divided = divide(
            sets["train"],
            test=0.2 if test is None else test,
            validation=0.1 if validation is None else validation,
            limit_train=limit_train,
            seed=seed,
        )
        return held(divided, in_memory, on_bad_image)
    _check_unused(path, sets, validation, test)
    check_same_shape({Path(path) / role: each for role, each in sets.items()})
    parts = with_test(
        sets["train"],
        sets["test"],
        validation=sets.get("validation", 0.1) if validation is None else validation,
        limit_train=limit_train,
        limit_test=limit_test,
        seed=seed,
    )
    return held(parts, in_memory, on_bad_image)


def _open(path: str, subset: str | None, download: bool, cache: str) -> Mapping[str, Any]:
    """The splits of a set by name; only a name on the hub is ever fetched."""
    place = in_data_root(path)
    if not place.exists() and not download:
        raise FileNotFoundError(
            f"{path}: no such folder or file. A name on the hub is fetched with download: true only"
        )
    try:
        import datasets
    except ImportError:
        raise ImportError(
            "data huggingface needs datasets: python3 -m pip install 'sfumato[huggingface]'"
        ) from None
    if not place.exists():
        return _as_splits(datasets.load_dataset(path, subset))
    if subset is not None:
        raise ValueError(f"{path}: subset is for sets on the hub; remove subset={subset!r}")
    if place.is_dir() and any((place / name).exists() for name in _SAVED):
        return _as_splits(datasets.load_from_disk(str(place)))
    if place.is_dir():
        return _as_splits(datasets.load_dataset(str(place), cache_dir=cache))
    if place.suffix not in _FILES:
        raise ValueError(f"{path}: expected a folder, or a file of {', '.join(_FILES)}")
    files = {"train": str(place)}
    kind = _FILES[place.suffix]
    return _as_splits(datasets.load_dataset(kind, data_files=files, cache_dir=cache))


def _as_splits(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {"train": found}


def _split_names(
    path: str, there: Sequence[str], train: str, validation: str, test: str
) -> dict[str, str]:
    """Role to the name of its split, for the splits that the set has."""
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


def _check_unused(
    path: str, sets: Mapping[str, object], validation: float | int | None, test: float | int | None
) -> None:
    for name, value in (("validation", validation), ("test", test)):
        if value is not None and name in sets:
            raise ValueError(f"{path}: has its own {name} split; remove {name}={value}")


def _read(
    path: str, splits: Mapping[str, Any], image: str, label: str, size: int | None, cache: _Cache
) -> dict[str, ArrayDataset]:
    for each in splits.values():
        for what, column in (("image", image), ("label", label)):
            _check_column(path, each.column_names, what, column)
    classes = _class_names(path, splits["train"], label)
    sets = {}
    for role, each in splits.items():
        labels = _labels(f"{path}, {role}", each[label], classes)
        if not len(labels):
            raise ValueError(f"{path}: the {role} split is empty")
        pictures = _Pictures(f"{path}, {role}", _encoded(f"{path}, {role}", each, image), cache)
        sets[role] = ArrayDataset(image_files(pictures, size=size), labels, classes)
    return sets


def _check_column(path: str, columns: Sequence[str], what: str, column: str) -> None:
    if column not in columns:
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"{path}: has no column {column!r}{hint}, it has {list(columns)}: say {what}: COLUMN"
        )


def _class_names(path: str, train: Any, label: str) -> tuple[str, ...]:
    """Those of the set's own classes; of numbers their digits; of strings the sorted ones."""
    names = getattr(train.features[label], "names", None)
    if names is not None:
        return tuple(names)
    values = set(train[label])
    if all(isinstance(each, str) for each in values):
        return tuple(sorted(values))
    if not all(isinstance(each, int) for each in values):
        kinds = sorted({type(each).__name__ for each in values})
        raise ValueError(f"{path}: labels must be classes, whole numbers or strings, got {kinds}")
    return tuple(str(number) for number in range(max(values) + 1))


def _labels(where: str, values: Sequence[Any], classes: tuple[str, ...]) -> Tensor:
    places: dict[Any, int] = {name: place for place, name in enumerate(classes)}
    places |= {place: place for place in range(len(classes))}
    for row, value in enumerate(values):
        if value not in places:
            raise ValueError(
                f"{where}, row {row}: label {value!r} is none of the classes {list(classes)[:10]}; "
                "test sets of the hub are often without labels"
            )
    return torch.tensor([places[value] for value in values], dtype=torch.int64)


def _encoded(where: str, split: Any, image: str) -> Any:
    """The column of images, not decoded."""
    import datasets

    try:
        return split.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{where}: column {image!r} holds no images ({reason})") from None


class _Cache:
    """A folder to which local sets are converted; it goes when no image needs it any more."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="sfumato-")
        weakref.finalize(self, _remove, self.folder, os.getpid())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # worker processes have copies of the object, not of the folder
        shutil.rmtree(folder, ignore_errors=True)


class _Pictures(Sequence[File]):
    """Encoded images, from the table or from the files that it names, read when asked for.

    Args:
        where: what messages call the set.
        rows: a data set with one column.
        cache: what holds the table on disk; it is kept as long as this is.
    """

    def __init__(self, where: str, rows: Any, cache: _Cache) -> None:
        self._where = where
        self._rows = rows
        self._cache = cache

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> File: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[File]: ...
    def __getitem__(self, position: int | slice) -> File | Sequence[File]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        ((column, found),) = self._rows[position].items()
        content = found or {}
        if content.get("bytes"):
            return Picture(f"{self._where}, row {position}", content["bytes"])
        if content.get("path"):
            return Path(content["path"])
        raise ValueError(f"{self._where}, row {position}: no image in column {column!r}")
