"""Corrupted and perturbed images, made or stored, and how robust a network is to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato._core.spec import in_data_root
from sfumato.corruptions import (
    CORRUPTIONS,
    PERTURBATIONS,
    corrupt,
    corruption_generator,
    is_ordered,
    perturb,
    read_corrupted,
)
from sfumato.corruptions.storage import (
    count_sequences,
    read_sequences,
    stored_classes,
    stored_corruptions,
    stored_labels,
    stored_perturbations,
)
from sfumato.data import ArrayDataset
from sfumato.data.dataset import Normalise
from sfumato.engine.config.sections import EvaluateConfig
from sfumato.engine.training.predict import predict_batches
from sfumato.metrics import (
    alexnet_scores,
    consistency,
    corruption_ratio,
    cross_entropy_consistency,
    relative_confidence,
)
from sfumato.metrics.robustness import BaselineMetric

RATIOS: dict[BaselineMetric, str] = {
    "error": "mean_ce",
    "nll": "mean_cnll",
    "ece": "mean_cece",
}


def predict_altered(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], normalise: Normalise
) -> tuple[Tensor, Tensor]:
    """Predict batches of altered images, bytes or in [0, 1]; logits and labels on the CPU."""
    device = normalise.scale.device
    logits, labels = [], []

    def take(output: Tensor, target: Tensor) -> None:
        logits.append(output.float().cpu())
        labels.append(target)

    standardised = (
        (normalise(images.to(device), torch.channels_last), target) for images, target in batches
    )
    predict_batches(model, standardised, take)
    return torch.cat(logits), torch.cat(labels)


def relative_scores(
    corrupted: Mapping[str, Any], baseline: Literal["cifar10", "cifar100", "imagenet"]
) -> dict[str, Any]:
    """mCE, mCNLL and mCECE (Eq. 35-37) of what a run reports of corrupted images, to AlexNet."""
    columns = [severity - 1 for severity in corrupted["severities"]]
    ratios = {}
    for metric in RATIOS:
        own = torch.tensor(corrupted["cells"][metric], dtype=torch.float64)
        reference = alexnet_scores(baseline, metric, names=corrupted["names"])
        ratios[metric] = corruption_ratio(own, reference[:, columns])
    means = {name: float(ratios[metric].mean()) for metric, name in RATIOS.items()}
    return {**means, "cells": {metric: each.tolist() for metric, each in ratios.items()}}


def corrupted_batches(
    data: ArrayDataset, name: str, severity: int, batch_size: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Corrupt a set batch by batch; the corruption depends on seed, type, severity and sample."""
    generator = corruption_generator(seed, name, severity)
    for start in range(0, len(data), batch_size):
        rows = slice(start, start + batch_size)
        yield corrupt(data.images[rows], name, severity, generator=generator), data.labels[rows]


_IMAGES_AT_A_TIME = 16
_SHOWN = 3


