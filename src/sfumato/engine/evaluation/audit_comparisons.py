"""Two models on the same samples: by their rows, or by sums over blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_alignment import class_order, other_labels, shared_samples
from sfumato.engine.evaluation.audit_blocks import compare_blocks
from sfumato.engine.evaluation.audit_confidences import compare_confidences
from sfumato.engine.evaluation.audit_outcomes import outcomes
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Summed
from sfumato.engine.runs.prediction_files import Reading, read_predictions, stored_predictions
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    PredictionFile,
    PredictionFileError,
)
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import compare_predictions
from sfumato.metrics.intervals import Comparison
from sfumato.metrics.scored_samples import Samples

COMPARED = ("accuracy", "nll", "ece", "aece", "aurc", "accuracy_at_80")


def read_compared(path: Path, split: str, name: str, reading: Reading) -> PredictionFile:
    """The stored predictions of a run folder, called `name`; or a file, read as `reading` says."""
    if not path.is_dir():
        return read_predictions(path, reading)
    return replace(read_predictions(stored_predictions(path, split), reading), name=name)


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
        raise PredictionFileError(other_labels(first.name, second.name))
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


def _compare(
    first: AnyPredictions,
    second: AnyPredictions,
    resamples: int,
    generator: torch.Generator,
    names: Sequence[str] | None,
    bar: Bar,
) -> dict[str, Any]:
    ours, theirs = shared_samples(first, second)
    if len(ours) < 2:
        raise PredictionFileError(_too_few(first, second, "sample"))
    settings: dict[str, Any] = {
        "num_bins": NUM_BINS,
        "resamples": resamples,
        "generator": generator,
    }
    if isinstance(first, PredictionFile) and isinstance(second, PredictionFile):
        found = _compare_classes(first, second, ours, theirs, settings)
    else:
        found = _compare_confidences(first, second, ours, theirs, settings)
    bar.advance(f"{second.name} against {first.name}")
    return {
        "first": first.name,
        "second": second.name,
        "samples": len(ours),
        "metrics": {name: found[name]._asdict() for name in names or found if name in found},
    }


def _compare_classes(
    first: PredictionFile,
    second: PredictionFile,
    ours: Tensor,
    theirs: Tensor,
    settings: Mapping[str, Any],
) -> dict[str, Comparison]:
    """Two files of all classes, whose columns may be in another order."""
    others, order = second.probabilities[theirs], class_order(first, second)
    if order is not None:
        others = others[:, order.argsort()]
    return compare_predictions(
        first.labels[ours],
        probs=(first.probabilities[ours], others),
        ignore_index=first.void,
        validate=False,
        **settings,
    )


def _compare_confidences(
    first: AnyPredictions,
    second: AnyPredictions,
    ours: Tensor,
    theirs: Tensor,
    settings: Mapping[str, Any],
) -> dict[str, Comparison]:
    """Two files of which at least one knows confidences only."""
    for file in (first, second):
        if isinstance(file, PredictionFile) and file.labels.ndim > 1:
            raise PredictionFileError(
                f"{first.name} and {second.name} can't be compared: {file.name} holds label maps, "
                "the other confidences; save both as label maps"
            )
    before, unit = _chosen(first, ours)
    after, unit_after = _chosen(second, theirs)
    unit = unit_after if unit is None else unit
    if unit is not None and len(unit.unique()) < 2:
        raise PredictionFileError(_too_few(first, second, "image"))
    return compare_confidences(before, after, unit=unit, **settings)


def _chosen(file: AnyPredictions, rows: Tensor) -> tuple[Samples, Tensor | None]:
    """Outcomes of these rows, and their images where several share one."""
    found = outcomes(file)
    unit = None if found.unit is None else found.unit[rows]
    return Samples(*(part[rows] for part in found.samples())), unit


def _too_few(first: AnyPredictions, second: AnyPredictions, what: str) -> str:
    return (
        f"{first.name} and {second.name} can't be compared: they share one {what}, and an interval "
        "needs at least two"
    )
