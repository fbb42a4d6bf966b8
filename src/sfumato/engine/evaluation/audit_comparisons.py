"""Two models on the same samples: by their rows, or by sums over blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_blocks import compare_blocks
from sfumato.engine.evaluation.audit_confidences import compare_confidences
from sfumato.engine.evaluation.audit_outcomes import outcomes
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Summed
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    PredictionFile,
    PredictionFileError,
)
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import compare_predictions
from sfumato.metrics.scored_samples import Samples

COMPARED = ("accuracy", "nll", "ece", "aece", "aurc", "accuracy_at_80")


def compare_files(
    files: Sequence[AnyPredictions], *, resamples: int = 1000, seed: int = 0, bar: Bar | None = None
) -> list[dict[str, Any]]:
    """Every metric of every later file against the first, by resamples that both share."""
    generator, bar = torch.Generator().manual_seed(seed), bar or Bar()
    return [_compare(files[0], other, resamples, generator, None, bar) for other in files[1:]]


def compare_with_first(
    first: AnyPredictions | Summed,
    second: AnyPredictions | Summed,
    resamples: int,
    generator: torch.Generator,
    bar: Bar,
) -> dict[str, Any] | None:
    """By rows in memory or by blocks of them; None of histograms, which know no rows."""
    if not isinstance(first, Summed) and not isinstance(second, Summed):
        return _compare(first, second, resamples, generator, COMPARED, bar)
    if not isinstance(first, Summed) or not isinstance(second, Summed):
        return None
    ours, theirs = first.tallies, second.tallies
    if ours.blocks is None or theirs.blocks is None:
        return None
    if not ours.blocks.agrees_with(theirs.blocks):
        raise PredictionFileError(_other_rows(first.name, second.name))
    found = compare_blocks(
        (ours.blocks, ours.measure()),
        (theirs.blocks, theirs.measure()),
        num_bins=NUM_BINS,
        resamples=resamples,
        generator=generator,
    )
    bar.advance(f"{second.name} against {first.name}")
    return {
        "first": first.name,
        "second": second.name,
        "samples": ours.count,
        "metrics": {name: found[name]._asdict() for name in COMPARED if name in found},
    }


def _other_rows(first: str, second: str) -> str:
    return (
        f"{first} and {second} can't be compared: their labels differ. Save both on the same "
        "samples, in the same order or with an 'index'."
    )


def _compare(
    first: AnyPredictions,
    second: AnyPredictions,
    resamples: int,
    generator: torch.Generator,
    names: Sequence[str] | None,
    bar: Bar,
) -> dict[str, Any]:
    ours, theirs = _aligned(first, second)
    if len(ours) < 2:
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: they share one sample, and an "
            "interval needs at least two"
        )
    settings: dict[str, Any] = {
        "num_bins": NUM_BINS,
        "resamples": resamples,
        "generator": generator,
    }
    if isinstance(first, PredictionFile) and isinstance(second, PredictionFile):
        pair = (first.probabilities[ours], second.probabilities[theirs])
        found = compare_predictions(first.labels[ours], probs=pair, validate=False, **settings)
    else:
        samples = [
            Samples(*(part[chosen] for part in outcomes(file).samples()))
            for file, chosen in ((first, ours), (second, theirs))
        ]
        unit = outcomes(first).unit
        unit = None if unit is None else unit[ours]
        found = compare_confidences(*samples, unit=unit, **settings)
    bar.advance(f"{second.name} against {first.name}")
    return {
        "first": first.name,
        "second": second.name,
        "samples": len(ours),
        "metrics": {name: found[name]._asdict() for name in names or found if name in found},
    }


def _aligned(first: AnyPredictions, second: AnyPredictions) -> tuple[Tensor, Tensor]:
    """Positions of the common samples: by index where both have one, else by order."""
    if first.index is not None and second.index is not None:
        common = torch.tensor(sorted(set(first.index.tolist()) & set(second.index.tolist())))
        places = []
        for index in (first.index, second.index):
            found = {value: place for place, value in enumerate(index.tolist())}
            places.append(torch.tensor([found[int(i)] for i in common], dtype=torch.int64))
        ours, theirs = places
    else:
        ours = theirs = torch.arange(len(first))
    same = len(ours) and (first.index is not None or len(first) == len(second))
    if not same or not _same_labels(first, second, ours, theirs):
        raise PredictionFileError(_other_rows(first.name, second.name))
    return ours, theirs


def _same_labels(
    first: AnyPredictions, second: AnyPredictions, ours: Tensor, theirs: Tensor
) -> bool:
    """Whether the common samples have one label; where a file doesn't name them, it is trusted."""
    known = []
    for file, chosen in ((first, ours), (second, theirs)):
        if isinstance(file, PredictionFile):
            known.append([str(label) for label in file.labels[chosen].tolist()])
        elif file.truth is not None:
            known.append([file.truth[place] for place in chosen.tolist()])
    return len(known) < 2 or known[0] == known[1]
