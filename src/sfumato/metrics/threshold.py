"""Accuracy and share of the predictions above a confidence: Acc-90, Unc-90, Freq-90."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sfumato._core.arrays import numpy_to_tensor
from sfumato._core.checks import check_number
from sfumato.metrics.scored_samples import score
from sfumato.metrics.segmentation import mean_iou


class ThresholdRates(NamedTuple):
    """What a confidence threshold keeps; for 0.9 these are Acc-90, Unc-90, Freq-90 and IoU-90.

    Args:
        accuracy: share of correct predictions among the confident ones.
        unconfident: share of unconfident predictions among the wrong ones.
        frequency: share of confident predictions.
        iou: mean intersection over union of the confident predictions.
    """

    accuracy: Tensor
    unconfident: Tensor
    frequency: Tensor
    iou: Tensor


def threshold_rates(
    probs: Tensor,
    target: Tensor,
    *,
    threshold: float = 0.9,
    ignore_index: int = -100,
    validate: bool = True,
) -> ThresholdRates:
    """Acc-90 = p(correct | p > 0.9), Unc-90 = p(p <= 0.9 | wrong), Freq-90 = p(p > 0.9).

    A share of nothing (no confident prediction, no wrong one) is NaN.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        threshold: a prediction is confident above it.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.95, 0.05], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> rates = threshold_rates(probs, torch.tensor([0, 0, 1, 1]))
        >>> [float(rate) for rate in rates[:3]]
        [1.0, 1.0, 0.25]

    Reference: the code released with Park & Kim, spatial smoothing (ICML 2022), reports them.

    Differs: its IoU leaves out classes that are predicted but are never a label; here they are 0.
    """
    check_number("threshold", threshold, low=0.0, high=1.0)
    probs, target = numpy_to_tensor(probs), numpy_to_tensor(target)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    confident = samples.confidence > threshold
    correct, sure = samples.correct.double(), confident.double()
    kept = target.long().masked_fill(probs.amax(1) <= threshold, ignore_index)
    return ThresholdRates(
        accuracy=correct[confident].mean(),
        unconfident=1 - sure[~samples.correct].mean(),
        frequency=sure.mean(),
        iou=mean_iou(probs, kept, ignore_index=ignore_index, validate=False),
    )
