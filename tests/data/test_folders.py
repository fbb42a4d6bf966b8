"""Folders of images: both layouts, and how they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sfumato.data import load_data, load_folder


def fill(root: Path, counts: dict[str, int], *, size: tuple[int, int] = (4, 4)) -> Path:
    """Write `counts[name]` images to `root/name`; red numbers them within the folder."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image = Image.new("RGB", size, (number, len(name), 0))
            image.save(root / name / f"{number:03}.png")
    return root


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    fill(tmp_path / "train", {"bee": 20, "ant": 10})
    fill(tmp_path / "test", {"bee": 4, "ant": 3})
    return tmp_path


def test_train_and_test(parted: Path) -> None:
    data = load_folder(root=parted, validation=6)
    assert data.classes == ("ant", "bee")
    assert (len(data.train), len(data.validation), len(data.test)) == (24, 6, 7)
    assert data.validation.labels.bincount().tolist() == [2, 4]
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_default_validation_is_a_tenth(parted: Path) -> None:
    assert len(load_folder(root=parted).validation) == 3


def test_own_validation_folder(parted: Path) -> None:
    fill(parted / "val", {"bee": 2})  # a part may lack a class
    data = load_folder(root=parted, limit_train=12)
    assert (len(data.train), len(data.validation)) == (12, 2)
    assert data.validation.labels.tolist() == [1, 1]
    assert data.train.labels.bincount().tolist() == [4, 8]


def test_single_folder_is_divided_by_seed(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"name": "folder", "root": str(fill(tmp_path, {"a": 50, "b": 50}))}
    data = load_data(spec)
    assert (len(data.train), len(data.validation), len(data.test)) == (72, 8, 20)
    assert data.test.labels.bincount().tolist() == [10, 10]
    index = torch.cat([data.train.index, data.validation.index, data.test.index])
    assert index.sort().values.tolist() == list(range(100))
    other = load_data({**spec, "seed": 1})
    assert not torch.equal(other.test.index, data.test.index)
    assert len(load_data({**spec, "test": 30, "validation": 0.5}).validation) == 35


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    data = load_folder(root=fill(tmp_path, {"car": 10, "train": 10}))
    assert data.classes == ("car", "train")


def test_size_resizes(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 9}, size=(8, 6))
    fill(tmp_path, {"b": 9}, size=(5, 5))
    assert load_folder(root=tmp_path, size=3).train.images.shape[1:] == (3, 3, 3)


def test_clutter_is_skipped(parted: Path) -> None:
    (parted / ".DS_Store").write_text("")
    (parted / "train" / ".ipynb_checkpoints").mkdir()
    (parted / "train" / "ant" / "Thumbs.db").write_text("")
    assert load_folder(root=parted).classes == ("ant", "bee")


class TestMessages:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="absent: no such folder"):
            load_folder(root=tmp_path / "absent")

    def test_nothing_inside(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="holds no class folders with images"):
            load_folder(root=tmp_path)

    def test_empty_class(self, parted: Path) -> None:
        (parted / "train" / "fly").mkdir()
        with pytest.raises(ValueError, match=r"train/fly: class folder without images"):
            load_folder(root=parted)

    def test_no_test(self, tmp_path: Path) -> None:
        fill(tmp_path / "train", {"a": 2})
        with pytest.raises(ValueError, match="has train/ but no test/"):
            load_folder(root=tmp_path)

    def test_unknown_class_in_test(self, parted: Path) -> None:
        fill(parted / "test", {"cow": 1})
        with pytest.raises(ValueError, match=r"test: classes \['cow'\] are not in the training"):
            load_folder(root=parted)

    def test_folder_inside_a_class(self, parted: Path) -> None:
        fill(parted, {"other": 1})
        with pytest.raises(
            ValueError, match=r"a folder inside the class folder 'test'.*only train/"
        ):
            load_folder(root=parted)

    def test_not_an_image(self, parted: Path) -> None:
        (parted / "train" / "ant" / "notes.txt").write_text("hello")
        with pytest.raises(ValueError, match=r"notes.txt: is no image; expected one of .jpg"):
            load_folder(root=parted)

    def test_unreadable_image(self, parted: Path) -> None:
        (parted / "train" / "bee" / "005.png").write_bytes(b"")
        with pytest.raises(ValueError, match=r"bee/005.png: unreadable image"):
            load_folder(root=parted)

    def test_mixed_sizes(self, parted: Path) -> None:
        fill(parted / "train", {"cow": 1}, size=(5, 4))
        with pytest.raises(ValueError, match=r"cow/000.png: image of 5x4 pixels.*size="):
            load_folder(root=parted)

    def test_parts_of_different_size(self, parted: Path) -> None:
        fill(parted / "val", {"ant": 1}, size=(5, 4))
        with pytest.raises(
            ValueError, match=r"val: images of shape \(3, 4, 5\).*train has \(3, 4, 4"
        ):
            load_folder(root=parted)

    def test_share_beside_own_folder(self, parted: Path) -> None:
        with pytest.raises(ValueError, match=r"has its own test/; remove test=0.2"):
            load_folder(root=parted, test=0.2)
        fill(parted / "val", {"ant": 1})
        with pytest.raises(ValueError, match=r"has its own val/; remove validation=0.2"):
            load_folder(root=parted, validation=0.2)

    def test_size_zero(self, parted: Path) -> None:
        with pytest.raises(ValueError, match="size must be at least 1, got 0"):
            load_folder(root=parted, size=0)
