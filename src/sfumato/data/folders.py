"""Sets in folders of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from sfumato._core.checks import check_integer
from sfumato.data.class_folders import (
    FileKind,
    check_parts,
    class_files,
    class_names,
    labelled_files,
    named_parts,
)
from sfumato.data.dataset import UNLABELLED, ArrayDataset, DataSplits
from sfumato.data.decode import EXTENSIONS
from sfumato.data.holding import InMemory, held, image_files
from sfumato.data.split import as_test_set, check_same_shape, check_test_only, divide, with_test

IMAGES = FileKind("image", EXTENSIONS)


def load_folder(
    *,
    root: str | Path,
    validation: float | int | None = None,
    test: float | int | Literal["all"] | None = None,
    size: int | None = None,
    limit_train: int | None = None,
    seed: int = 0,
    in_memory: InMemory = None,
) -> DataSplits:
    """Splits from a folder of images.

    Either `root` holds `train/`, `test/` and perhaps `val/`, each with one folder for each class;
    or it holds the class folders themselves and is divided by `seed`. Classes are sorted by name.
    Every image becomes RGB, upright by its own EXIF mark.

    Args:
        root: the folder.
        validation: share or count of training samples, stratified; 0.1 unless there is a `val/`.
        test: share or count of all samples where `root` has no `test/`; 0.2 by default. `all` is
            for `evaluate.also`: nothing is trained on, and images in `root` itself, without class
            folders, have no labels.
        size: scale and centre-crop every image to this square. Without it all images must have
            the same size.
        limit_train: size of the training set, stratified. None keeps all.
        seed: of the split.
        in_memory: keep decoded pixels in memory; without it files are decoded when needed, and
            random resized crops are cut from them. "auto" where they fit into 2 GB.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: what is wrong with which file or folder.
    """
    root = Path(root).expanduser()
    if size is not None:
        check_integer("size", size, low=1)
    names = named_parts(root)
    if not names and test == "all":
        check_test_only(root, validation=validation, limit_train=limit_train)
        return held(as_test_set(_read_test(root, size)), in_memory)
    if not names:
        divided = divide(
            _read_set(root, class_names(root), size),
            test=0.2 if test is None or isinstance(test, str) else test,
            validation=0.1 if validation is None else validation,
            limit_train=limit_train,
            seed=seed,
        )
        return held(divided, in_memory)
    check_parts(root, names, IMAGES, validation=validation, test=test)
    classes = class_names(root / "train")
    sets = {name: _read_set(root / name, classes, size) for name in sorted(names)}
    check_same_shape({root / name: sets[name] for name in ("train", *sorted(names - {"train"}))})
    parts = with_test(
        sets["train"],
        sets["test"],
        validation=sets.get("val", 0.1) if validation is None else validation,
        limit_train=limit_train,
        seed=seed,
    )
    return held(parts, in_memory)


def _read_set(root: Path, classes: tuple[str, ...], size: int | None) -> ArrayDataset:
    paths, labels = labelled_files(root, classes, IMAGES)
    return ArrayDataset(image_files(paths, size=size), torch.tensor(labels), classes)


def _read_test(root: Path, size: int | None) -> ArrayDataset:
    classes = class_names(root)
    if classes:
        return _read_set(root, classes, size)
    images = image_files(class_images(root), size=size)
    labels = torch.full((len(images),), UNLABELLED)
    return ArrayDataset(images, labels, (), void=UNLABELLED)


def class_images(folder: Path) -> list[Path]:
    """The images of one class, sorted by name; anything else in the folder is an error."""
    return class_files(folder, IMAGES)
