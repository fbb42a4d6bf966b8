"""Compare two models on the same samples, by rows or by totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._core.text import Bar
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    Reading,
    read_predictions,
    stored_predictions,
)
from sfumato.auditing.totals import (
    NUM_BINS,
    Model,
    compare_confidences,
    outcomes,
)
from sfumato.metrics import compare_predictions
from sfumato.metrics.evaluate import Comparison, compare_draws
from sfumato.metrics.groups import Samples

_REMEDY = "Save both on the same samples, in the same order or with an 'index'."


def shared_samples(first: AnyPredictions, second: AnyPredictions) -> tuple[Tensor, Tensor]:
    """Positions of the common samples in each file: by index where both have one, else by order."""
    if first.index is not None and second.index is not None:
        ours, theirs = _by_index(first, second)
    else:
        _check_order(first, second)
        ours = theirs = torch.arange(len(first))
    if not _same_labels(first, second, ours, theirs):
        raise _incomparable(first, second, f"their labels differ. {_REMEDY}")
    return ours, theirs


def _incomparable(
    first: AnyPredictions | Model, second: AnyPredictions | Model, why: str
) -> PredictionFileError:
    return PredictionFileError(f"{first.name} and {second.name} can't be compared: {why}")


def class_order(first: PredictionFile, second: PredictionFile) -> Tensor | None:
    """Place of each of the second file's classes among the first's, (C,); None where numbers agree.

    Classes of other names are taken by their numbers.
    """
    ours, theirs = first.classes, second.classes
    if ours is None or theirs is None or ours == theirs:
        return None
    places = {name: place for place, name in enumerate(ours)}
    if len(places) != len(ours) or sorted(ours) != sorted(theirs):
        return None
    return torch.tensor([places[name] for name in theirs])


def _by_index(first: AnyPredictions, second: AnyPredictions) -> tuple[Tensor, Tensor]:
    for file in (first, second):
        assert file.index is not None
        seen, counts = file.index.unique(return_counts=True)
        if int(counts.max()) > 1:
            twice = int(seen[counts.argmax()])
            raise PredictionFileError(
                f"{file.name}: 'index' {twice} is there {int(counts.max())} times, so that rows "
                "can't be matched with another file; give each row a number of its own, or leave "
                "'index' out and save both in the same order"
            )
    common, *places = np.intersect1d(
        np.asarray(first.index), np.asarray(second.index), assume_unique=True, return_indices=True
    )
    if not len(common):
        raise _incomparable(first, second, f"no 'index' is in both. {_REMEDY}")
    ours, theirs = (torch.from_numpy(place) for place in places)
    return ours, theirs


def _check_order(first: AnyPredictions, second: AnyPredictions) -> None:
    """Raise where rows at the same place are other samples."""
    if len(first) != len(second):
        counts = f"they hold {len(first):,} and {len(second):,} samples"
        raise _incomparable(first, second, f"{counts}, and not both have an 'index'. {_REMEDY}")
    # Positions in each file; of several that were joined they begin anew, and say nothing.
    known = [file.rows for file in (first, second) if file.rows is not None]
    known = [rows for rows in known if bool((rows.diff() > 0).all())]
    if len(known) == 2 and not torch.equal(*known):
        why = "other rows were left out of each. Give both an 'index', or correct the bad rows."
        raise _incomparable(first, second, why)


def _same_labels(
    first: AnyPredictions, second: AnyPredictions, ours: Tensor, theirs: Tensor
) -> bool:
    """True if the common samples have the same labels, or a file doesn't name them."""
    if isinstance(first, PredictionFile) and isinstance(second, PredictionFile):
        labels, order = second.labels[theirs], class_order(first, second)
        if order is not None:
            counts = labels != second.void
            labels = labels.masked_scatter(counts, order[labels[counts]])
        return torch.equal(first.labels[ours], labels)
    known = [_spellings(file, chosen) for file, chosen in ((first, ours), (second, theirs))]
    return not all(known) or any(mine == other for mine in known[0] for other in known[1])


def _spellings(file: AnyPredictions, chosen: Tensor) -> list[list[str]]:
    """Labels as text: by the numbers of their classes, and by the names where they are known."""
    if isinstance(file, ConfidenceFile):
        return [] if file.truth is None else [[file.truth[place] for place in chosen.tolist()]]
    numbers = file.labels[chosen].tolist()
    found = [[str(number) for number in numbers]]
    if file.classes is not None and file.labels.ndim == 1:
        found.append([file.classes[number] for number in numbers])
    return found


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
    first: AnyPredictions | Model,
    second: AnyPredictions | Model,
    resamples: int,
    generator: torch.Generator,
    bar: Bar,
) -> dict[str, Any] | None:
    """Compare by rows in memory or by blocks of them; None of histograms, which know no rows."""
    if not isinstance(first, Model) and not isinstance(second, Model):
        return _compare(first, second, resamples, generator, COMPARED, bar)
    if not isinstance(first, Model) or not isinstance(second, Model):
        return None
    blocks = [each.tallies.blocks for each in (first, second)]
    if blocks[0] is None or blocks[1] is None:
        return None
    if not blocks[0].agrees_with(blocks[1]):
        raise _incomparable(first, second, f"their labels differ. {_REMEDY}")
    found = compare_draws(
        [first.tallies.measure(), second.tallies.measure()],
        [partial(blocks[0].resample, resamples), partial(blocks[1].resample, resamples)],
        generator,
    )
    return _described(first, second, first.tallies.count, found, COMPARED, bar)


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
        raise _incomparable(first, second, _TOO_FEW.format("sample"))
    settings: dict[str, Any] = {"resamples": resamples, "generator": generator}
    if isinstance(first, PredictionFile) and isinstance(second, PredictionFile):
        others, order = second.probabilities[theirs], class_order(first, second)
        others = others if order is None else others[:, order.argsort()]
        found = compare_predictions(
            probs=(first.probabilities[ours], others),
            target=first.labels[ours],
            num_bins=NUM_BINS,
            ignore_index=first.void,
            validate=False,
            **settings,
        )
        return _described(first, second, len(ours), found, names, bar)
    for file in (first, second):
        if isinstance(file, PredictionFile) and file.labels.ndim > 1:
            kinds = f"{file.name} holds dense predictions, the other confidences"
            raise _incomparable(first, second, f"{kinds}; save both as dense predictions")
    (before, unit), (after, unit_after) = _chosen(first, ours), _chosen(second, theirs)
    unit = unit_after if unit is None else unit
    if unit is not None and len(unit.unique()) < 2:
        raise _incomparable(first, second, _TOO_FEW.format("image"))
    found = compare_confidences(before, after, unit=unit, **settings)
    return _described(first, second, len(ours), found, names, bar)


_TOO_FEW = "they share one {}, and an interval needs at least two"


def _described(
    first: AnyPredictions | Model,
    second: AnyPredictions | Model,
    samples: int,
    found: dict[str, Comparison],
    names: Sequence[str] | None,
    bar: Bar,
) -> dict[str, Any]:
    bar.advance(f"{second.name} against {first.name}")
    metrics = {name: found[name]._asdict() for name in names or found if name in found}
    return {"first": first.name, "second": second.name, "samples": samples, "metrics": metrics}


def _chosen(file: AnyPredictions, rows: Tensor) -> tuple[Samples, Tensor | None]:
    """Outcomes of these rows, and their images where several share one."""
    found = outcomes(file)
    unit = None if found.unit is None else found.unit[rows]
    return Samples(*(part[rows] for part in found.samples()[:3])), unit
