"""Stratified parts of a set, fixed by a seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.file_tensor import FileTensor


def stratified_order(labels: Tensor | FileTensor, *, seed: int) -> Tensor:
    """A random order in which every stretch holds the classes in their overall proportion.

    The r-th sample of a class with n members gets the key (r + 1/2) / n, and the order sorts by
    it. Parts cut from one order are disjoint and stratified, and a smaller part is contained in a
    larger one, so that results for growing training sets are comparable.

    Args:
        labels: (N,) class indices; label maps (N, H, W) are ordered at random.
        seed: of the order.

    Example:
        >>> labels = torch.tensor([0] * 8 + [1] * 4)
        >>> labels[stratified_order(labels, seed=0)[:6]].bincount().tolist()
        [4, 2]
    """
    check_integer("seed", seed, low=0)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if not isinstance(labels, Tensor) or labels.ndim > 1 or not len(labels):
        return shuffled
    classes = labels[shuffled]
    counts = classes.bincount()
    by_class = classes.argsort(stable=True)
    place = torch.empty_like(by_class)
    place[by_class] = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[classes[by_class]]
    key = (place + 0.5).double() / counts[classes]
    return shuffled[key.argsort(stable=True)]


def amount(name: str, value: float | int, total: int) -> int:
    """A share in [0, 1) of `total`, or a count below `total`, as a count."""
    if isinstance(value, float):
        check_number(name, value, low=0.0)
        if value >= 1:
            raise ValueError(f"{name} must be a share below 1 or an integer count, got {value}")
        count = round(value * total)
    else:
        check_integer(name, value, low=0)
        count = value
    if count >= total > 0:
        raise ValueError(f"{name}={value} leaves nothing of {total} samples")
    return count


class Parts(NamedTuple):
    """Positions in a source of what is trained, validated and tested on, each in order."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split_positions(
    labels: Tensor | FileTensor,
    *,
    num_classes: int,
    test: float | int = 0,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> Parts:
    """What `divide` does, as positions: for samples whose form depends on what is trained on."""
    order = stratified_order(labels, seed=seed)
    num_test = amount("test", test, len(order))
    rest = order[num_test:]
    num_validation = amount("validation", validation, len(rest))
    train = rest[num_validation:]
    if limit_train is not None:
        check_integer("limit_train", limit_train, low=num_classes, high=len(train))
        train = train[:limit_train]
    parts = (train, rest[:num_validation], order[:num_test])
    return Parts(*(part.sort().values for part in parts))


def limited_positions(labels: Tensor | FileTensor, *, limit_test: int | None, seed: int) -> Tensor:
    """Positions of at most `limit_test` samples, stratified, in order; None keeps all."""
    if limit_test is None:
        return torch.arange(len(labels))
    check_integer("limit_test", limit_test, low=1, high=len(labels))
    return stratified_order(labels, seed=seed)[:limit_test].sort().values


def divide(
    dataset: ArrayDataset,
    *,
    test: float | int = 0,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """Train, validation and test parts of one set; each keeps the order of the source.

    Args:
        dataset: what is divided.
        test: share of all samples, or a count.
        validation: share of what remains, or a count.
        limit_train: size of the training set, or None for all that is left. It does not change
            the other two parts.
        seed: of the split.
    """
    parts = split_positions(
        dataset.labels,
        num_classes=dataset.num_classes,
        test=test,
        validation=validation,
        limit_train=limit_train,
        seed=seed,
    )
    return DataSplits(*(dataset.subset(part) for part in parts))


def check_same_shape(sets: Mapping[Path, ArrayDataset]) -> None:
    """Raise, naming the file or folder, unless all images are of the first set's shape."""
    (first, expected), *others = ((path, data.images.shape[1:]) for path, data in sets.items())
    for path, shape in others:
        if shape != expected:
            raise ValueError(
                f"{path}: images of shape {tuple(shape)} (channels, height, width), "
                f"but {first} has {tuple(expected)}; all parts of a set need one shape"
            )


def as_test_set(dataset: ArrayDataset) -> DataSplits:
    """Splits of a set on which nothing is trained, as `evaluate.also` names them."""
    nothing = dataset.subset(torch.arange(0))
    return DataSplits(nothing, nothing, dataset)


def check_test_only(where: object, **unused: object) -> None:
    """Raise where an option is given that cuts a training set, and there is none."""
    given = {name: value for name, value in unused.items() if value is not None}
    if given:
        options = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(
            f"{where}: is a test set only, of which nothing is trained or validated: remove "
            f"{options}"
        )


def with_test(
    train: ArrayDataset,
    test: ArrayDataset,
    *,
    validation: float | int | ArrayDataset,
    limit_train: int | None,
    seed: int,
    limit_test: int | None = None,
) -> DataSplits:
    """Splits of a source that has its own test set, and perhaps its own validation set."""
    if limit_test is not None:
        test = test.subset(limited_positions(test.labels, limit_test=limit_test, seed=seed))
    if isinstance(validation, ArrayDataset):
        parts = divide(train, validation=0, limit_train=limit_train, seed=seed)
        return DataSplits(parts.train, validation, test)
    parts = divide(train, validation=validation, limit_train=limit_train, seed=seed)
    return DataSplits(parts.train, parts.validation, test)
