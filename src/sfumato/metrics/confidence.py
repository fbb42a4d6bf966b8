"""Mean confidence: over all predictions, over the wrong ones, over the correct ones."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.metrics.histogram import Groups, group_by_bin
from sfumato.metrics.scored_samples import score


def average_confidence(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Mean probability of the predicted class, E[p].

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...); read only to skip `ignore_index`.
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> average_confidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.8000, dtype=torch.float64)
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return average_of_groups(group_by_bin(samples, 1))


def overconfidence(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Mean confidence of the wrong predictions, o(f) = E[p | prediction != label].

    Zero where no prediction is wrong; NaN where there is no sample. Args as in
    `average_confidence`.

    Example:
        >>> overconfidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.7000, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return overconfidence_of_groups(group_by_bin(samples, 1))


def underconfidence(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Mean uncertainty of the correct predictions, u(f) = E[1 - p | prediction = label].

    Zero where no prediction is correct; NaN where there is no sample. Args as in
    `average_confidence`.

    Example:
        >>> underconfidence(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
        tensor(0.1000, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return underconfidence_of_groups(group_by_bin(samples, 1))


def accuracy_of_groups(groups: Groups) -> Tensor:
    """Share of correct predictions, (...)."""
    return groups.correct.sum(-1) / groups.count.sum(-1)


def average_of_groups(groups: Groups) -> Tensor:
    """Mean confidence, (...)."""
    return groups.confidence.sum(-1) / groups.count.sum(-1)


def overconfidence_of_groups(groups: Groups) -> Tensor:
    """Mean confidence of wrong predictions, (...)."""
    confidence = (groups.confidence - groups.confidence_correct).sum(-1)
    return _mean_or_zero(confidence, groups.wrong.sum(-1), groups)


def underconfidence_of_groups(groups: Groups) -> Tensor:
    """Mean of 1 - confidence of correct predictions, (...)."""
    correct = groups.correct.sum(-1)
    return _mean_or_zero(correct - groups.confidence_correct.sum(-1), correct, groups)


def _mean_or_zero(total: Tensor, count: Tensor, groups: Groups) -> Tensor:
    mean = total / count.clamp(min=1)
    return mean.where(groups.count.sum(-1) > 0, torch.nan)
