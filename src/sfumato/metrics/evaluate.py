"""All numbers of one set of predictions at once, and of two compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato._core.arrays import numpy_to_tensor
from sfumato._core.checks import check_integer
from sfumato._core.seeds import draw_seed
from sfumato.metrics.grouped_bootstrap import resample
from sfumato.metrics.intervals import (
    Comparison,
    centred_interval,
    check_resampling,
    intervals_of,
)
from sfumato.metrics.resampling import Evaluation


def evaluate_predictions(
    target: Tensor,
    *,
    logits: Tensor | None = None,
    probs: Tensor | None = None,
    num_bins: int = 15,
    resamples: int = 0,
    level: float = 0.95,
    splits: bool = True,
    ignore_index: int = -100,
    validate: bool = True,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Accuracy, likelihood, calibration and selective classification of saved predictions.

    Keys: accuracy, nll, brier, ece, aece, mce, classwise_ece, overconfidence, underconfidence,
    average_confidence, aurc, augrc, accuracy_at_80, classwise_ace, nll_calibration, nll_refinement,
    brier_calibration, brier_refinement, each a float; with `resamples`, also `<key>_interval`, each
    (low, high).

    Args:
        target: class indices; (N,) or (N, d1, ...).
        logits: raw scores; (N, C) or (N, C, d1, ...). Give either these or `probs`.
        probs: class probabilities, of the same shape.
        num_bins: bins of the calibration errors.
        resamples: bootstrap resamples for the intervals; 0 leaves them out. Samples are drawn, or
            whole images where predictions are dense; beyond 2,000 samples, random blocks of them
            (`metrics/grouped_bootstrap.py` says how far that is the same).
        level: probability that the intervals are to cover.
        splits: what takes many passes over the predictions, too: NLL and Brier score in two parts
            (`score_split`, 33 passes) and classwise_ace (a sort of each class, whose edges stay
            in resamples). False saves the time where these are not needed.
        ignore_index: label of entries that count for nothing.
        validate: check the values.
        generator: source of randomness of the resamples.

    Raises:
        ValueError: for both or none of `logits` and `probs`, and for values that are neither.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> result = evaluate_predictions(torch.tensor([0, 0, 1, 1]), probs=probs)
        >>> result["accuracy"], round(result["ece"], 3)
        (0.75, 0.35)
    """
    check_integer("resamples", resamples, low=0)
    evaluation = _evaluation(target, logits, probs, num_bins, ignore_index, validate, splits)
    result: dict[str, Any] = dict(evaluation.measure())
    if resamples:
        check_resampling(evaluation.num_units, resamples, level)
        draws = resample(evaluation, resamples, generator=generator)
        result |= intervals_of(result, draws, level=level)
    return result


def compare_predictions(
    target: Tensor,
    *,
    logits: tuple[Tensor, Tensor] | None = None,
    probs: tuple[Tensor, Tensor] | None = None,
    num_bins: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    splits: bool = True,
    ignore_index: int = -100,
    validate: bool = True,
    generator: torch.Generator | None = None,
) -> dict[str, Comparison]:
    """Two models on the same samples: every metric of both, and the interval of the difference.

    The resamples are shared, so what is hard for both models cancels. Keys and Args as in
    `evaluate_predictions`, with a pair (first, second) of logits or of probabilities.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]]).repeat(25, 1)
        >>> target = torch.tensor([0, 0, 1, 1]).repeat(25)
        >>> result = compare_predictions(target, probs=(probs, probs.flip(1)), resamples=100)
        >>> result["accuracy"].difference
        -0.5
    """
    for name, pair in (("logits", logits), ("probs", probs)):
        if pair is not None and len(pair) != 2:
            raise ValueError(f"{name} must be a pair (first, second), got {len(pair)}")
    first, second = (
        _evaluation(
            target,
            None if logits is None else logits[i],
            None if probs is None else probs[i],
            num_bins,
            ignore_index,
            validate,
            splits,
        )
        for i in range(2)
    )
    check_resampling(first.num_units, resamples, level)
    before, after = first.measure(), second.measure()
    seed = draw_seed(generator)
    draws = [
        resample(each, resamples, generator=torch.Generator().manual_seed(seed))
        for each in (first, second)
    ]
    result = {}
    for name in before:
        difference = after[name] - before[name]
        low, high = centred_interval(draws[1][name] - draws[0][name], difference, level=level)
        result[name] = Comparison(before[name], after[name], difference, low, high)
    return result


def _evaluation(
    target: Tensor,
    logits: Tensor | None,
    probs: Tensor | None,
    num_bins: int,
    ignore_index: int,
    validate: bool,
    splits: bool,
) -> Evaluation:
    check_integer("num_bins", num_bins, low=1)
    predictions = numpy_to_tensor(probs if logits is None else logits)
    if predictions is None or (logits is not None and probs is not None):
        got = "none" if predictions is None else "both"
        raise ValueError(f"give exactly one of logits= and probs=, got {got}")
    return Evaluation(
        predictions,
        numpy_to_tensor(target),
        from_logits=logits is not None,
        num_bins=num_bins,
        ignore_index=ignore_index,
        validate=validate,
        splits=splits,
    )
