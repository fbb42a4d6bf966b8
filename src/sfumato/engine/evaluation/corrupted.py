"""What a run reports of corrupted images, from what was kept of each image in each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.evaluation.replicates import Replicates, describe_units
from sfumato.engine.runs.directory import Arrays
from sfumato.metrics.condition_cells import CellScores
from sfumato.metrics.intervals import check_resampling, draw_in_parts, intervals_of
from sfumato.metrics.scored_samples import score

_TABLE = ("error", "nll", "ece")


def cell_arrays(logits: Tensor, labels: Tensor) -> Arrays:
    """Confidence, correctness and log likelihood of each image: 9 bytes, all that is measured."""
    found = score(logits, labels, from_logits=True)
    return {name: part.cpu().numpy() for name, part in found._asdict().items()}


def measure_corrupted(
    cells: Sequence[Arrays],
    labels: Tensor,
    *,
    names: Sequence[str],
    severities: Sequence[int],
    replicates: Replicates,
    split: str,
    num_bins: int = 15,
) -> dict[str, Any]:
    """Means over all types and severities with their intervals, floors, and the whole table.

    Args:
        cells: `cell_arrays` of each type and severity, severities of one type together.
        labels: of the images, which are the same in every cell.
        names: types of corruption.
        severities: of each type.
        replicates: where the resampled metrics go.
        split: what they are called there.
        num_bins: bins of the calibration errors.
    """
    scores = stack_cells(cells)
    result = measure_cells(scores, labels, replicates=replicates, split=split, num_bins=num_bins)
    shape = (len(names), len(severities))
    found = scores.table(num_bins)._asdict()
    table = {name: found[name].view(shape).tolist() for name in _TABLE}
    return {**result, "names": list(names), "severities": list(severities), "cells": table}


def stack_cells(cells: Sequence[Arrays]) -> CellScores:
    """All cells as one, images in the same order."""
    fields = (np.stack([cell[name] for cell in cells]) for name in CellScores._fields)
    return CellScores(*(torch.from_numpy(each) for each in fields))


def measure_cells(
    scores: CellScores,
    labels: Tensor,
    *,
    replicates: Replicates,
    split: str,
    shares: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    num_bins: int = 15,
) -> dict[str, Any]:
    """Means over the cells with their floors and intervals.

    Args:
        scores: of all cells.
        labels: of the images.
        replicates: where the resampled metrics go.
        split: what they are called there.
        shares: further metrics by name, each a function from weights of the images (R, U) to (R,).
        num_bins: bins of the calibration errors.
    """
    further = shares or {}
    units = len(labels)
    values = scores.measure(num_bins)
    whole = torch.ones(1, units, dtype=torch.float64)
    values |= {name: float(share(whole)) for name, share in further.items()}
    if not replicates.resamples:
        return values
    check_resampling(units, replicates.resamples, 0.95)
    draws = scores.resample(
        replicates.resamples, generator=replicates.generator(units), num_bins=num_bins
    )
    for name, share in further.items():
        generator = replicates.generator(units)
        weights = draw_in_parts(units, replicates.resamples, generator=generator)
        draws[name] = torch.cat([share(part) for part in weights])
    replicates.add(split, describe_units(units, labels), draws)
    return values | intervals_of(values, draws)
