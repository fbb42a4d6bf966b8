"""Sets in folders of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from sfumato._core.checks import check_integer
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import EXTENSIONS, read_images
from sfumato.data.split import check_same_shape, divide, with_test

_CLUTTER = ("thumbs.db", "desktop.ini")


def load_folder(
    *,
    root: str | Path,
    validation: float | int | None = None,
    test: float | int | None = None,
    size: int | None = None,
    limit_train: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """Splits from a folder of images.

    Either `root` holds `train/`, `test/` and perhaps `val/`, each with one folder for each class;
    or it holds the class folders themselves and is divided by `seed`. Classes are sorted by name.
    Every image becomes RGB, upright by its own EXIF mark.

    Args:
        root: the folder.
        validation: share or count of training samples, stratified; 0.1 unless there is a `val/`.
        test: share or count of all samples where `root` has no `test/`; 0.2 by default.
        size: scale and centre-crop every image to this square. Without it all images must have
            the same size.
        limit_train: size of the training set, stratified. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: what is wrong with which file or folder.
    """
    root = Path(root).expanduser()
    if size is not None:
        check_integer("size", size, low=1)
    names = {folder.name for folder in _folders(root)}
    if "train" not in names or names - {"train", "test", "val"}:
        return divide(
            _read_set(root, _class_names(root), size),
            test=0.2 if test is None else test,
            validation=0.1 if validation is None else validation,
            limit_train=limit_train,
            seed=seed,
        )
    _check_layout(root, names, validation, test)
    classes = _class_names(root / "train")
    sets = {name: _read_set(root / name, classes, size) for name in sorted(names)}
    check_same_shape({root / name: sets[name] for name in ("train", *sorted(names - {"train"}))})
    return with_test(
        sets["train"],
        sets["test"],
        validation=sets.get("val", 0.1) if validation is None else validation,
        limit_train=limit_train,
        seed=seed,
    )


def _read_set(root: Path, classes: tuple[str, ...], size: int | None) -> ArrayDataset:
    unknown = {folder.name for folder in _folders(root)} - set(classes)
    if unknown:
        raise ValueError(f"{root}: classes {sorted(unknown)} are not in the training folder")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = image_files(root / name) if (root / name).is_dir() else []
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(f"{root}: holds no class folders with images")
    return ArrayDataset(read_images(paths, size=size), torch.tensor(labels), classes)


def image_files(folder: Path) -> list[Path]:
    """The images of one class, sorted by name; anything else in the folder is an error."""
    files = sorted(path for path in folder.iterdir() if not _is_clutter(path))
    for path in files:
        if path.is_dir():
            raise ValueError(
                f"{path}: a folder inside the class folder {folder.name!r}. Expected "
                f"root/<class>/<image>, or only train/, test/ and val/ in root with class folders"
            )
        if path.suffix.lower() not in EXTENSIONS:
            raise ValueError(f"{path}: not an image; expected one of {', '.join(EXTENSIONS)}")
    if not files:
        raise ValueError(f"{folder}: class folder without images; fill it or remove it")
    return files


def _class_names(root: Path) -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in _folders(root)))


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()}: no such folder")
    return [path for path in root.iterdir() if path.is_dir() and not _is_clutter(path)]


def _is_clutter(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in _CLUTTER


def _check_layout(
    root: Path, names: set[str], validation: float | int | None, test: float | int | None
) -> None:
    if "test" not in names:
        raise ValueError(f"{root}: has train/ but no test/; put the test images there")
    if test is not None:
        raise ValueError(f"{root}: has its own test/; remove test={test} or the folder")
    if "val" in names and validation is not None:
        raise ValueError(f"{root}: has its own val/; remove validation={validation} or the folder")
