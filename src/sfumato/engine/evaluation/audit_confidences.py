"""Metrics, intervals and comparisons of predictions of which only confidences are known.

The bootstrap is that of `metrics/grouped_bootstrap.py`: blocks of samples are drawn, by weights
that depend on the number of samples and the generator alone, so that two models share them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato._core.seeds import draw_seed
from sfumato.metrics.grouped_bootstrap import BLOCKS, confidence_cells
from sfumato.metrics.histogram import Groups, group_by_value
from sfumato.metrics.intervals import (
    Comparison,
    centred_interval,
    draw_in_parts,
    intervals_of,
)
from sfumato.metrics.resampling import metrics_of_groups
from sfumato.metrics.scored_samples import Samples


def evaluate_confidences(
    samples: Samples,
    *,
    num_bins: int,
    resamples: int,
    generator: torch.Generator,
    unit: Tensor | None = None,
) -> dict[str, Any]:
    """The metrics that need confidence and correctness only, with their intervals.

    `unit` is the number of the image of each sample, (N,): images are then drawn, not samples.
    """
    values = _measure(samples, num_bins)
    if not resamples:
        return dict(values)
    draws = _resample(samples, num_bins, resamples, generator, unit)
    return {**values, **intervals_of(values, draws)}


def compare_confidences(
    first: Samples,
    second: Samples,
    *,
    num_bins: int,
    resamples: int,
    generator: torch.Generator,
    unit: Tensor | None = None,
) -> dict[str, Comparison]:
    """Two models on the same samples; see `compare_predictions`, and `evaluate_confidences`."""
    before, after = _measure(first, num_bins), _measure(second, num_bins)
    seed = draw_seed(generator)
    draws = [
        _resample(each, num_bins, resamples, torch.Generator().manual_seed(seed), unit)
        for each in (first, second)
    ]
    result = {}
    for name in before:
        difference = after[name] - before[name]
        low, high = centred_interval(draws[1][name] - draws[0][name], difference, level=0.95)
        result[name] = Comparison(before[name], after[name], difference, low, high)
    return result


def _measure(samples: Samples, num_bins: int) -> dict[str, float]:
    found = metrics_of_groups(group_by_value(samples), num_bins)
    return {name: float(value) for name, value in found.items()}


def blocks_of(samples: int, unit: Tensor | None) -> tuple[Tensor, int]:
    """Which block each sample is drawn with, (N,), and how many blocks there are.

    A block holds whole units, or samples where there are none: one each up to 2,000 of them.
    """
    total = samples if unit is None else int(unit.max()) + 1
    blocks = min(total, BLOCKS)
    block = torch.randperm(total, generator=torch.Generator().manual_seed(total)) % blocks
    return (block if unit is None else block[unit]), blocks


def _resample(
    samples: Samples,
    num_bins: int,
    resamples: int,
    generator: torch.Generator,
    unit: Tensor | None,
) -> dict[str, Tensor]:
    """Every metric of every resample, (R,) each."""
    block, blocks = blocks_of(len(samples.confidence), unit)
    cell, upper = confidence_cells(samples.confidence, num_bins)
    size = len(upper)
    place = block * size + cell
    count, correct = (
        torch.bincount(chosen, minlength=blocks * size).view(blocks, size).double()
        for chosen in (place, place[samples.correct])
    )
    mass = torch.bincount(cell, weights=samples.confidence.double(), minlength=size)
    means = mass / torch.bincount(cell, minlength=size)
    parts = []
    for weights in draw_in_parts(blocks, resamples, generator=generator):
        drawn, right = weights @ count, weights @ correct
        groups = Groups(drawn, right, drawn * means, right * means, upper)
        parts.append(metrics_of_groups(groups, num_bins))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
