"""Any map-style data set of (image, label) as sets of ours, read once and kept in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.splits import Shared, check_same_shape

_PARTS = ("train", "validation", "test")


def as_splits(
    found: Any,
    *,
    validation: float | int | None = None,
    test: float | int | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
    seed: int | None = None,
) -> DataSplits:
    """Train, validation and test sets of what a user's own source gave.

    Args:
        found: `DataSplits`; or one data set; or (train, test); or (train, validation, test); or a
            mapping with `train`, `test` and perhaps `validation`. A data set has `len` and gives
            (image, label): a PIL image, an array (H, W) or (H, W, C), or a tensor (C, H, W), of
            bytes or of numbers in [0, 1]; and a class index. Its `classes`, where it has any, are
            the names.
        validation: share or count of the training samples, 0.1 unless there is a set for it.
        test: share or count of all samples, 0.2, where there is one set for all.
        limit_train: size of the training set, stratified. None keeps all.
        limit_test: size of the test set, stratified. None keeps all.
        seed: of the division, 0.

    Example:
        >>> set_of_all = [(torch.zeros(3, 8, 8), number % 2) for number in range(20)]
        >>> splits = as_splits(set_of_all)
        >>> len(splits.train), len(splits.validation), len(splits.test)
        (14, 2, 4)
    """
    given = {"validation": validation, "test": test, "limit_train": limit_train}
    given |= {"limit_test": limit_test, "seed": seed}
    if isinstance(found, DataSplits):
        _refuse(given, tuple(given), "DataSplits, which are divided already")
        return found
    shared = Shared(limit_train=limit_train, limit_test=limit_test, seed=seed or 0)
    if isinstance(found, tuple):
        found = _by_part(found)
    if not isinstance(found, Mapping):
        _refuse(given, ("limit_test",), "one data set: say how large `test` is")
        return shared.divide(_read_all({"data": found})["data"], test=test, validation=validation)
    if not {"train", "test"} <= set(found) <= set(_PARTS):
        raise TypeError(f"data must have parts train and test (validation), got {list(found)}")
    unusable = ("test", "validation") if "validation" in found else ("test",)
    _refuse(given, unusable, "a set of its own for that")
    sets = _read_all(found)
    own = sets.get("validation", validation)
    return shared.with_test(sets["train"], sets["test"], validation=own)


def _by_part(found: tuple[Any, ...]) -> dict[str, Any]:
    names = {2: ("train", "test"), 3: _PARTS}.get(len(found))
    if names is None:
        raise TypeError(
            f"data must be (train, test) or (train, validation, test), got {len(found)} sets"
        )
    return dict(zip(names, found, strict=True))


def _refuse(given: Mapping[str, Any], keys: tuple[str, ...], why: str) -> None:
    for key in keys:
        if given[key] is not None:
            raise ValueError(f"{key} makes no sense here, the source gives {why}: leave it out")


def _read_all(sets: Mapping[str, Any]) -> dict[str, ArrayDataset]:
    read = {name: each for name, each in sets.items() if isinstance(each, ArrayDataset)}
    pairs = {name: _read(each, name) for name, each in sets.items() if name not in read}
    classes = _class_names(sets, [labels for _, labels in pairs.values()])
    for name, (images, labels) in pairs.items():
        read[name] = ArrayDataset(images, labels, classes)
    check_same_shape({name: read[name] for name in sets})
    return read


def _class_names(sets: Mapping[str, Any], labels: list[Tensor]) -> tuple[str, ...]:
    named = next((each for each in sets.values() if hasattr(each, "classes")), None)
    if named is not None:
        return tuple(str(name) for name in named.classes)
    highest = max((int(each.max()) for each in labels if len(each)), default=-1)
    return tuple(str(number) for number in range(highest + 1))


def _read(dataset: Any, name: str) -> tuple[Tensor, Tensor]:
    is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not is_map_style:
        raise TypeError(
            f"{name} must be a map-style data set, with len(data) and data[i] = (image, label), "
            f"got {type(dataset).__name__}"
        )
    images: list[Tensor] = []
    labels: list[int] = []
    for position in range(len(dataset)):
        where = f"sample {position} of {name}"
        try:
            sample = dataset[position]
        except Exception as error:
            raise ValueError(
                f"{where} can't be read: {type(error).__name__}: {error}. Try data[{position}]"
            ) from error
        image, label = _pair(sample, where)
        images.append(_image(image, where))
        labels.append(_label(label, where))
        if images[-1].shape != images[0].shape:
            raise ValueError(
                f"{where} is {tuple(images[-1].shape)}, sample 0 {tuple(images[0].shape)} "
                "(channels, height, width): resize and crop them to one shape in the data set"
            )
    empty = torch.empty(0, 3, 1, 1, dtype=torch.uint8)
    return torch.stack(images) if images else empty, torch.tensor(labels, dtype=torch.int64)


def _pair(sample: Any, where: str) -> tuple[Any, Any]:
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    got = type(sample).__name__
    hint = "a data set without labels can't be trained on"
    if isinstance(sample, tuple | list):
        got += f" of {len(sample)}"
        hint = "return (image, label) and nothing else" if len(sample) > 2 else hint
    elif isinstance(sample, Mapping):
        got += f" with {', '.join(map(str, sample))}"
        hint = "return the two as a tuple"
    raise TypeError(f"{where} must be a pair (image, label), got {got}: {hint}")


def _image(image: Any, where: str) -> Tensor:
    if isinstance(image, Image.Image):
        kept = image if image.mode in ("L", "RGB") else image.convert("RGB")
        image = np.asarray(kept)
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.array(image))
        image = image.unsqueeze(0) if image.ndim == 2 else image.movedim(-1, 0)
    if not isinstance(image, Tensor) or image.ndim != 3 or not len(image) <= 4:
        raise TypeError(
            f"the image of {where} must be a PIL image, an array (H, W) or (H, W, C), or a tensor "
            f"(C, H, W), got {type(image).__name__} {tuple(getattr(image, 'shape', ()))}"
        )
    if image.dtype == torch.uint8:
        return image.contiguous()
    low, high = float(image.min()), float(image.max())
    if not image.is_floating_point() or not (low >= 0 and high <= 1):
        raise ValueError(
            f"the image of {where} must hold bytes or numbers in [0, 1], got {image.dtype} in "
            f"[{low:g}, {high:g}]: {_remedy_of_numbers(low, high)}"
        )
    return (image * 255).round().to(torch.uint8).contiguous()


def _remedy_of_numbers(low: float, high: float) -> str:
    if math.isnan(low):
        return "some are NaN, leave the image out or repair it"
    if low >= 0 and high <= 255:
        return "convert them to bytes, image.to(torch.uint8)"
    return "leave standardisation out, a run does that itself"


def _label(label: Any, where: str) -> int:
    if isinstance(label, Tensor | np.ndarray) and label.ndim == 0:
        label = label.item()
    if not isinstance(label, Integral) or isinstance(label, bool) or label < 0:
        raise TypeError(
            f"the label of {where} must be the number of a class, 0 or more, got "
            f"{type(label).__name__} {label!r}{_remedy_of_label(label)}"
        )
    return int(label)


def _remedy_of_label(label: Any) -> str:
    if isinstance(label, str):
        return ": map the names to numbers, as classes.index(label)"
    if isinstance(label, float):
        return ": return int(label)" if label >= 0 and label.is_integer() else ""
    dimensions = getattr(label, "ndim", 0)
    if dimensions == 1:
        return ". Of a one-hot label return int(label.argmax())"
    return ". For maps return sfumato.data.DataSplits" if dimensions > 1 else ""
