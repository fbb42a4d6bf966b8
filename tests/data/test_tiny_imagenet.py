"""Tiny-ImageNet's own layout, made up and real."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from sfumato.data import load_data, load_tiny_imagenet

TRAIN = {"n01": ["0 0 63 63", "1 2 3 4", "1 2 3 4"], "n02": ["5 6 5 6", "7 8 9 10", "1 1 2 2"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes with three training images and one val image each; n02_0 has two boxes."""
    (tmp_path / "wnids.txt").write_text("n02\nn01\n")
    (tmp_path / "words.txt").write_text("n01\tcrane, bird\nn02\tlobster, crab\nn09\tother\n")
    for wnid, boxes in TRAIN.items():
        images = tmp_path / "train" / wnid / "images"
        images.mkdir(parents=True)
        lines = []
        for number, box in enumerate(boxes):
            Image.new("L", (64, 64), 10 * number).save(images / f"{wnid}_{number}.JPEG")
            lines.append(f"{wnid}_{number}.JPEG {box}".replace(" ", "\t"))
        (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text("\n".join(lines) + "\n")
    with (tmp_path / "train" / "n02" / "n02_boxes.txt").open("a") as file:
        file.write("n02_0.JPEG\t20\t21\t30\t31\n")
    (tmp_path / "val" / "images").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (64, 64)).save(tmp_path / "val" / "images" / f"val_{number}.JPEG")
    rows = ["val_1.JPEG n01 0 0 62 39", "val_0.JPEG n02 1 1 9 9", "val_7.JPEG n09 0 0 1 1"]
    text = "\n".join(rows).replace(" ", "\t")
    (tmp_path / "val" / "val_annotations.txt").write_text(text)
    return tmp_path


def test_images_labels_boxes(root: Path) -> None:
    data = load_tiny_imagenet(root=root, validation=0)
    train, test = data.train, data.test
    assert data.classes == ("crane", "lobster")
    assert train.images.shape == (6, 3, 64, 64)
    assert train.images[:, :, 0, 0].tolist() == [[v] * 3 for v in (0, 10, 20, 0, 10, 20)]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.boxes is not None
    assert train.boxes[0].tolist() == [[0, 0, 64, 64], [0, 0, 0, 0]]
    assert train.boxes[3].tolist() == [[5, 6, 6, 7], [20, 21, 31, 32]]
    assert test.labels.tolist() == [0, 1]
    assert test.boxes is not None
    assert test.boxes.tolist() == [[[0, 0, 63, 40]], [[1, 1, 10, 10]]]


def test_missing_box_is_zeros(root: Path) -> None:
    path = root / "train" / "n01" / "n01_boxes.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    train = load_tiny_imagenet(root=root, validation=0).train
    assert train.boxes is not None
    assert train.boxes[0].eq(0).all()


def test_shared_names_are_told_apart(root: Path) -> None:
    (root / "words.txt").write_text("n01\tcrane, bird\nn02\tcrane, machine\n")
    assert load_tiny_imagenet(root=root).classes == ("crane (n01)", "crane (n02)")


def test_validation_and_limit(root: Path) -> None:
    data = load_data(
        {"name": "tiny_imagenet", "root": str(root), "validation": 2, "limit_train": 2}
    )
    assert data.validation.labels.tolist() == [0, 1]
    assert data.train.labels.tolist() == [0, 1]
    assert data.train.boxes is not None
    assert data.train.boxes.shape == (2, 2, 4)


