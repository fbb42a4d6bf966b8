"""Sets in folders of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from sfumato._core.checks import check_integer
from sfumato.data.dataset import UNLABELLED, ArrayDataset, DataSplits
from sfumato.data.files import EXTENSIONS
from sfumato.data.index import (
    FileKind,
    FileList,
    check_split_folders,
    class_files,
    class_names,
    folder_of_splits,
    folders_in,
    read_class_list,
    read_labels,
    scan_folder,
    split_folders,
)
from sfumato.data.splits import (
    Shared,
    as_test_set,
    check_same_shape,
    check_test_only,
    image_files,
    source,
)

IMAGES = FileKind("image", EXTENSIONS)


@source("limit_train", "seed", "in_memory", "on_bad_image")
def load_folder(
    shared: Shared,
    *,
    root: str | Path,
    validation: float | int | None = None,
    test: float | int | Literal["all"] | None = None,
    size: int | None = None,
    class_list: str | Path | None = None,
    val_labels: str | Path | None = None,
) -> DataSplits:
    """Splits from a folder of images.

    Either `root` holds `train/`, `test/` and perhaps `val/`, each with one folder for each class;
    or it holds the class folders themselves and is divided by `seed`. Where there is no `test/`,
    `val/` is the test set. Classes are sorted by name, or in the order of `class_list`. Every image
    becomes RGB, upright by its own EXIF mark.

    Args:
        root: the folder.
        validation: share or count of training samples, stratified; 0.1 unless there is a `val/`.
        test: share or count of all samples where `root` has no `test/`; 0.2 by default. `all` is
            for `evaluate.also`: nothing is trained on, and images in `root` itself, without class
            folders, have no labels.
        size: scale and centre-crop every image to this square. Without it all images must have
            the same size.
        class_list: a file with a line for each class: the name of its folder and perhaps words for
            it, as ImageNet's `LOC_synset_mapping.txt`. Its order is that of the labels, and other
            folders are an error.
        val_labels: a file with a line for each image of a `val/` without class folders: the image
            and the folder name of its class, as ImageNet's `LOC_val_solution.csv`. A `test/`
            without class folders, as ImageNet has, is then left alone.
    """
    root = Path(root).expanduser()
    if size is not None:
        check_integer("size", size, low=1)
    names = split_folders(root)
    listed = None if class_list is None else read_class_list(Path(class_list).expanduser())
    if val_labels is not None:
        names = _with_listed_val(root, names, listed)
    if not names and test == "all":
        check_test_only(root, validation=validation, limit_train=shared.limit_train)
        return shared.held(as_test_set(_read_test(root, size)))
    if not names:
        every = _read_set(root, listed or _named_by_folders(root), size)
        share = None if isinstance(test, str) else test
        return shared.held(shared.divide(every, test=share, validation=validation))
    check_split_folders(root, names, IMAGES, validation=validation, test=test)
    classes = listed or _named_by_folders(root / "train")
    sets, folders = {}, folder_of_splits(names)
    for role, name in folders.items():
        labels = val_labels if name == "val" else None
        sets[role] = _read_part(root / name, classes, size, labels)
    check_same_shape({root / name: sets[role] for role, name in folders.items()})
    own = sets.get("validation") if validation is None else validation
    return shared.held(shared.with_test(sets["train"], sets["test"], validation=own))


def _named_by_folders(root: Path) -> dict[str, str]:
    return {name: name for name in class_names(root)}


def _with_listed_val(root: Path, names: set[str], listed: dict[str, str] | None) -> set[str]:
    """The parts of a set whose `val/` has a list of labels, less an unlabelled `test/`."""
    if listed is None:
        raise ValueError("val_labels needs class_list: the order of the classes would be a guess")
    if "val" not in names:
        raise ValueError(
            f"{root}: val_labels is for train/ with a val/ beside it, which is not here"
        )
    if folders_in(root / "val"):
        raise ValueError(
            f"{root / 'val'}: has folders, and val_labels is for one without: remove val_labels if "
            "they are the classes"
        )
    return names if "test" in names and folders_in(root / "test") else names - {"test"}


def _read_part(
    root: Path, classes: dict[str, str], size: int | None, labels: str | Path | None
) -> ArrayDataset:
    if labels is not None:
        listed = Path(labels).expanduser()
        names, numbers = read_labels(listed, root, tuple(classes), EXTENSIONS)
        images = image_files(FileList.of(root, names), size=size)
        return ArrayDataset(images, torch.tensor(numbers), tuple(classes.values()))
    if not folders_in(root):
        raise ValueError(
            f"{root}: has no class folders, so its images have no labels. Give val/ a list of "
            "them (val_labels), or move the folder away"
        )
    return _read_set(root, classes, size)


def _read_set(root: Path, classes: dict[str, str], size: int | None) -> ArrayDataset:
    files, labels = scan_folder(root, tuple(classes), IMAGES)
    return ArrayDataset(image_files(files, size=size), labels, tuple(classes.values()))


def _read_test(root: Path, size: int | None) -> ArrayDataset:
    classes = _named_by_folders(root)
    if classes:
        return _read_set(root, classes, size)
    images = image_files(class_files(root, IMAGES), size=size)
    labels = torch.full((len(images),), UNLABELLED)
    return ArrayDataset(images, labels, (), void=UNLABELLED)
