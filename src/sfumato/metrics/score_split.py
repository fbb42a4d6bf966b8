"""NLL and Brier score in two parts: what calibration would repair, and what it can't."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_choice
from sfumato.metrics.scored_samples import flat_rows

Score = Literal["nll", "brier"]
SCORES: tuple[Score, ...] = ("nll", "brier")
# 33 temperatures from 0.1 to 10, the middle one exactly 1.
LOG_TEMPERATURES = tuple(math.log(10) * step / 16 for step in range(-16, 17))
_NO_CHANGE = len(LOG_TEMPERATURES) // 2
_CHUNK = 4_000_000


class ScoreSplit(NamedTuple):
    """Parts of a score: score = calibration + refinement.

    Args:
        score: the mean NLL or Brier score.
        calibration: what the best single temperature would take away, at least 0.
        refinement: what remains: how little the predictions tell right from wrong.
        temperature: that temperature, between 0.1 and 10.
    """

    score: Tensor
    calibration: Tensor
    refinement: Tensor
    temperature: Tensor


def score_split(
    probs: Tensor,
    target: Tensor,
    *,
    score: Score = "nll",
    ignore_index: int = -100,
    validate: bool = True,
) -> ScoreSplit:
    """Split a proper score into calibration and refinement by temperature scaling.

    refinement = min_T mean score(softmax(log p / T)), calibration = score - refinement. A proper
    score is the sum of both parts for the best of all recalibrations; one temperature repairs most
    of what can be repaired and, being one number, overfits nothing. The minimum is that of a
    parabola through the best of 33 temperatures and its neighbours.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        score: "nll" or "brier".
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Returns:
        Scalars in float64. Where a label has probability 0, NLL and its refinement are infinite and
        its calibration is NaN.

    Example:
        >>> probs = torch.tensor([[0.99, 0.01]]).repeat(100, 1)
        >>> parts = score_split(probs, torch.tensor([0] * 75 + [1] * 25))
        >>> [round(float(part), 2) for part in parts[:3]]
        [1.16, 0.6, 0.56]

    Reference: Berta et al., Rethinking Early Stopping: Refine, Then Calibrate (arXiv 2501.19195);
    Broecker, Reliability, Sufficiency, and the Decomposition of Proper Scores (2009).
    """
    check_choice("score", score, SCORES)
    rows, labels = flat_rows(probs, target, ignore_index=ignore_index, validate=validate)
    return split_of_losses(losses_by_temperature(rows, labels, score).mean(0))


def losses_by_temperature(rows: Tensor, labels: Tensor, score: Score) -> Tensor:
    """Score of each row (M, C) after each temperature, (M, 33), float64."""
    out = torch.empty(len(rows), len(LOG_TEMPERATURES), dtype=torch.float64, device=rows.device)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        log_probs, own = rows[part].log(), labels[part].unsqueeze(1)
        for place, log_temperature in enumerate(LOG_TEMPERATURES):
            scaled = (log_probs * math.exp(-log_temperature)).log_softmax(1)
            label = scaled.gather(1, own).squeeze(1).double()
            if score == "nll":
                out[part, place] = -label
            else:
                squares = scaled.exp().square_().sum(1, dtype=torch.float64)
                out[part, place] = squares - 2 * label.exp() + 1
    return out


def split_of_losses(losses: Tensor) -> ScoreSplit:
    """The split of mean losses after each temperature, (..., 33)."""
    total = losses[..., _NO_CHANGE]
    grid = torch.tensor(LOG_TEMPERATURES, dtype=torch.float64, device=losses.device)
    best = losses.nan_to_num(nan=torch.inf).argmin(-1).clamp(1, len(grid) - 2)
    low, middle, high = (
        losses.gather(-1, (best + shift).unsqueeze(-1)).squeeze(-1) for shift in (-1, 0, 1)
    )
    bend = low - 2 * middle + high
    move = ((low - high) / (2 * bend)).where(bend > 0, 0.0).clamp(-1, 1)
    lowest = middle + move * (high - low) / 2 + move.square() * bend / 2
    refinement = torch.minimum(lowest.where(lowest.isfinite(), middle), total)
    log_temperature = grid[best] + move * (grid[1] - grid[0])
    return ScoreSplit(total, total - refinement, refinement, log_temperature.exp())
