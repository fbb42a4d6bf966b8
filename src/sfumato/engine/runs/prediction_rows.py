"""Saved predictions in memory: a whole file, or the part of one that is being read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class PredictionFileError(ValueError):
    """A file that can't be audited; the message names it, says why, and what would work."""


class Origin(NamedTuple):
    """A file whose rows begin at this place among those of several files."""

    start: int
    name: str


@dataclass(frozen=True)
class PredictionFile:
    """Predictions with their labels: logits or probabilities, never guessed from the values.

    Label maps have axes behind those named here: predictions (N, C, H, W), labels (N, H, W).
    """

    name: str
    labels: Tensor  # (N,) int64
    logits: Tensor | None = None  # (N, C)
    probs: Tensor | None = None  # (N, C)
    index: Tensor | None = None  # (N,) int64
    groups: list[str] | None = None
    classes: list[str] | None = None
    times: Tensor | None = None  # (N,) float64
    is_dated: bool = False  # whether times are seconds since 1970
    rows: Tensor | None = None  # (N,) int64, positions in the file
    void: int = -100  # label of pixels that count for nothing
    skipped: dict[str, int] = field(default_factory=dict)  # rows that were left out, by reason
    origins: tuple[Origin, ...] = ()  # the files that were merged
    own_classes: list[str] | None = None  # as the file itself names them

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predictions(self) -> Tensor:
        """What the file holds: logits or probabilities, (N, C)."""
        found = self.probs if self.logits is None else self.logits
        if found is None:
            raise ValueError("a prediction file holds logits or probs")
        return found

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities in double precision, (N, C)."""
        values = self.predictions.double()
        return values if self.logits is None else values.softmax(1)


@dataclass(frozen=True)
class ConfidenceFile:
    """Predictions of which only the confidence and whether they were right is known."""

    name: str
    confidence: Tensor  # (N,)
    correct: Tensor  # (N,) bool
    predicted: Tensor | None = None  # (N,) int64, places in `classes`
    index: Tensor | None = None  # (N,) int64
    groups: list[str] | None = None
    classes: list[str] | None = None
    times: Tensor | None = None  # (N,) float64
    is_dated: bool = False  # whether times are seconds since 1970
    rows: Tensor | None = None  # (N,) int64
    boxes: Tensor | None = None  # (N, 4), of detections
    images: list[str] | None = None  # of which each prediction is one of perhaps several
    truth: list[str] | None = None  # names of the labels, where they are known
    is_labelled: bool = True  # False where nothing is known of `correct`, which then is false
    skipped: dict[str, int] = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()  # the files that were merged

    def __len__(self) -> int:
        return len(self.confidence)


AnyPredictions = PredictionFile | ConfidenceFile


def file_of(predictions: AnyPredictions, place: int) -> str:
    """Name of the file that the row at this place is from."""
    began = [origin for origin in predictions.origins if origin.start <= place]
    return began[-1].name if began else predictions.name


def file_numbers(predictions: AnyPredictions) -> Tensor:
    """Which of the merged files each row is from, (N,), from 0."""
    starts = torch.tensor([origin.start for origin in predictions.origins[1:]], dtype=torch.int64)
    return torch.searchsorted(starts, torch.arange(len(predictions)), right=True)


def joined(parts: Sequence[AnyPredictions]) -> AnyPredictions:
    """Parts of one file after each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(type(part) is not type(first) for part in parts):
        raise PredictionFileError(
            f"{first.name}: some parts hold all classes, others confidences only; give one kind"
        )
    if isinstance(first, PredictionFile):
        files = [part for part in parts if isinstance(part, PredictionFile)]
        _check_shapes(files)
        return PredictionFile(
            name=first.name,
            labels=torch.cat([part.labels for part in files]),
            logits=_cat([part.logits for part in files]),
            probs=_cat([part.probs for part in files]),
            classes=first.classes,
            index=_cat([part.index for part in files]),
            groups=_chain([part.groups for part in files]),
            times=_cat([part.times for part in files]),
            is_dated=first.is_dated,
            rows=_cat([part.rows for part in files]),
            void=first.void,
            own_classes=first.own_classes,
        )
    return _joined_confidences([part for part in parts if isinstance(part, ConfidenceFile)])


def _check_shapes(files: Sequence[PredictionFile]) -> None:
    first = files[0]
    for part in files[1:]:
        if part.predictions.shape[1:] != first.predictions.shape[1:]:
            raise PredictionFileError(
                f"{part.name} has {part.predictions.shape[1]} classes where {first.name} has "
                f"{first.predictions.shape[1]}: parts of one model have the same"
            )
        if (part.logits is None) is not (first.logits is None):
            raise PredictionFileError(f"{part.name} and {first.name} mix logits and probabilities")


def _joined_confidences(parts: Sequence[ConfidenceFile]) -> ConfidenceFile:
    names = list(dict.fromkeys(name for part in parts for name in part.classes or ()))
    places = {name: place for place, name in enumerate(names)}
    predicted: list[Tensor | None] = []
    for part in parts:
        if part.predicted is None or part.classes is None:
            predicted.append(None)
            continue
        table = torch.tensor([places[name] for name in part.classes], dtype=torch.int64)
        predicted.append(table[part.predicted])
    return ConfidenceFile(
        name=parts[0].name,
        confidence=torch.cat([part.confidence for part in parts]),
        correct=torch.cat([part.correct for part in parts]),
        predicted=_cat(predicted),
        classes=names or None,
        index=_cat([part.index for part in parts]),
        groups=_chain([part.groups for part in parts]),
        times=_cat([part.times for part in parts]),
        is_dated=parts[0].is_dated,
        rows=_cat([part.rows for part in parts]),
        boxes=_cat([part.boxes for part in parts]),
        images=_chain([part.images for part in parts]),
        truth=_chain([part.truth for part in parts]),
        is_labelled=all(part.is_labelled for part in parts),
    )


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known and len(known) == len(parts) else None


def _chain(parts: Sequence[list[str] | None]) -> list[str] | None:
    known = [part for part in parts if part is not None]
    return [each for part in known for each in part] if len(known) == len(parts) else None
