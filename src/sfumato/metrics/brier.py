"""Brier score, and what it is made of: calibration and refinement."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.metrics.classwise import class_bins
from sfumato.metrics.scored_samples import flat_rows


def brier_score(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Mean over samples of sum_c (p_c - 1[y = c])^2, in [0, 2].

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> brier_score(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        tensor(0.8125, dtype=torch.float64)

    Differs: some libraries divide by the number of classes; the papers here don't.
    """
    rows, labels = flat_rows(probs, target, ignore_index=ignore_index, validate=validate)
    return squared_errors(rows, labels).mean()


def squared_errors(rows: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of each row from the one-hot label, (M,), float64."""
    own = rows.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    return rows.double().square().sum(1) - 2 * own + 1


class BrierDecomposition(NamedTuple):
    """Parts of a Brier score: score = calibration + refinement + within_bins.

    Args:
        score: the Brier score itself.
        calibration: weighted squared gap between probability and frequency; 0 is calibrated.
        refinement: what remains for a calibrated model, = uncertainty - resolution.
        resolution: how far the frequencies of the bins are from the base rates.
        uncertainty: variance of the labels, the same for all models.
        within_bins: what the bins hide: the spread of probabilities inside a bin.
    """

    score: Tensor
    calibration: Tensor
    refinement: Tensor
    resolution: Tensor
    uncertainty: Tensor
    within_bins: Tensor


def brier_decomposition(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
    validate: bool = True,
) -> BrierDecomposition:
    """Brier score split into calibration and refinement, class by class over equal-width bins.

    With p_bc and f_bc the mean probability and the frequency of class c in bin b, n_bc its size:
    calibration = sum_bc n_bc/N (p_bc - f_bc)^2, refinement = sum_bc n_bc/N f_bc (1 - f_bc).

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        num_bins: number of equal-width bins for each class.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2]]).repeat(10, 1)
        >>> parts = brier_decomposition(probs, torch.tensor([0] * 6 + [1] * 4))
        >>> [round(float(part), 4) for part in parts[:3]]
        [0.56, 0.08, 0.48]

    Reference: Murphy (1973); the within-bin term is that of Stephenson et al. (2008).
    """
    check_integer("num_bins", num_bins, low=1)
    rows, labels = flat_rows(probs, target, ignore_index=ignore_index, validate=validate)
    count, hits, mass = class_bins(rows, labels, num_bins)  # (C, B)
    total, safe = float(len(labels)) or torch.nan, count.clamp(min=1)
    frequency = hits / safe
    rate = hits.sum(1, keepdim=True) / total
    brier = squared_errors(rows, labels).mean()
    calibration = (count * ((mass - hits) / safe).square()).sum() / total
    refinement = (count * frequency * (1 - frequency)).sum() / total
    resolution = (count * (frequency - rate).square()).sum() / total
    uncertainty = (rate * (1 - rate)).sum()
    within = brier - calibration - refinement
    return BrierDecomposition(brier, calibration, refinement, resolution, uncertainty, within)
