"""`.npz` files: what they may hold, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.data import load_data, load_npz

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("a", labels=...)` writes a valid file with some arrays replaced (None drops one)."""

    def save(name: str, count: int = 20, **arrays: Any) -> Path:
        rng = np.random.default_rng(count)
        content: dict[str, Any] = {
            "images": rng.integers(0, 256, (count, 4, 6, 3), dtype=np.uint8),
            "labels": np.arange(count) % 2,
            **arrays,
        }
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return path

    return save


def test_pixels_labels_and_index(write: Write) -> None:
    index = np.arange(20) * 7
    train = write("train", index=index, classes=np.array(["cat", "dog"]))
    data = load_npz(train=train, test=write("test", 6, labels=np.zeros(6, np.uint8)), validation=4)
    with np.load(train) as arrays:
        images = arrays["images"]
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 6)
    assert data.classes == ("cat", "dog")
    assert data.train.images.shape[1:] == (3, 4, 6)
    assert data.test.labels.dtype == torch.int64
    for part in (data.train, data.validation):
        positions = part.index // 7
        assert torch.equal(part.images.permute(0, 2, 3, 1), torch.from_numpy(images)[positions])
        assert torch.equal(part.labels, positions % 2)


def test_names_are_numbers_without_classes(write: Write) -> None:
    data = load_npz(train=write("a"), test=write("b", 6, labels=np.array([0, 1, 2, 3, 0, 1])))
    assert data.classes == ("0", "1", "2", "3")
    assert data.test.classes == data.classes


def test_annotations_travel(write: Write) -> None:
    extra = {
        "boxes": np.ones((20, 4)),
        "masks": np.ones((20, 4, 6), np.uint8),
        "objectness": np.ones(20),
        "posterior": np.full((20, 2), 0.5),
    }
    train = load_npz(train=write("a", **extra), test=write("b")).train
    assert train.boxes is not None
    assert train.masks is not None
    assert train.objectness is not None
    assert train.posterior is not None
    assert train.boxes.shape == (18, 1, 4)
    assert train.masks.dtype == torch.bool
    assert train.posterior.dtype == train.objectness.dtype == torch.float32


def test_grey_images(write: Write) -> None:
    grey = np.zeros((20, 4, 6), np.uint8)
    data = load_npz(train=write("a", images=grey), test=write("b", images=grey[..., None]))
    assert data.train.images.shape[1:] == data.test.images.shape[1:] == (1, 4, 6)


def test_validation_from_a_file(write: Write) -> None:
    spec = {
        "name": "npz",
        "train": str(write("a")),
        "test": str(write("b")),
        "validation": str(write("c", 8)),
        "limit_train": 10,
    }
    data = load_data(spec)
    assert (len(data.train), len(data.validation)) == (10, 8)


def test_limit_test_is_stratified_and_nested(tmp_path: Path) -> None:
    labels = np.arange(40) % 4
    images = np.zeros((40, 2, 2, 3), np.uint8)
    path = tmp_path / "a.npz"
    np.savez(path, images=images, labels=labels)
    small = load_npz(train=path, test=path, limit_test=8).test
    large = load_npz(train=path, test=path, limit_test=20).test
    assert small.labels.bincount().tolist() == [2] * 4
    assert set(small.index.tolist()) < set(large.index.tolist())
    with pytest.raises(ValueError, match="limit_test must be at least 1 and at most 40"):
        load_npz(train=path, test=path, limit_test=41)


def test_real_cifar10(real_data: Callable[[str], Path]) -> None:
    # The test file twice: the training file is large and has the same layout.
    path = real_data("cifar10-test.npz")
    data = load_npz(train=path, test=path, limit_train=500, validation=1000)
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert data.train.labels.bincount().tolist() == [50] * 10
    assert data.validation.labels.bincount().tolist() == [100] * 10
    assert data.test.images.shape == (10_000, 3, 32, 32)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"images": None}, ValueError, r"bad.npz: needs the array 'images', has \['labels'\]"),
        ({"labels": None}, ValueError, "bad.npz: needs the array 'labels'"),
        ({"images": np.zeros((20, 3, 4, 6), np.uint8)}, ValueError, "bad.npz.*Channels go last"),
        ({"images": np.zeros((20, 4, 6, 3))}, ValueError, "bad.npz: images must be uint8"),
        ({"labels": np.zeros(20)}, TypeError, "bad.npz: labels must be integers .* got float64"),
        ({"labels": np.array(["a"] * 20)}, TypeError, "bad.npz: labels must be integers"),
        ({"labels": np.zeros((20, 1), int)}, TypeError, r"bad.npz: labels must be integers \(N,\)"),
        ({"labels": np.arange(19) % 2}, ValueError, "bad.npz: labels has 19 entries for 20 images"),
        ({"labels": np.arange(20) - 1}, ValueError, "bad.npz: labels .* got -1 at position"),
        (
            {"labels": np.arange(20), "classes": np.array(["a", "b"])},
            ValueError,
            r"bad.npz: labels must be class indices in \[0, 2\), got 2 at position \(2,\)$",
        ),
        ({"classes": np.arange(2)}, TypeError, "bad.npz: classes must be a list of strings"),
        (
            {"labels": np.array([0] * 20, dtype=object)},
            ValueError,
            "bad.npz: not readable as .npz without pickle",
        ),
        ({"boxes": np.zeros((20, 3))}, ValueError, r"bad.npz: boxes must be \(N, B, 4\)"),
    ],
)
def test_bad_arrays(write: Write, arrays: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        load_npz(train=write("good"), test=write("bad", **arrays))


def test_bad_files(write: Write, tmp_path: Path) -> None:
    good = write("good")
    with pytest.raises(FileNotFoundError, match=r"absent.npz: no such file"):
        load_npz(train=tmp_path / "absent.npz", test=good)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(good.read_bytes()[:400])
    with pytest.raises(ValueError, match=r"cut.npz: not readable"):
        load_npz(train=good, test=cut)
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"single.npz: not readable as .npz"):
        load_npz(train=single, test=good)
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ValueError, match=r"text.npz: not readable"):
        load_npz(train=text, test=good)


def test_files_must_agree_on_classes(write: Write) -> None:
    one = write("one", classes=np.array(["a", "b"]))
    two = write("two", classes=np.array(["b", "a"]))
    with pytest.raises(ValueError, match=r"two.npz: classes \('b', 'a'\) differ from .*one.npz"):
        load_npz(train=one, test=two)


def test_files_must_agree_on_shape(write: Write) -> None:
    other = write("other", images=np.zeros((20, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"other.npz: images of shape \(3, 8, 8\)"):
        load_npz(train=write("one"), test=other)
