"""CUB-200-2011: the official split, boxes in the cut square, and files that are wrong."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from sfumato.augment import label_samples
from sfumato.data import load_data
from sfumato.engine.config.build import build_labels
from sfumato.labels import box_objectness

KINDS = ("001.Albatross", "002.Wren")


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Twelve images of 40 x 20 pixels; every third is tested on."""
    root = tmp_path / "CUB_200_2011"
    lines: dict[str, list[str]] = {"classes": [f"{i} {kind}" for i, kind in enumerate(KINDS, 1)]}
    for number in range(1, 13):
        kind = number % 2
        name = f"{KINDS[kind]}/{number:04}.jpg"
        place = root / "images" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20), (number * 10, 0, 0)).save(place, quality=95)
        for table, text in (
            ("images", name),
            ("image_class_labels", str(kind + 1)),
            ("train_test_split", str(int(number % 3 != 0))),
            ("bounding_boxes", "15.0 5.0 20.0 10.0"),
        ):
            lines.setdefault(table, []).append(f"{number} {text}")
    for table, several in lines.items():
        (root / f"{table}.txt").write_text("\n".join(several) + "\n")
    return root


def test_official_split_and_boxes(birds: Path) -> None:
    data = load_data({"name": "cub", "root": str(birds), "size": 10, "validation": 2})
    assert data.classes == KINDS
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 2, 4)
    assert data.test.labels.tolist() == [1, 0, 1, 0]  # images 3, 6, 9 and 12
    assert (data.test.images[:, 0].float().mean((1, 2)) / 10).round().tolist() == [3, 6, 9, 12]
    # The middle square is x from 10 to 30, half as large afterwards.
    assert data.test.boxes is not None
    assert data.test.boxes[0, 0].tolist() == [2.5, 2.5, 10.0, 7.5]
    share = box_objectness(data.test.boxes, (10, 10))
    assert share.tolist() == pytest.approx([0.375] * 4)
    labels = build_labels({"name": "objectness"}, num_classes=2)
    assert label_samples(labels, data.train, None) is not None


def test_the_folder_above_and_an_archive(birds: Path, tmp_path: Path) -> None:
    archive = tmp_path / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(birds, "CUB_200_2011")
    plain, above, packed = (
        load_data({"name": "cub", "root": str(root), "size": 8})
        for root in (birds, birds.parent, archive)
    )
    assert torch.equal(plain.train.images[:], above.train.images[:])
    assert torch.equal(plain.test.images[:], packed.test.images[:])


def test_a_box_outside_of_the_square_is_none(birds: Path) -> None:
    table = birds / "bounding_boxes.txt"
    table.write_text(table.read_text().replace("3 15.0 5.0 20.0 10.0", "3 0.0 0.0 9.0 9.0", 1))
    data = load_data({"name": "cub", "root": str(birds), "size": 10})
    assert data.test.boxes is not None
    assert data.test.boxes[0].tolist() == [[0.0] * 4]


def _replace(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("images", _replace("001.Albatross/", "../../"), "line 2: .* may point out of the data"),
        ("images", _replace("002.Wren/", "/etc/"), "line 1: .* may point out of the data"),
        ("images", _replace("0001.jpg", "0099.jpg"), "0099.jpg: no such image, though .*images"),
        ("images", _replace("2 001", "1 001"), "line 2: 1 is there twice"),
        ("images", lambda text: text + "13 x.jpg\n", "labels.txt: has no line for image 13"),
        ("images", lambda _: "\n", "images.txt: has no lines"),
        ("classes", _replace("2 002.Wren", "2"), "line 2: '2': expected a number and a name"),
        ("image_class_labels", _replace("2 1", "2 7"), "image 2 has the class 7, which classes"),
        ("image_class_labels", _replace("2 1", "2 x"), "line 2: .*whole number, got 'x'"),
        ("train_test_split", _replace("2 1", "2 2"), "line 2: .*1 for training or 0 for test"),
        ("train_test_split", lambda text: text + "13 1\n", "image 13, which images.txt has not"),
        ("train_test_split", lambda t: t.replace(" 0\n", " 1\n"), "marks no test images"),
        ("bounding_boxes", _replace("20.0 10.0", "20.0"), "line 1: .*four numbers"),
        ("bounding_boxes", _replace("15.0", "nan"), "line 1: .*must begin in the image"),
        ("bounding_boxes", _replace("20.0", "0.0"), "line 1: .*width and a height above 0"),
    ],
)
def test_wrong_lines_are_named(
    birds: Path, table: str, change: Callable[[str], str], message: str
) -> None:
    path = birds / f"{table}.txt"
    path.write_text(change(path.read_text()))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_data({"name": "cub", "root": str(birds), "size": 8})


@pytest.mark.parametrize("table", ["images", "classes", "bounding_boxes", "train_test_split"])
def test_missing_files_are_named(birds: Path, table: str) -> None:
    (birds / f"{table}.txt").unlink()
    with pytest.raises(FileNotFoundError, match=f"{table}.txt: no such file; is .*CUB-200-2011"):
        load_data({"name": "cub", "root": str(birds), "size": 8})
