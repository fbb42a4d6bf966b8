"""Layouts of image folders beyond train and test: val as test set, ImageNet's own, bad files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sfumato.data.index as folder_index
from sfumato.data import TensorLoader, load_folder
from sfumato.data.index import cache_folder


def fill(folder: Path, count: int, ending: str = "png") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / f"{number:03}.{ending}")
    return folder


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """ILSVRC's own layout: flat `val/` and `test/`, lists beside them."""
    for synset in ("n02", "n01"):
        fill(tmp_path / "train" / synset, 10, "JPEG")
    fill(tmp_path / "val", 4, "JPEG")
    fill(tmp_path / "test", 3, "JPEG")
    (tmp_path / "synsets.txt").write_text("n02 crane, bird\nn01 crane, machine\n")
    (tmp_path / "val.csv").write_text(
        "ImageId,PredictionString\n003,n01 1 2 3 4\n000,n02 0 0 1 1\n001,n02\n002,n01 5 5 6 6\n"
    )
    return tmp_path


def listed(root: Path) -> dict[str, Any]:
    return {"root": root, "class_list": root / "synsets.txt", "val_labels": root / "val.csv"}


def test_val_is_the_test_set_where_there_is_no_other(tmp_path: Path) -> None:
    for part, count in (("train", 20), ("val", 5)):
        for name in ("ant", "bee"):
            fill(tmp_path / part / name, count)
    data = load_folder(root=tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 10)
    assert len(load_folder(root=tmp_path, validation=10).validation) == 10
    with pytest.raises(ValueError, match="has its own val/; remove test"):
        load_folder(root=tmp_path, test=0.5)


def test_imagenet(imagenet: Path) -> None:
    data = load_folder(**listed(imagenet))
    assert data.classes == ("crane (n02)", "crane (n01)")
    assert data.test.labels.tolist() == [0, 0, 1, 1]  # by the names of the files
    reds = data.test.images[:][:, 0, 0, 0].int()
    assert (reds - torch.arange(4)).abs().max() <= 1  # as far as JPEG keeps them
    assert len(data.train) + len(data.validation) == 20


def test_imagenet_refusals(imagenet: Path) -> None:
    with pytest.raises(ValueError, match=r"test: has no class folders, so its images have no lab"):
        load_folder(root=imagenet)
    with pytest.raises(ValueError, match="val_labels needs class_list"):
        load_folder(root=imagenet, val_labels=imagenet / "val.csv")
    options = listed(imagenet)
    for text, message in (
        ("000 n09\n", r"line 1: 'n09' is none of the classes"),
        ("490\n361\n", r"line 1: '490' has no class"),
        ("007 n01\n", r"line 1: no image 007"),
        ("000 n01\n", r"has no line for 001.JPEG \(and 2 more\)"),
    ):
        options["val_labels"].write_text(text)
        with pytest.raises(ValueError, match=message):
            load_folder(**options)
    options["class_list"].write_text("n01\nn01\n")
    with pytest.raises(ValueError, match="lists 'n01' twice"):
        load_folder(**options)
    options["class_list"].write_text("n01\n")
    options["val_labels"].write_text("".join(f"00{number} n01\n" for number in range(4)))
    with pytest.raises(ValueError, match=r"classes \['n02'\] are not in the"):
        load_folder(**options)
    fill(imagenet / "val" / "n01", 1)
    with pytest.raises(ValueError, match="has folders, and val_labels is for one without"):
        load_folder(**options)


def test_bad_images_are_skipped_and_listed(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        fill(tmp_path / name, 20)
    bad = [tmp_path / "ant" / "000.png", tmp_path / "bee" / "007.png"]
    for path in bad:
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"\.png: unreadable image"):
        load_folder(root=tmp_path)
    for in_memory in (True, False):
        data = load_folder(root=tmp_path, on_bad_image="skip", in_memory=in_memory)
        assert sorted(data.skipped) == sorted(map(str, bad))
        assert all("unreadable image" in reason for reason in data.skipped.values())
        assert sum(len(part) for part in (data.train, data.validation, data.test)) == 38
        assert len(list(TensorLoader(data.train, 8, workers=0))) == -(-len(data.train) // 8)
    with pytest.raises(ValueError, match="on_bad_image must be"):
        load_folder(root=tmp_path, on_bad_image="ignore")  # type: ignore[arg-type]


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is worth an index, and old enough for one."""
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folder_index, "WORTH_KEEPING", 10)
    root = tmp_path / "photos"
    for name in ("ant", "bee"):
        os.utime(fill(root / name, 10), (1e9, 1e9))
    os.utime(root, (1e9, 1e9))
    return root


def test_the_index_is_used_again(scanned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_folder(root=scanned)
    assert len(list((cache_folder() / "folders").glob("*.npz"))) == 1

    def fail(*_: object) -> None:
        raise AssertionError("scanned again")

    with monkeypatch.context() as patched:
        patched.setattr(folder_index, "labelled_names", fail)
        again = load_folder(root=scanned)
    assert torch.equal(again.train.images[:], first.train.images[:])
    assert torch.equal(again.train.labels[:], first.train.labels[:])
    (scanned / "ant" / "new.png").write_bytes((scanned / "ant" / "000.png").read_bytes())
    changed = load_folder(root=scanned)
    assert sum(len(part) for part in (changed.train, changed.validation, changed.test)) == 21


def test_a_bad_index_costs_nothing_but_time(scanned: Path) -> None:
    load_folder(root=scanned)
    (index,) = (cache_folder() / "folders").glob("*.npz")
    index.write_bytes(b"damaged")
    assert len(load_folder(root=scanned).test) == 4
    np.savez(index, changed=np.zeros(3))
    assert len(load_folder(root=scanned).test) == 4


def test_no_index_where_none_can_be_written(
    scanned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "file"))
    assert len(load_folder(root=scanned).test) == 4


def test_where_the_index_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SFUMATO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sfumato"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sfumato"
