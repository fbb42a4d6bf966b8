"""The user's data as an evaluation reads it: a loader of (images, labels), or a set of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from sfumato._core.spec import Spec
from sfumato.data import ArrayDataset, DataSplits
from sfumato.engine.config.parts import resolve_part
from sfumato.engine.runs.splits import load_splits

Batches = Iterable[Any]
"""Of (images, labels), or of mappings with these: a `DataLoader` or what behaves like one."""
Split = ArrayDataset | Batches
_KEYS = (("image", "label"), ("images", "labels"), ("pixel_values", "labels"))
_ROUNDING = 0.01  # of [0, 1], what undoing a standardisation in half precision may leave


@dataclass(frozen=True)
class GivenData:
    """What is evaluated: the test set, held-out data where there are any, and how it is called."""

    test: Split
    validation: Split | None
    spec: dict[str, Any]


def as_given(data: Spec | DataSplits | Split, validation: Split | None) -> GivenData:
    """Sort out what was passed for `data`.

    Raises:
        TypeError: neither a loader nor a set of ours.
        ValueError: `validation` beside data that has its own, or label maps.
    """
    spec: dict[str, Any] = {"name": type(data).__name__}
    if isinstance(data, str | Mapping):
        spec = resolve_part("data", data, "classify").config
        data = load_splits(spec)
    if isinstance(data, DataSplits):
        if validation is not None:
            raise ValueError("data has a validation set of its own: leave validation out")
        test: Split = data.test
        validation = data.validation
    else:
        test = data
    for name, split in (("data", test), ("validation", validation)):
        if split is not None:
            _check_split(name, split)
    return GivenData(test, validation, spec)


def _check_split(name: str, split: Any) -> None:
    if isinstance(split, ArrayDataset):
        if split.labels.ndim != 1:
            raise ValueError(f"{name} has label maps; sfumato.evaluate takes one label an image")
        if not len(split):
            raise ValueError(f"{name} is empty: there is nothing to evaluate")
    elif not isinstance(split, Iterable) or isinstance(split, Tensor):
        raise TypeError(
            f"{name} must be a DataLoader of (images, labels), an ArrayDataset or DataSplits of "
            f"sfumato.data, or a name as in a study, got {type(split).__name__}. Put a data set "
            "into torch.utils.data.DataLoader(dataset, batch_size=128)"
        )


def read_batches(name: str, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels, batch after batch, each of the form that the metrics need.

    Raises:
        TypeError, ValueError: a batch without labels, labels that are no classes, no batch at all.
    """
    empty = True
    for batch in batches:
        images, labels = _pair(name, batch)
        if labels.is_floating_point() or labels.dtype == torch.bool or labels.ndim != 1:
            raise TypeError(
                f"{name}: labels must be class indices (N,), got {labels.dtype} "
                f"{tuple(labels.shape)}. Of one-hot or soft labels take argmax(1)"
            )
        if len(images) != len(labels):
            raise ValueError(f"{name}: {len(images)} images with {len(labels)} labels in a batch")
        if len(labels):
            empty = False
            yield images, labels.to(torch.int64).cpu()
    if empty:
        raise ValueError(f"{name} is empty: there is nothing to evaluate")


def _pair(name: str, batch: Any) -> tuple[Tensor, Tensor]:
    found: Sequence[Any] = ()
    if isinstance(batch, Mapping):
        for keys in _KEYS:
            if all(key in batch for key in keys):
                found = [batch[key] for key in keys]
                break
        came = f"a mapping with {sorted(map(str, batch))}"
    else:
        came = f"{type(batch).__name__}"
        if isinstance(batch, list | tuple):
            found = batch
            came = f"{len(batch)} things in a {came}"
    if len(found) != 2 or not all(isinstance(each, Tensor) for each in found):
        raise TypeError(
            f"{name} must give batches (images, labels) of tensors, or mappings with 'image' and "
            f"'label', got {came}. Metrics need the labels"
        )
    return cast(tuple[Tensor, Tensor], tuple(found))


def to_bytes(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Images of a loader as they were before they were standardised, uint8.

    Raises:
        ValueError: not (N, C, H, W), or values outside [0, 1].
    """
    if images.ndim != 4:
        raise ValueError(f"corruptions need images (N, C, H, W), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images.cpu()
    values = images.float().cpu()
    for name, numbers in (("std", std), ("mean", mean)):
        if numbers is not None:
            each = torch.tensor(numbers).view(-1, 1, 1)
            values = values * each if name == "std" else values + each
    low, high = (float(end) for end in values.aminmax())
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ValueError(
            f"corruptions are of images in [0, 1] or bytes, and these are in [{low:.2f}, "
            f"{high:.2f}]. Say with what the loader standardises them: mean=(...), std=(...)"
        )
    return (values * 255).round().clamp(0, 255).to(torch.uint8)
