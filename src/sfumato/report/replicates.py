"""What the choice of test images does to a number, from the resamples that runs keep.

All runs of a study draw the same resamples, so the difference of two runs on a resample is a
difference of two stored numbers. All seeds are tested on the same images: what these do to all of
them alike does not average out over seeds, and no spread over seeds shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sfumato.report.columns import Column
from sfumato.report.read import RunResult
from sfumato.report.scales import Scale

Variances = tuple[float, float]  # shared by all seeds, and each one's own; NaN where unknown


def image_variance(runs: Sequence[RunResult], column: Column, scale: Scale) -> Variances:
    """Shared and own variance on the scale of the mean over the runs of one method."""
    if not _agree(runs, column):
        return math.nan, math.nan
    return _variances([_on_scale(run, column, scale) for run in runs])


def paired_image_variance(
    ours: Sequence[RunResult], theirs: Sequence[RunResult], column: Column, scale: Scale
) -> Variances:
    """The same of the difference of two methods, resample by resample; runs by the same seeds."""
    if not _agree([*ours, *theirs], column):
        return math.nan, math.nan
    pairs = zip(ours, theirs, strict=True)
    return _variances([_on_scale(a, column, scale) - _on_scale(b, column, scale) for a, b in pairs])


def _variances(found: Sequence[np.ndarray]) -> Variances:
    """Shared by all seeds: the mean covariance of two seeds' resamples. The rest is each one's."""
    draws = np.stack(found)  # (S, R)
    together, alone = draws.mean(0).var(ddof=1), draws.var(axis=1, ddof=1).mean()
    seeds = len(draws)
    if seeds == 1:
        return float(alone), 0.0
    shared = min(max((seeds * together - alone) / (seeds - 1), 0.0), alone)
    return float(shared), float((alone - shared) / seeds)


def _on_scale(run: RunResult, column: Column, scale: Scale) -> np.ndarray:
    """To first order: resamples of an ECE lie above it, where a logarithm would be too calm."""
    value = column.value(run.metrics)
    draws = run.replicates[column.id].astype(np.float64)
    slope: np.ndarray = scale.slope(np.array(np.nan if value is None else value))
    return slope * draws


def _agree(runs: Sequence[RunResult], column: Column) -> bool:
    """Whether all runs have finite resamples of the same number and of the same images."""
    marks = {_mark(run.replicates, column) for run in runs}
    return len(marks) == 1 and None not in marks


def _mark(replicates: Mapping[str, np.ndarray], column: Column) -> tuple[str, int] | None:
    draws, units = replicates.get(column.id), replicates.get(f"{column.split}.units")
    if draws is None or units is None or draws.ndim != 1 or len(draws) < 2:
        return None
    return (str(units), len(draws)) if np.isfinite(draws).all() else None
