"""One call for every source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato._core.spec import resolve
from sfumato.augment import Augment
from sfumato.data import SOURCES, DataSplits, TensorLoader, load_data


def test_every_source_has_checkable_parameters() -> None:
    for name, build in SOURCES.items():
        with pytest.raises(ValueError, match=f"data '{name}' has no parameter 'colour'"):
            resolve({"name": name, "colour": 1}, SOURCES, "data")
        assert callable(build)


def test_defaults_are_filled_in_without_loading() -> None:
    found = resolve({"name": "npz", "train": "a.npz", "test": "b.npz"}, SOURCES, "data")
    assert found.config == {
        "name": "npz",
        "train": "a.npz",
        "test": "b.npz",
        "validation": 0.1,
        "seed": 0,
    }


def test_load(tmp_path: Path) -> None:
    images = np.zeros((10, 2, 2, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(10) % 2)
    path = str(tmp_path / "a.npz")
    data = load_data({"name": "npz", "train": path, "test": path, "validation": 2})
    assert isinstance(data, DataSplits)
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 2, 10)


def test_scenes_run_through_the_loader() -> None:
    data = load_data({"name": "scenes", "train": 16, "validation": 4, "test": 4, "size": 24})
    loader = TensorLoader(data.train, 8, shuffle=True, augment=Augment(crop=2, rotation=10.0))
    batch = next(iter(loader))
    assert batch["image"].shape == (8, 3, 24, 24)
    assert {"masks", "boxes", "objectness", "posterior"} < set(batch)
    torch.testing.assert_close(batch["objectness"], batch["masks"].float().mean((1, 2)))


def test_wrong_type_in_scenes() -> None:
    with pytest.raises(TypeError, match="size of data 'scenes' must be int, got str '64'"):
        load_data({"name": "scenes", "size": "64"})


def test_unknown_source() -> None:
    with pytest.raises(ValueError, match=r"unknown data 'cifar-10' \(did you mean 'cifar10'\?\)"):
        load_data("cifar-10")


def test_missing_parameter() -> None:
    with pytest.raises(ValueError, match=r"data 'cifar10' needs 'root' \(str \| Path\)"):
        load_data("cifar10")


def test_impossible_value(tmp_path: Path) -> None:
    images = np.zeros((10, 2, 2, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(10) % 2)
    path = str(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="validation=10 leaves nothing of 10 samples"):
        load_data({"name": "npz", "train": path, "test": path, "validation": 10})
