"""Selective classification: does confidence tell which predictions to reject?

Label smoothing can improve calibration and yet spoil the ranking by which mistakes are rejected
(Xia et al., ICLR 2025, arXiv 2403.14715), so both belong in every table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.metrics.histogram import Groups, group_by_value
from sfumato.metrics.scored_samples import score


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, from the highest threshold to the lowest."""

    coverage: Tensor  # (T,) share of predictions with confidence >= threshold
    risk: Tensor  # (T,) share of these that are wrong
    threshold: Tensor  # (T,)


def risk_coverage(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> RiskCoverage:
    """Error rate of the predictions that are kept, for every threshold on the confidence.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...).
        target: class indices; (N,) or (N, d1, ...).
        ignore_index: label of entries that count for nothing.
        validate: check that rows sum to one and labels are in range.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> risk_coverage(probs, torch.tensor([0, 0, 1, 1])).risk
        tensor([0.0000, 0.0000, 0.3333, 0.2500], dtype=torch.float64)

    Reference: Geifman & El-Yaniv, Selective Classification for Deep Neural Networks (NIPS 2017).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return risk_coverage_of_groups(group_by_value(samples))


def risk_coverage_of_groups(groups: Groups) -> RiskCoverage:
    """The risk-coverage curve of grouped predictions."""
    kept, wrong = groups.count.flip(-1).cumsum(-1), groups.wrong.flip(-1).cumsum(-1)
    total = groups.count.sum(-1, keepdim=True)
    return RiskCoverage(kept / total, wrong / kept, groups.upper.flip(-1))


def aurc(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Area under the risk-coverage curve: mean over k of the error of the k most confident.

    AURC = 1/N sum_{k=1}^N risk_k. Equal confidences count as their average over all orders.
    Args as in `risk_coverage`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> aurc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.1458, dtype=torch.float64)

    Reference: Geifman et al., Bias-Reduced Uncertainty Estimation (ICLR 2019).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return aurc_of_groups(group_by_value(samples))


def aurc_of_groups(groups: Groups) -> Tensor:
    """`aurc` of grouped predictions, (...).

    A group of m predictions with w wrong, after n0 more confident ones with w0 wrong, adds
    sum_{k = n0+1}^{n0+m} (w0 + (k - n0) w/m) / k = w + (w0 - n0 w/m) (H(n0+m) - H(n0)),
    with H the harmonic numbers: the average over all orders inside the group.
    """
    count, wrong = groups.count.flip(-1), groups.wrong.flip(-1)
    reached = count.cumsum(-1)
    before, wrong_before = reached - count, wrong.cumsum(-1) - wrong
    share = wrong / count.clamp(min=1)
    harmonic = torch.digamma(reached + 1) - torch.digamma(before + 1)
    areas = wrong + (wrong_before - before * share) * harmonic
    return areas.sum(-1) / groups.count.sum(-1)


def excess_aurc(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """AURC less the least that any ranking of the same predictions could reach.

    Args as in `risk_coverage`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> excess_aurc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.0833, dtype=torch.float64)

    Reference: Geifman et al., Bias-Reduced Uncertainty Estimation (ICLR 2019).

    Differs: the best area is the exact finite sum, not its limit r + (1 - r) ln(1 - r).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return excess_aurc_of_groups(group_by_value(samples))


def excess_aurc_of_groups(groups: Groups) -> Tensor:
    """`excess_aurc` of grouped predictions, (...)."""
    total, correct, wrong = (x.sum(-1) for x in (groups.count, groups.correct, groups.wrong))
    harmonic = torch.digamma(total + 1) - torch.digamma(correct + 1)
    return aurc_of_groups(groups) - (wrong - correct * harmonic) / total


def augrc(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Area under the generalised risk-coverage curve: the mean risk of a silent failure.

    The generalised risk of a threshold is the share of all predictions that is accepted and wrong;
    AUGRC is its mean over the coverage. In AURC the few most confident predictions weigh most
    (the first is in every risk_k, with weight 1 / k); here every mistake weighs by how many
    predictions are less confident: AUGRC = (1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2, between 0
    and 1/2. Equal confidences count as their average over all orders. Args as in `risk_coverage`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> augrc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.0938, dtype=torch.float64)

    Reference: Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems (NeurIPS 2024, arXiv 2407.01032).
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return augrc_of_groups(group_by_value(samples))


def augrc_of_groups(groups: Groups) -> Tensor:
    """`augrc` of grouped predictions, (...): trapezoids of the wrong ones that are accepted."""
    count, wrong = groups.count.flip(-1), groups.wrong.flip(-1)
    middle = wrong.cumsum(-1) - wrong / 2
    return (count * middle).sum(-1) / groups.count.sum(-1).square()


def accuracy_at_coverage(
    probs: Tensor,
    target: Tensor,
    *,
    coverage: float = 0.8,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Accuracy of the most confident share of the predictions.

    Keeps ceil(coverage N) predictions; of equal confidences at the border, a proportional share.
    Args as in `risk_coverage`, and:

    Args:
        coverage: share of the predictions that is kept, in (0, 1].

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> accuracy_at_coverage(probs, torch.tensor([0, 0, 1, 1]), coverage=0.5)
        tensor(1., dtype=torch.float64)
    """
    check_number("coverage", coverage, low=0.0, high=1.0, open_low=True)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return accuracy_at_coverage_of_groups(group_by_value(samples), coverage)


def accuracy_at_coverage_of_groups(groups: Groups, coverage: float) -> Tensor:
    """`accuracy_at_coverage` of grouped predictions, (...)."""
    if not groups.count.shape[-1]:
        return groups.count.new_full(groups.count.shape[:-1], torch.nan)
    count, correct = groups.count.flip(-1), groups.correct.flip(-1)
    reached, hits = count.cumsum(-1), correct.cumsum(-1)
    # In floating point 0.07 * 100 is a little above 7; the slack keeps it from becoming 8.
    kept = torch.ceil(reached[..., -1:] * (coverage - 1e-12)).clamp(min=1)
    place = torch.searchsorted(reached, kept).clamp(max=count.shape[-1] - 1)
    missing = kept - (reached - count).gather(-1, place)
    share = (correct / count.clamp(min=1)).gather(-1, place)
    accepted = (hits - correct).gather(-1, place) + missing * share
    return (accepted / kept).squeeze(-1).where(reached[..., -1] > 0, torch.nan)


def confidence_auroc(
    probs: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Probability that a correct prediction is more confident than a wrong one.

    The area under the ROC curve of confidence as a detector of mistakes; ties count one half.
    0.5 is no better than chance. NaN where no prediction, or every one, is wrong. Args as in
    `risk_coverage`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> confidence_auroc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.6667, dtype=torch.float64)
    """
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    return auroc_of_groups(group_by_value(samples))


def auroc_of_groups(groups: Groups) -> Tensor:
    """`confidence_auroc` of grouped predictions, (...)."""
    below = groups.wrong.cumsum(-1) - groups.wrong / 2
    return (groups.correct * below).sum(-1) / (groups.correct.sum(-1) * groups.wrong.sum(-1))
