"""Data sets of the user's own: every form of image, every way to give the parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from sfumato.data import ArrayDataset, DataSplits
from sfumato.data.sources.map_style import as_splits

BYTES = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)


def labelled(count: int, image: Any = BYTES) -> list[tuple[Any, int]]:
    return [(image, number % 2) for number in range(count)]


@pytest.mark.parametrize(
    "image",
    [
        BYTES,
        BYTES.float() / 255,
        BYTES.permute(1, 2, 0).numpy(),
        BYTES.permute(1, 2, 0).double().numpy() / 255,
        Image.fromarray(BYTES.permute(1, 2, 0).numpy()),
        Image.fromarray(BYTES.permute(1, 2, 0).numpy()).convert("RGBA"),
    ],
)
def test_images_become_the_same_bytes(image: Any) -> None:
    data = as_splits(labelled(20, image))
    assert torch.equal(data.train.images[0], BYTES)
    assert data.classes == ("0", "1")


@pytest.mark.parametrize("image", [BYTES[0].numpy(), Image.fromarray(BYTES[0].numpy()), BYTES[:1]])
def test_grey_images_have_one_channel(image: Any) -> None:
    assert torch.equal(as_splits(labelled(20, image)).test.images[0], BYTES[:1])


def test_one_set_is_divided() -> None:
    data = as_splits(labelled(100))
    assert (len(data.train), len(data.validation), len(data.test)) == (72, 8, 20)
    data = as_splits(labelled(100), test=30, validation=0.5, limit_train=10, seed=1)
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 35, 30)


@pytest.mark.parametrize(
    "found",
    [
        (labelled(20), labelled(10)),
        {"train": labelled(20), "test": labelled(10)},
        {"train": labelled(18), "test": labelled(10), "validation": labelled(2)},
        (labelled(18), labelled(2), labelled(10)),
        (TensorDataset(BYTES.expand(20, 3, 4, 5), torch.arange(20) % 2), labelled(10)),
    ],
)
def test_parts_of_their_own(found: Any) -> None:
    data = as_splits(found)
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 10)


def test_splits_and_sets_of_ours_are_taken_as_they_are() -> None:
    part = ArrayDataset(BYTES.expand(4, 3, 4, 5), torch.zeros(4, dtype=torch.int64), ("only",))
    splits = DataSplits(part, part, part)
    assert as_splits(splits) is splits
    assert as_splits({"train": part, "validation": part, "test": part}).test is part
    with pytest.raises(ValueError, match=r"validation makes no sense here, .* leave it out"):
        as_splits(splits, validation=0.2)


def test_names_of_classes_are_the_set_s() -> None:
    class Named(list):  # type: ignore[type-arg]
        classes = ("cat", "dog", "owl")

    assert as_splits((Named(labelled(20)), labelled(10))).classes == ("cat", "dog", "owl")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(labelled(3))


class Failing:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        if number == 2:
            raise KeyError("gone")
        return BYTES, 0


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            [BYTES] * 4,
            "sample 0 of data must be a pair .image, label., got Tensor: .*without label",
        ),
        ([(BYTES,)] * 4, "must be a pair .*got tuple of 1"),
        (
            [(BYTES, None)] * 4,
            "label of sample 0 of data must be the number of a class, .*NoneType",
        ),
        ([(BYTES, 0.5)] * 4, "must be the number of a class, 0 or more, got float 0.5"),
        ([(BYTES, -1)] * 4, "must be the number of a class, 0 or more, got int -1"),
        ([(BYTES[0], 0)] * 4, r"must be a PIL image, an array .*got Tensor \(4, 5\)"),
        ([("a.png", 0)] * 4, "must be a PIL image, an array .*got str"),
        ([(BYTES.float() - 9, 0)] * 4, r"in \[0, 1\], .*in \[-9, 50\]: leave standardisation"),
        ([(BYTES.long(), 0)] * 4, r"bytes or numbers .*in \[0, 59\]: .*to\(torch.uint8\)"),
        ([(BYTES * torch.nan, 0)] * 4, "some are NaN"),
        ([(BYTES, 0, 7)] * 4, r"got tuple of 3: return \(image, label\) and nothing else"),
        ([{"image": BYTES, "label": 0}] * 4, "got dict with image, label: return the two as a"),
        ([(BYTES, torch.tensor([0, 1]))] * 4, r"one-hot label return int\(label.argmax\(\)\)"),
        ([(BYTES, "cat")] * 4, r"map the names to numbers, as classes.index\(label\)"),
        ([(BYTES, 1.0)] * 4, r"got float 1.0: return int\(label\)"),
        (Failing(), r"sample 2 of data can't be read: KeyError: 'gone'. Try data\[2\]"),
        ([(BYTES, 0), (BYTES[:, 1:], 0)], "sample 1 of data is .3, 3, 5., sample 0 .3, 4, 5."),
        ((labelled(9), labelled(9, BYTES[:1])), "test: images of shape .1, 4, 5.*train has .3,"),
        (Endless(), "must be a map-style data set, .*got Endless"),
        (None, "must be a map-style data set, .*got NoneType"),
        ((labelled(9),), r"must be \(train, test\) or .*got 1 sets"),
        ({"train": labelled(9)}, "must have parts train and test"),
    ],
)
def test_bad_sets(found: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        as_splits(found)


@pytest.mark.parametrize(
    ("found", "option"),
    [
        (labelled(20), {"limit_test": 2}),
        ((labelled(20), labelled(9)), {"test": 0.5}),
        ((labelled(20), labelled(9), labelled(9)), {"validation": 3}),
    ],
)
def test_options_that_say_nothing_are_refused(found: Any, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} makes no sense here"):
        as_splits(found, **option)


def test_numpy_labels() -> None:
    data = as_splits([(BYTES, np.int64(number % 2)) for number in range(20)])
    assert data.train.labels.dtype == torch.int64
