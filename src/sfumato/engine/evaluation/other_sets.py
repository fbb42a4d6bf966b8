"""Further test sets of a study: another camera, a newer collection, images without labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._core.spec import Spec
from sfumato.data import ArrayDataset, DataSplits
from sfumato.data.dataset import UNLABELLED, image_shape
from sfumato.engine.config.build import build_component
from sfumato.engine.evaluation.splits import Means, Replicates, measure_split, reliability_bins
from sfumato.engine.runs.directory import Predictions
from sfumato.metrics import predictive_entropy
from sfumato.metrics.evaluate import check_resampling, intervals_of
from sfumato.predictions import TemperatureScaler


def load_other(
    spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None = None
) -> ArrayDataset:
    """The test part of another source, with the classes of the set that was trained on.

    Classes that are named by number, as in ImageNet-V2 and in files without names, are those
    numbers; any others must be the same names in the same order.
    """
    found = _load_test(spec, train, skipped)
    return dataclasses.replace(
        found,
        labels=_numbered(found, train.classes) if found.is_labelled else found.labels,
        posterior=found.posterior if found.classes == train.classes else None,
        classes=train.classes,
    )


def load_strange(
    spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None = None
) -> ArrayDataset:
    """The test part of a source whose images are of none of the classes, so without labels."""
    found = _load_test(spec, train, skipped)
    return dataclasses.replace(
        found,
        labels=torch.full((len(found),), UNLABELLED),
        void=UNLABELLED,
        posterior=None,
        classes=train.classes,
    )


def _load_test(spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None) -> ArrayDataset:
    """The test part of a source, whose images a network trained on `train` can take."""
    splits: DataSplits = build_component("data", spec)
    if skipped is not None:
        skipped |= splits.skipped
    found = splits.test
    if not len(found):
        raise ValueError("has no test images: give a test part")
    if found.vocabulary is not None or found.labels.ndim != 1:
        raise ValueError(
            "has texts or segmentation masks; choose a source of images with one label each"
        )
    shapes = [(channels, *size) for channels, size in map(image_shape, (found, train))]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"has images of {shapes[0]} (channels, height, width), and the network is trained on "
            f"{shapes[1]}; a folder takes size: {shapes[1][1]}"
        )
    return found


# By the key of `evaluate` that names the sets.
LOADERS = {"also": load_other, "ood": load_strange}


def _numbered(found: ArrayDataset, expected: tuple[str, ...]) -> Tensor:
    """Labels that count the classes in the order of the training set."""
    names = found.classes
    if names == expected:
        return found.labels[:]
    counted = expected == tuple(map(str, range(len(expected))))
    # Classes that are called 3 and 7 give numbers no place in the training set's order.
    if _are_numbers(names) and (counted or not _are_numbers(expected)):
        numbers = torch.tensor([int(name) for name in names])
        if int(numbers.max()) >= len(expected):
            raise ValueError(
                f"has a class with the number {int(numbers.max())}, and the training set's "
                f"{len(expected)} classes are 0 to {len(expected) - 1}"
            )
        return numbers[found.labels[:]]
    raise ValueError(f"{_difference(names, expected)}; bring its classes to those of the training")


def _are_numbers(names: tuple[str, ...]) -> bool:
    return all(name.isdecimal() for name in names) and len(set(map(int, names))) == len(names)


def _difference(names: tuple[str, ...], expected: tuple[str, ...]) -> str:
    if set(names) == set(expected):
        place = next(i for i, name in enumerate(names) if name != expected[i])
        return (
            f"has the training set's classes in another order: class {place} is {names[place]!r}, "
            f"there {expected[place]!r}"
        )
    missing = [name for name in expected if name not in names][:3]
    unknown = [name for name in names if name not in expected][:3]
    parts = [f"has {len(names)} classes, the training set has {len(expected)}"]
    parts += [f"it lacks {', '.join(missing)}"] if missing else []
    parts += [f"unknown are {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)


def measure_other(
    found: Predictions,
    *,
    posterior: Tensor | None,
    scaler: TemperatureScaler,
    replicates: Replicates,
    split: str,
    bins: Sequence[int],
) -> dict[str, Any]:
    """The metrics of the test set; without labels, what can be said without them."""
    # Images without labels have labels below 0.
    if bool((found.labels >= 0).all()):
        values = measure_split(
            found, posterior=posterior, replicates=replicates, split=split, bins=bins
        )
        values["reliability"] = reliability_bins(found, bins[0])
    else:
        values = _measure_unlabelled(found.logits, scaler, replicates, split)
    return {**values, "samples": len(found.labels)}


def _measure_unlabelled(
    logits: Tensor, scaler: TemperatureScaler, replicates: Replicates, split: str
) -> dict[str, Any]:
    """Mean confidence and entropy, and the accuracy to expect if calibration carries over.

    The expected accuracy is the mean confidence after the temperature of the validation set. It
    *assumes* that these images are met as well calibrated as the validation images are then,
    which a shift may break: it is an expectation under that assumption and no measurement.
    """
    probs = logits.softmax(1)
    each = {
        "average_confidence": probs.amax(1),
        "entropy": predictive_entropy(probs),
        "expected_accuracy": scaler(logits).softmax(1).amax(1),
    }
    means = Means({name: value.double().unsqueeze(1) for name, value in each.items()})
    values = {name: float(value) for name, value in means.measure(None).items()}
    if not replicates.resamples:
        return values
    units = len(logits)
    check_resampling(units, replicates.resamples, 0.95)
    draws = means.resample(replicates)
    replicates.add(split, f"{units}-unlabelled", draws)
    return values | intervals_of(values, draws, units=units)