def test_real_classes(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Two real classes, 1,000 training and 100 val images, with grey ones among them."""
    wanted = ("n02132136", "n03201208")
    base = tmp_path / "tiny-imagenet-200"
    with tarfile.open(real_data("tinyimagenet-40.tar.gz")) as archive:
        for member in archive:
            if "/train/" not in member.name or any(wnid in member.name for wnid in wanted):
                archive.extract(member, tmp_path, filter="data")
    (base / "wnids.txt").write_text("\n".join(wanted))
    data = load_tiny_imagenet(root=base)
    assert data.classes == ("brown bear", "dining table")
    assert data.train.labels.bincount().tolist() == [450, 450]
    assert data.test.labels.bincount().tolist() == [50, 50]
    assert data.train.images.shape[1:] == (3, 64, 64)
    boxes = data.train.boxes
    assert boxes is not None
    assert (boxes[:, 0, 2:] > boxes[:, 0, :2]).all()
    assert boxes.min() >= 0
    assert boxes.max() == 64
    # n03201208_0.JPEG is the first file of its class and has the box 15 35 40 53.
    everything = torch.cat([data.train.index, data.validation.index])
    position = int((everything == 500).nonzero())
    parts = torch.cat([boxes, data.validation.boxes])  # type: ignore[list-item]
    assert parts[position, 0].tolist() == [15, 35, 41, 54]


class TestMessages:
    def test_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"wnids.txt: no such file"):
            load_tiny_imagenet(root=tmp_path)

    def test_no_classes(self, root: Path) -> None:
        (root / "wnids.txt").write_text("\n")
        with pytest.raises(ValueError, match=r"wnids.txt: lists no classes"):
            load_tiny_imagenet(root=root)

    def test_class_without_folder(self, root: Path) -> None:
        (root / "wnids.txt").write_text("n01\nn09\n")
        with pytest.raises(FileNotFoundError, match=r"n09/images: no such folder"):
            load_tiny_imagenet(root=root)

    def test_class_without_name(self, root: Path) -> None:
        (root / "words.txt").write_text("n01\tcrane\n")
        with pytest.raises(ValueError, match=r"words.txt: has no names for \['n02'\]"):
            load_tiny_imagenet(root=root)

    def test_class_without_val_images(self, root: Path) -> None:
        (root / "val" / "val_annotations.txt").write_text("val_1.JPEG\tn01\t0\t0\t1\t1\n")
        with pytest.raises(ValueError, match=r"val_annotations.txt: no images of \['n02'\]"):
            load_tiny_imagenet(root=root)

    def test_val_image_missing(self, root: Path) -> None:
        (root / "val" / "images" / "val_0.JPEG").unlink()
        with pytest.raises(FileNotFoundError, match=r"val_0.JPEG: no such image"):
            load_tiny_imagenet(root=root)

    def test_val_image_with_two_classes(self, root: Path) -> None:
        with (root / "val" / "val_annotations.txt").open("a") as file:
            file.write("\nval_0.JPEG\tn01\t0\t0\t1\t1")
        with pytest.raises(ValueError, match=r"line 4: val_0.JPEG has two different classes"):
            load_tiny_imagenet(root=root)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("n01_0.JPEG\t1\t2\t3", "line 1: expected 5 tab-separated fields"),
            ("n01_0.JPEG\t1\t2\t3\tx", "line 1: box .* is not four integers"),
            ("n01_0.JPEG\t5\t2\t3\t4", r"line 1: box \(5, 2, 3, 4\) is reversed or negative"),
            ("n01_0.JPEG\t-1\t2\t3\t4", "is reversed or negative"),
            ("n01_0.JPEG\t0\t0\t64\t4", r"n01_0.JPEG: box \(0, 0, 64, 4\) is outside of 64x64"),
            ("n01_9.JPEG\t0\t0\t6\t4", "line 1: no image n01_9.JPEG in"),
        ],
    )
    def test_bad_box(self, root: Path, line: str, message: str) -> None:
        (root / "train" / "n01" / "n01_boxes.txt").write_text(line)
        with pytest.raises(ValueError, match=message):
            load_tiny_imagenet(root=root)

    def test_unreadable_image(self, root: Path) -> None:
        (root / "train" / "n01" / "images" / "n01_1.JPEG").write_text("hello")
        with pytest.raises(ValueError, match=r"n01_1.JPEG: unreadable image"):
            load_tiny_imagenet(root=root)


def test_boxes_of_one_image_that_would_be_padded_for_all(root: Path) -> None:
    """3 MB of boxes took gigabytes: as many places were made for each image."""
    images = root / "train" / "n01" / "images"
    for number in range(3, 103):
        Image.new("L", (64, 64)).save(images / f"n01_{number}.JPEG")
    many = "n01_7.JPEG\t0\t0\t1\t1\n" * 200_000
    (root / "train" / "n01" / "n01_boxes.txt").write_text(many)
    with pytest.raises(ValueError, match=r"n01_7\.JPEG: has 200,000 boxes, 106 images have"):
        load_tiny_imagenet(root=root)


@pytest.mark.parametrize(
    "name", ["../../secret.png", "/secret.png", "..", "..\\secret.png", "C:x", "x" * 256]
)
def test_lists_that_point_out_of_the_data_set(root: Path, name: str) -> None:
    annotations = root / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    annotations.write_text(whole.replace("val_0.JPEG", name))
    with pytest.raises(ValueError, match=r"val_annotations.txt, line 2: .* is no plain name"):
        load_tiny_imagenet(root=root)
    annotations.write_text(whole)
    (root / "wnids.txt").write_text(f"n01\n{name}\n")
    with pytest.raises(ValueError, match=r"wnids.txt, line 2: .* is no plain name"):
        load_tiny_imagenet(root=root)


@pytest.mark.parametrize("file", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_messages_quote_little_of_a_list(root: Path, file: str) -> None:
    (root / file).write_text("\t".join(["x" * 10**6] * 3))
    with pytest.raises(ValueError, match="tab-separated fields") as found:
        load_tiny_imagenet(root=root)
    assert len(str(found.value)) < 1000


def test_some_classes(root: Path) -> None:
    (root / "wnids.txt").write_text("n02\nn01\nn09\n")
    data = load_tiny_imagenet(root=root, validation=0, classes=["n02", "n01"])
    assert data.classes == ("crane", "lobster")
    with pytest.raises(ValueError, match=r"classes must be two or more .*n08"):
        load_tiny_imagenet(root=root, classes=["n01", "n08"])
    with pytest.raises(ValueError, match=r"classes must be two or more"):
        load_tiny_imagenet(root=root, classes=["n01", "n01"])
