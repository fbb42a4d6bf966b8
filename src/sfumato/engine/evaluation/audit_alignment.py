"""Which samples two files share, and whether they agree on what is right for each."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)

_REMEDY = "Save both on the same samples, in the same order or with an 'index'."


def shared_samples(first: AnyPredictions, second: AnyPredictions) -> tuple[Tensor, Tensor]:
    """Positions of the common samples in each file: by index where both have one, else by order.

    Raises:
        PredictionFileError: other samples, a sample that is there twice, or other labels.
    """
    if first.index is not None and second.index is not None:
        ours, theirs = _by_index(first, second)
    else:
        _check_order(first, second)
        ours = theirs = torch.arange(len(first))
    if not _same_labels(first, second, ours, theirs):
        raise PredictionFileError(other_labels(first.name, second.name))
    return ours, theirs


def other_labels(first: str, second: str) -> str:
    """The sentence for two models whose samples have other labels."""
    return f"{first} and {second} can't be compared: their labels differ. {_REMEDY}"


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
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: no 'index' is in both. {_REMEDY}"
        )
    ours, theirs = (torch.from_numpy(place) for place in places)
    return ours, theirs


def _check_order(first: AnyPredictions, second: AnyPredictions) -> None:
    """Raise where rows at the same place are other samples."""
    if len(first) != len(second):
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: they hold {len(first):,} and "
            f"{len(second):,} samples, and not both have an 'index'. {_REMEDY}"
        )
    ours, theirs = (_rows_of_one_file(file) for file in (first, second))
    if ours is not None and theirs is not None and not torch.equal(ours, theirs):
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: other rows were left out of each. "
            "Give both an 'index', or mend the bad rows."
        )


def _rows_of_one_file(file: AnyPredictions) -> Tensor | None:
    """Positions in the file; None where several were joined, in which they begin anew."""
    if file.rows is None or not bool((file.rows.diff() > 0).all()):
        return None
    return file.rows


def _same_labels(
    first: AnyPredictions, second: AnyPredictions, ours: Tensor, theirs: Tensor
) -> bool:
    """Whether the common samples have one label; where a file doesn't name them, it is trusted."""
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
