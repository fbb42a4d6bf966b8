"""Corrupted images and sequences that are there already, as the benchmarks publish them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.data_root import in_data_root
from sfumato.corruptions import CORRUPTIONS, PERTURBATIONS, read_corrupted, stored_corruptions
from sfumato.corruptions.reading import stored_classes, stored_labels
from sfumato.corruptions.stored_sequences import (
    count_sequences,
    read_sequences,
    stored_perturbations,
)
from sfumato.data.normalise import Normalise
from sfumato.engine.config.evaluate_section import EvaluateConfig
from sfumato.engine.evaluation.steadiness import measure_steadiness


@dataclass(frozen=True)
class StoredCorruptions:
    """A folder in the layout of CIFAR-10-C or ImageNet-C.

    Args:
        source: as the configuration names it.
        folder: where it is on this machine.
        names: the types that are read.
        labels: of the images, the same in every cell.
    """

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
        """What decides the numbers besides network and type."""
        return {"stored": self.source, "sequences": self.limit}


@dataclass(frozen=True)
class StoredSets:
    """What is read instead of made; None is made from the test images where it is asked for."""

    corrupted: StoredCorruptions | None = None
    perturbed: StoredSequences | None = None


def open_stored(
    wanted: EvaluateConfig, *, classes: Sequence[str], image: Sequence[int]
) -> StoredSets:
    """The sets of `evaluate.stored`, of which no image but the first has been read.

    Args:
        wanted: names folders, and perhaps types, severities and how many images.
        classes: of the training set.
        image: channels, height and width of its images.

    Raises:
        FileNotFoundError: a folder, a type or a severity is not there.
        ValueError: two sets of one kind, other classes, another image size, other labels in one of
            the cells.
    """
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


def evaluate_stored(
    model: nn.Module,
    stored: StoredSequences,
    name: str,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> dict[str, float]:
    """Steadiness along the stored sequences of one type, as along those that are made."""
    frames = read_sequences(stored.folder, name, limit=stored.limit)
    normalise = Normalise(len(mean), mean, std).to(device)
    sequences = ((each, None) for each in frames)
    return measure_steadiness(model, sequences, name, normalise=normalise, device=device)


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
