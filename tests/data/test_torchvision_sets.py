"""Torchvision's sets: real reader where its files can be made, stand-ins elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, get_args
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from sfumato.data import load_data, load_torchvision
from sfumato.data.sources.torchvision_sets import TorchvisionName


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format of the MNIST family."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


def test_fashion_mnist_from_files(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    for prefix, count in (("train", 40), ("t10k", 10)):
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images[:count])
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))
    data = load_data({"name": "fashion_mnist", "root": str(tmp_path), "validation": 10})
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 10, 10)
    assert data.classes[:2] == ("T-shirt/top", "Trouser")
    assert data.validation.labels.bincount().tolist() == [1] * 10
    assert torch.equal(data.train.images[:, 0], torch.from_numpy(images)[data.train.index])


def stand_in(shape: tuple[int, ...], label_name: str, calls: list[dict[str, Any]]) -> type:
    class Source:
        def __init__(self, **options: Any) -> None:
            calls.append(options)
            total = 20 if options.get("train", options.get("split") == "train") else 10
            self.data = np.arange(total * np.prod(shape)).reshape(total, *shape).astype(np.uint8)
            setattr(self, label_name, (np.arange(total) % 10).tolist())

    return Source


@pytest.mark.parametrize(
    ("name", "source", "shape", "label_name"),
    [
        ("cifar10", "CIFAR10", (32, 32, 3), "targets"),
        ("cifar100", "CIFAR100", (32, 32, 3), "targets"),
        ("mnist", "MNIST", (28, 28), "targets"),
        ("kmnist", "KMNIST", (28, 28), "targets"),
        ("svhn", "SVHN", (3, 32, 32), "labels"),
        ("stl10", "STL10", (3, 96, 96), "labels"),
    ],
)
def test_layouts_become_one(
    monkeypatch: pytest.MonkeyPatch,
    name: TorchvisionName,
    source: str,
    shape: tuple[int, ...],
    label_name: str,
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(torchvision.datasets, source, stand_in(shape, label_name, calls))
    data = load_torchvision(name, root="somewhere", validation=0)
    channels = 1 if len(shape) == 2 else 3
    side = max(shape)
    assert data.train.images.shape == (20, channels, side, side)
    assert data.test.images.shape == (10, channels, side, side)
    first = data.train.images[0]
    ordered = first.permute(1, 2, 0) if shape[-1] == 3 else first
    assert ordered.flatten()[:5].tolist() == [0, 1, 2, 3, 4]
    assert [call["download"] for call in calls] == [False, False]
    assert [call["root"] for call in calls] == [Path("somewhere")] * 2


def test_download_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    source = stand_in((32, 32, 3), "targets", calls)
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", source)
    load_data({"name": "cifar10", "root": "x", "download": True})
    assert [(call["download"], call["train"]) for call in calls] == [(True, True), (True, False)]


@pytest.mark.parametrize("name", sorted(set(get_args(TorchvisionName))))
def test_absent_files_say_how_to_get_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{name} is not in root=.*Say download: true"):
        load_data({"name": name, "root": str(tmp_path)})
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("error", [RuntimeError, URLError])
def test_failed_download_says_why_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[Exception]
) -> None:
    def fail(*, root: Path, **_: Any) -> None:
        root.mkdir()
        raise error("the server is away")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    folder = tmp_path / "sets"
    with pytest.raises(FileNotFoundError, match=r"cifar10 could not be fetched .*server is away"):
        load_torchvision("cifar10", root=folder, download=True)
    assert not folder.exists()


def test_failed_download_keeps_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*, root: Path, **_: Any) -> None:
        (root / "half").write_bytes(b"...")
        raise URLError("the server is away")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    with pytest.raises(FileNotFoundError, match="Try again online, or point root at torchvision's"):
        load_torchvision("cifar10", root=tmp_path, download=True)
    assert (tmp_path / "half").exists()


def test_download_must_be_a_boolean() -> None:
    with pytest.raises(TypeError, match="download of data 'cifar10' must be bool, got str 'yes'"):
        load_data({"name": "cifar10", "root": "x", "download": "yes"})
