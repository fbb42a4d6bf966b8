"""What a run reports of corrupted images, from what was kept of each image in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.evaluation.replicates import Replicates, describe_units
from sfumato.engine.runs.directory import Arrays
from sfumato.metrics.condition_cells import CellScores
from sfumato.metrics.intervals import check_resampling, intervals_of
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
) -> dict[str, Any]:
    """Means over all types and severities with their intervals, floors, and the whole table.

    Args:
        cells: `cell_arrays` of each type and severity, severities of one type together.
        labels: of the images, which are the same in every cell.
        names: types of corruption.
        severities: of each type.
        replicates: where the resampled metrics go.
        split: what they are called there.
    """
    fields = (np.stack([cell[name] for cell in cells]) for name in CellScores._fields)
    scores = CellScores(*(torch.from_numpy(each) for each in fields))
    result: dict[str, Any] = dict(values := scores.measure())
    if replicates.resamples:
        units = len(labels)
        check_resampling(units, replicates.resamples, 0.95)
        draws = scores.resample(replicates.resamples, generator=replicates.generator(units))
        replicates.add(split, describe_units(units, labels), draws)
        result |= intervals_of(values, draws)
    shape = (len(names), len(severities))
    found = scores.table()._asdict()
    table = {name: found[name].view(shape).tolist() for name in _TABLE}
    return {**result, "names": list(names), "severities": list(severities), "cells": table}
