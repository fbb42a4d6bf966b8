"""The most confident mistakes of an audit: the same ones in whatever parts the rows came."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sfumato.engine.evaluation.audit_outcomes import Outcomes
from sfumato.engine.runs.prediction_rows import AnyPredictions, ConfidenceFile, file_of

MISTAKES = 20


class Mistake(NamedTuple):
    """A wrong prediction, most confident first."""

    confidence: float
    file: str
    row: int
    label: str
    predicted: str


def surest(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The 20 most confident ones, in their order."""
    return heapq.nsmallest(MISTAKES, mistakes, key=_order)


def mistakes_of(file: AnyPredictions, found: Outcomes, known: Sequence[Mistake]) -> list[Mistake]:
    """Those of a file, or of a part of it, that may be among the surest with the known ones."""
    if found.place is not None:  # pixels are no rows that one could look up
        return []
    sure = found.confidence.double()
    least = known[-1].confidence if len(known) == MISTAKES else 0.0
    places = ((sure >= least) & ~found.correct).nonzero().flatten()
    # Of equally sure ones the first, so that the order of batches doesn't matter.
    places = places[sure[places].argsort(descending=True, stable=True)][:MISTAKES]
    return [_mistake(file, found, place, float(sure[place])) for place in places.tolist()]


def _mistake(file: AnyPredictions, found: Outcomes, place: int, confidence: float) -> Mistake:
    def name(code: Tensor | None) -> str:
        if code is None:
            return ""
        number = int(code[place])
        return file.classes[number] if file.classes else str(number)

    label = name(found.label)
    if isinstance(file, ConfidenceFile) and file.truth is not None:
        label = file.truth[place]
    origin = file_of(file, place)
    return Mistake(confidence, origin, int(found.row[place]), label, name(found.predicted))


def _order(mistake: Mistake) -> tuple[float, str, int]:
    return (-mistake.confidence, mistake.file, mistake.row)
