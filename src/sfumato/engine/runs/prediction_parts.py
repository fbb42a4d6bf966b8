"""Several files that are the parts of one model: each is as the first, and all become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch

from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    Origin,
    PredictionFile,
    PredictionFileError,
    joined,
)

_BESIDE = {
    "groups": "group",
    "times": "time",
    "index": "index",
    "images": "image",
    "boxes": "box",
}


class Layout(NamedTuple):
    """What the first file of a model holds, and so every other one.

    Args:
        name: of the first file.
        kind: "probs", "logits" or "confidence".
        classes: names of the classes in the order of the scores; None where they have none.
        own_classes: the same, as the file itself names them where it does.
        beside: columns beside the predictions.
    """

    name: str
    kind: str
    classes: tuple[str, ...] | None
    own_classes: tuple[str, ...] | None
    beside: frozenset[str]


def layout_of(part: AnyPredictions) -> Layout:
    """What a file holds, told from any part of it."""
    beside = {shown for key, shown in _BESIDE.items() if getattr(part, key, None) is not None}
    if isinstance(part, ConfidenceFile):
        return Layout(part.name, "confidence", None, None, frozenset(beside))
    kind = "probs" if part.logits is None else "logits"
    classes = None if part.classes is None else tuple(part.classes)
    own_classes = classes if part.own_classes is None else tuple(part.own_classes)
    return Layout(part.name, kind, classes, own_classes, frozenset(beside))


def as_first(part: AnyPredictions, first: Layout, where: str) -> AnyPredictions:
    """A part of another file with its classes in the order of the first one.

    Args:
        part: what was read.
        first: what the first file holds.
        where: the file that the part is of, for messages.

    Raises:
        PredictionFileError: other columns, another kind of predictions, or other classes.
    """
    ours = layout_of(part)
    if ours.kind != first.kind:
        raise PredictionFileError(
            f"{where}: holds {ours.kind} where {first.name} holds {first.kind}: parts of one model "
            "are of one kind; save all alike"
        )
    for shown in sorted(ours.beside ^ first.beside):
        what = "has" if shown in ours.beside else "has no"
        other = "has not" if shown in ours.beside else "has"
        raise PredictionFileError(
            f"{where}: {what} {shown!r}, which {first.name} {other}: parts of one model have the "
            "same columns; add it to all, or leave it out of all"
        )
    if isinstance(part, ConfidenceFile) or ours.own_classes == first.own_classes:
        return part
    return _in_order(part, ours, first, where)


def merged(files: Sequence[AnyPredictions], name: str, skipped: dict[str, int]) -> AnyPredictions:
    """The files of one model after each other, each row with the file that it is from."""
    origins: tuple[Origin, ...] = ()
    if len(files) > 1:
        starts = accumulate((len(file) for file in files[:-1]), initial=0)
        origins = tuple(map(Origin, starts, [file.name for file in files]))
    return replace(joined(files), name=name, skipped=skipped, origins=origins)


def _in_order(part: PredictionFile, ours: Layout, first: Layout, where: str) -> PredictionFile:
    theirs = first.own_classes or _numbers(ours.own_classes)
    named = ours.own_classes or _numbers(first.own_classes)
    if sorted(named) != sorted(theirs):
        raise PredictionFileError(
            f"{where}: has the classes {_listed(ours)} where {first.name} has {_listed(first)}: "
            "parts of one model name the same ones"
        )
    if named == theirs:
        return replace(part, classes=None if first.classes is None else list(first.classes))
    if ours.classes != ours.own_classes:
        raise PredictionFileError(
            f"{where}: has the classes in another order than {first.name}, so that class names of "
            "your own (--classes) would mix them up; leave those out"
        )
    columns = torch.tensor([named.index(name) for name in theirs])
    labels = part.labels.clone()
    counts = labels != part.void
    labels[counts] = columns.argsort()[labels[counts]]
    return replace(
        part,
        labels=labels,
        probs=None if part.probs is None else part.probs[:, columns],
        logits=None if part.logits is None else part.logits[:, columns],
        classes=list(theirs),
        own_classes=list(theirs),
    )


def _numbers(classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """As many classes by their numbers."""
    return tuple(str(number) for number in range(len(classes or ())))


def _listed(layout: Layout) -> str:
    names = layout.own_classes
    if names is None:
        return "without names"
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
