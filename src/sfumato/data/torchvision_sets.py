"""Torchvision's sets by name; downloaded only when told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.fetched import from_torchvision
from sfumato.data.split import with_test

TorchvisionName = Literal[
    "cifar10", "cifar100", "fashion_mnist", "kmnist", "mnist", "stl10", "svhn"
]

_CLASSES: dict[str, str] = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "fashion_mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "mnist": "MNIST",
    "stl10": "STL10",
    "svhn": "SVHN",
}
_BY_SPLIT = ("stl10", "svhn")


def load_torchvision(
    name: TorchvisionName,
    *,
    root: str | Path,
    download: bool = False,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """Splits from one of torchvision's sets: its training and test part, and some validation.

    Args:
        name: which set.
        root: the folder where torchvision keeps or puts its files.
        download: fetch the files if they are not there. Nothing is fetched without it.
        validation: share or count of training samples, stratified.
        limit_train: size of the training set, stratified. None keeps all.
        limit_test: size of the test set, stratified. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: the files are not in `root`, and `download` is off or fails.
    """
    folder = Path(root).expanduser()
    return with_test(
        _part(name, "train", folder, download),
        _part(name, "test", folder, download),
        validation=validation,
        limit_train=limit_train,
        limit_test=limit_test,
        seed=seed,
    )


def _part(name: str, part: Literal["train", "test"], root: Path, download: bool) -> ArrayDataset:
    from torchvision import datasets

    build = getattr(datasets, _CLASSES[name])
    which = {"split": part} if name in _BY_SPLIT else {"train": part == "train"}
    source = from_torchvision(
        build, root, download=download, name=name, holds="torchvision's files", **which
    )
    labels = torch.as_tensor(source.labels if name in _BY_SPLIT else source.targets)
    return ArrayDataset(_images(source.data), labels.long(), _class_names(source))


def _images(data: Any) -> torch.Tensor:
    """As (N, C, H, W) from any of torchvision's (N, H, W), (N, H, W, 3) and (N, 3, H, W)."""
    images = torch.as_tensor(np.asarray(data))
    if images.ndim == 3:
        return images[:, None]
    return images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images


def _class_names(source: Any) -> tuple[str, ...]:
    # SVHN is the one without names: its classes are the digits.
    return tuple(getattr(source, "classes", None) or (str(digit) for digit in range(10)))
