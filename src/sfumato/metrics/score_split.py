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
_CHUNK = 32_000  # entries at a time: they stay in the cache
_LARGEST = 1e300


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
    losses = sum_losses(rows, labels)
    return split_of_losses(losses[0, SCORES.index(score)] / len(labels))


def sum_losses(
    rows: Tensor,
    labels: Tensor,
    *,
    are_logits: bool = False,
    unit: Tensor | None = None,
    num_units: int = 1,
) -> Tensor:
    """NLL and Brier score after each temperature, summed up over units, (U, 2, 33), float64.

    Args:
        rows: probabilities or logits, (M, C).
        labels: class indices, (M,).
        are_logits: what the rows are.
        unit: what each row belongs to, (M,); None puts all into one.
        num_units: number of units U.

    Losses that are infinite count as 1e300, so that they can be left out of a resample.
    """
    shape = (num_units, 2, len(LOG_TEMPERATURES))
    sums = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        scores = rows[part] if are_logits else rows[part].log()
        losses = _losses(scores, labels[part]).clamp_(max=_LARGEST)  # (2, 33, m)
        if unit is None:
            sums[0] += losses.sum(2)
        else:
            sums.index_add_(0, unit[part], losses.permute(2, 0, 1))
    return sums


def _losses(scores: Tensor, labels: Tensor) -> Tensor:
    """NLL and Brier score of softmax(scores / T) for each temperature, (2, 33, m).

    Classes first, and one exponential for both scores: with p^b and its sum S, the NLL is
    log S - b log p_y and the sum of squares that of p^2b over S^2.
    """
    planes = scores.T.contiguous()
    planes = planes - planes.amax(0)
    own = planes.gather(0, labels.unsqueeze(0)).double()  # (1, m)
    sums, squares = planes.new_empty(2, len(LOG_TEMPERATURES), len(labels))
    inverse = [math.exp(-each) for each in LOG_TEMPERATURES]
    for place, factor in enumerate(inverse):
        powers = torch.mul(planes, factor).exp_()
        torch.sum(powers, 0, out=sums[place])
        torch.sum(powers.square_(), 0, out=squares[place])
    sums, squares = sums.double(), squares.double()
    label = own * own.new_tensor(inverse).unsqueeze(1) - sums.log()
    return torch.stack([-label, squares / sums.square() - 2 * label.exp() + 1])


def split_of_losses(losses: Tensor) -> ScoreSplit:
    """The split of mean losses after each temperature, (..., 33)."""
    losses = losses.where(~(losses > _LARGEST / 1e30), torch.inf)
    total = losses[..., _NO_CHANGE]
    grid = torch.tensor(LOG_TEMPERATURES, dtype=torch.float64, device=losses.device)
    best = losses.nan_to_num(nan=torch.inf).argmin(-1).clamp(1, len(grid) - 2)
    low, middle, high = (
        losses.gather(-1, (best + shift).unsqueeze(-1)).squeeze(-1) for shift in (-1, 0, 1)
    )
    bend = low - 2 * middle + high
    move = ((low - high) / (2 * bend)).where(bend > 0, 0.0).clamp(-1, 1)
    lowest = middle + move * (high - low) / 2 + move.square() * bend / 2
    # The parabola may dip below 0, which no loss does.
    refinement = torch.minimum(lowest.where(lowest.isfinite(), middle).clamp(min=0.0), total)
    log_temperature = grid[best] + move * (grid[1] - grid[0])
    return ScoreSplit(total, total - refinement, refinement, log_temperature.exp())
