"""Torchvision's sets by name; downloaded only when told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sfumato.data.archives import from_torchvision
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.splits import Shared, source

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


@source("validation", "limit_train", "limit_test", "seed")
def load_torchvision(
    shared: Shared, name: TorchvisionName, *, root: str | Path, download: bool = False
) -> DataSplits:
    """Splits from one of torchvision's sets: its training and test part, and some validation.

    Args:
        name: which set.
        root: the folder where torchvision keeps or puts its files.
        download: fetch the files if they are not there. Nothing is fetched without it.
    """
    folder = Path(root).expanduser()
    train, test = (_part(name, part, folder, download) for part in ("train", "test"))
    return shared.with_test(train, test)


def _part(name: str, part: str, root: Path, download: bool) -> ArrayDataset:
    from torchvision import datasets

    build = getattr(datasets, _CLASSES[name])
    which = {"split": part} if name in _BY_SPLIT else {"train": part == "train"}
    source = from_torchvision(
        build, root, download=download, name=name, holds="torchvision's files", **which
    )
    labels = torch.as_tensor(source.labels if name in _BY_SPLIT else source.targets)
    # SVHN is the one without names: its classes are the digits.
    classes = getattr(source, "classes", None) or map(str, range(10))
    return ArrayDataset(_images(source.data), labels.long(), tuple(classes))


def _images(data: Any) -> torch.Tensor:
    """As (N, C, H, W) from any of torchvision's (N, H, W), (N, H, W, 3) and (N, 3, H, W)."""
    images = torch.as_tensor(np.asarray(data))
    if images.ndim == 3:
        return images[:, None]
    return images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
