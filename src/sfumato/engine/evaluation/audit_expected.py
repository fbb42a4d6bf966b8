"""What confidences promise where there are no labels: the accuracy to expect, by every part.

The sums are those of an audit with labels (`audit_tallies.py`), of which only what needs no label
is read: counts, confidences and their squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_judgement import curve
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Summed, Tallies
from sfumato.metrics.histogram import Groups, width_bins
from sfumato.predictions.calibration_over_time import expected_accuracy_of_sums

_LEVEL = 0.95


def expect(models: Sequence[Summed]) -> dict[str, Any]:
    """The accuracy to expect of each model, if its confidences are right; plain data."""
    found = [_expected(model.name, model.tallies) for model in models]
    return {"models": found, "comparisons": [], "is_labelled": False}


def _expected(name: str, tallies: Tallies) -> dict[str, Any]:
    groups = tallies.groups()
    periods = tallies.by_time.starts()
    rows = [_part(f"{start:g}", sums, len(periods)) for start, sums in periods]
    return {
        "name": name,
        "samples": tallies.count,
        "images": tallies.images.images if tallies.images.is_clustered else None,
        "expected": _part("all", tallies.overall, 1),
        "counts": width_bins(groups, NUM_BINS).count.tolist(),
        "curve": _expected_curve(groups, tallies.lowest_of_groups()),
        "by_class": _parts(tallies.by_class.parts),
        "by_group": _parts(tallies.by_group.parts),
        "by_time": [{**row, "start": start} for row, (start, _) in zip(rows, periods, strict=True)],
        "is_dated": tallies.is_dated,
        "skipped": dict(tallies.skipped),
    }


def _parts(parts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Every part, the least accurate first; intervals hold for all parts together (95 %)."""
    filled = {name: sums for name, sums in parts.items() if sums[0] > 0}
    rows = [_part(name, sums, len(filled)) for name, sums in filled.items()]
    return sorted(rows, key=lambda row: row["accuracy"])


def _part(name: str, sums: Tensor, tests: int) -> dict[str, Any]:
    # Nothing counts as right, so that the squared excess of confidence is its square.
    count, _, total, squares, *_ = sums.tolist()
    found = expected_accuracy_of_sums(count, total, squares, level=1 - (1 - _LEVEL) / tests)
    return {
        "name": name,
        "count": int(count),
        "accuracy": found.accuracy,
        "interval": [found.low, found.high],
    }


def _expected_curve(groups: Groups, lowest: Tensor) -> dict[str, list[float]]:
    """Kept and expected wrong ones at up to 600 thresholds, and the error that 95 % stay below."""
    found = curve(groups, lowest=lowest)
    mean = (groups.confidence / groups.count).clamp(0, 1)
    doubt, spread = groups.count * (1 - mean), groups.count * mean * (1 - mean)
    wrong, variance = (each.flip(0).cumsum(0).flip(0) for each in (doubt, spread))
    total = groups.count.flip(0).cumsum(0).flip(0)
    kept = torch.tensor(found["kept"], dtype=torch.float64)
    place = torch.searchsorted(-total, -kept)  # totals fall with the threshold
    half = NormalDist().inv_cdf(_LEVEL) * variance[place].sqrt()
    bound = ((wrong[place] + half) / kept).clamp(max=1)
    return {**found, "wrong": wrong[place].tolist(), "bound": bound.tolist()}