def perturbed_sequences(data: ArrayDataset, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Frames of one kind of perturbation with labels, a few images at a time."""
    generator = torch.Generator().manual_seed(fold_seed(0, "perturbation", name))
    few = (each.split(_IMAGES_AT_A_TIME) for each in (data.images, data.labels))
    for images, labels in zip(*few, strict=True):
        yield perturb(images, name, generator=generator), labels.cpu()


def measure_steadiness(
    model: nn.Module,
    sequences: Iterable[tuple[Tensor, Tensor | None]],
    name: str,
    normalise: Normalise,
) -> dict[str, Any]:
    """Consistency along the frames of one kind of perturbation, averaged over images."""
    # Noise has no order in time: CIFAR-10-P is usually measured against its clean first frame.
    reference: Literal["previous", "first"] = "previous" if is_ordered(name) else "first"
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "consistency": partial(consistency, reference=reference),
        # Table E.3 has this (Eq. 38) and `cec_released`: Eq. 39 over the number of classes, frames
        # exchanged, as the authors' code has it.
        "consistency_to_previous": partial(consistency, reference="previous"),
        "cec": cross_entropy_consistency,
        "cec_released": partial(cross_entropy_consistency, form="released"),
    }
    found: dict[str, list[Tensor]] = {name: [] for name in measures}
    relative = []

    def batches() -> Iterator[tuple[Tensor, tuple[int, Tensor | None]]]:
        for frames, labels in sequences:
            single = frames.flatten(0, 1).to(normalise.scale.device)
            yield normalise(single, torch.channels_last), (len(frames), labels)

    def take(logits: Tensor, known: tuple[int, Tensor | None]) -> None:
        count, labels = known
        probs = logits.float().cpu().softmax(1).unflatten(0, (count, -1))
        if labels is not None:
            relative.append(relative_confidence(probs, labels))  # (N, T)
        for key, measure in measures.items():
            found[key].append(measure(probs))

    predict_batches(model, batches(), take)
    values: dict[str, Any] = {
        key: float(torch.cat(each).double().mean()) for key, each in found.items()
    }
    values["flip_rate"] = 1 - values["consistency"]
    if relative:
        every = torch.cat(relative)
        values["relative_confidence"] = float(every.mean(1).double().mean())
        values["along"] = every[:_SHOWN].tolist()
    return values


@dataclass(frozen=True)
class StoredCorruptions:
    """A folder in the layout of CIFAR-10-C or ImageNet-C."""

    source: str
    folder: Path
    names: tuple[str, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class StoredSequences:
    """A folder in the layout of CIFAR-10-P; `limit` sequences of each type, or all."""

    source: str
    folder: Path
    names: tuple[str, ...]
    limit: int | None

    def __len__(self) -> int:
        there = count_sequences(self.folder, self.names[0])
        return there if self.limit is None else min(there, self.limit)

    @property
    def content(self) -> dict[str, Any]:
        """Settings that decide the numbers besides network and type."""
        return {"stored": self.source, "sequences": self.limit}


@dataclass(frozen=True)
class StoredSets:
    """Sets that are read instead of made; None is made from the test images where asked for."""

    corrupted: StoredCorruptions | None = None
    perturbed: StoredSequences | None = None


def open_stored(
    wanted: EvaluateConfig, *, classes: Sequence[str], image: Sequence[int]
) -> StoredSets:
    """The sets of `evaluate.stored`, of which no image but the first has been read."""
    corrupted, perturbed = None, None
    for source in wanted.stored_folders:
        folder = in_data_root(source)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder.absolute()}: no such folder")
        if found := stored_perturbations(folder):
            _only_one(perturbed, source)
            perturbed = _sequences(wanted, source, folder, found, image)
        else:
            _only_one(corrupted, source)
            corrupted = _corruptions(wanted, source, folder, classes, image)
    return StoredSets(corrupted, perturbed)


def _only_one(known: StoredCorruptions | StoredSequences | None, source: str) -> None:
    if known is not None:
        raise ValueError(
            f"{source} and {known.source} are two sets of one kind: name one of them, and the "
            "other in a study of its own"
        )


def _corruptions(
    wanted: EvaluateConfig,
    source: str,
    folder: Path,
    classes: Sequence[str],
    image: Sequence[int],
) -> StoredCorruptions:
    there = stored_corruptions(folder)
    names = wanted.corruption_names or tuple(name for name in CORRUPTIONS if name in there) or there
    cells = [(name, severity) for name in names for severity in wanted.severities]
    labels = stored_labels(folder, *cells[0], limit=wanted.corrupted_images)
    for name, severity in cells:
        found = stored_labels(folder, name, severity, limit=wanted.corrupted_images)
        if not torch.equal(found, labels):
            raise ValueError(
                f"{folder}: {name} {severity} has other labels than {cells[0][0]} {cells[0][1]} "
                f"({len(found)} and {len(labels)} images): all cells must hold the same images"
            )
    _check_classes(folder, stored_classes(folder, *cells[0]), labels, classes)
    first, _ = next(read_corrupted(folder, *cells[0], batch_size=1, limit=1))
    _check_image(folder, tuple(first.shape[1:]), image)
    return StoredCorruptions(source, folder, names, labels)


def _sequences(
    wanted: EvaluateConfig,
    source: str,
    folder: Path,
    found: tuple[str, ...],
    image: Sequence[int],
) -> StoredSequences:
    names = wanted.perturbation_names or tuple(n for n in PERTURBATIONS if n in found) or found
    for name in names:
        first = next(read_sequences(folder, name, batch_size=1, limit=1))
        _check_image(folder / f"{name}.npy", tuple(first.shape[2:]), image)
    return StoredSequences(source, folder, names, wanted.corrupted_images)


def _check_classes(
    folder: Path, named: Sequence[str] | None, labels: Tensor, classes: Sequence[str]
) -> None:
    """Class folders may have other names than the classes (WordNet's), but not other classes."""
    highest = int(labels.max())
    if highest >= len(classes):
        raise ValueError(
            f"{folder}: has a label {highest}, and the training set has {len(classes)} classes"
        )
    if named is None:
        return
    if len(named) != len(classes):
        raise ValueError(
            f"{folder}: has {len(named)} classes, and the training set has {len(classes)}"
        )
    if set(named) & set(classes) and tuple(named) != tuple(classes):
        raise ValueError(
            f"{folder}: its classes {', '.join(named[:3])}, ... are not those of the training set "
            f"in their order, {', '.join(classes[:3])}, ..."
        )


def _check_image(where: Path, found: tuple[int, ...], image: Sequence[int]) -> None:
    if found != tuple(image):
        raise ValueError(
            f"{where}: has images of {found} (channels, height, width), and the network is trained "
            f"on {tuple(image)}"
        )
