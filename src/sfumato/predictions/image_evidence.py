"""Evidence that what is accepted is wrong seldom enough, where predictions come in images.

Detections of one image share its light, its crowd and its labeller: errors come together, and a
binomial test of all detections breaks its promise. Images are independent, so that each of them is
one bet: Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables by Betting, JRSS B
2024, with bets that are fixed beforehand, so that neither order nor parts of the data matter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Shares of the capital that are risked on each image, each with an equal part of it: large ones for
# few images or a wide margin, small ones for many.
_BETS = (0.99, 0.5, 0.25, 0.1, 0.03)
_HALVINGS = 60
_RISKS = 96  # at which bounds of whole curves are looked up


class ImageSteps(NamedTuple):
    """What is accepted of each image while the threshold falls, one entry for each step.

    Args:
        place: the threshold, of a descending list, at which the step is taken, (E,).
        is_first: whether it is the first of its image, (E,).
        kept: accepted predictions of the image up to there, (E,).
        wrong: wrong ones among them, (E,).
    """

    place: Tensor
    is_first: Tensor
    kept: Tensor
    wrong: Tensor


def image_steps(
    image: Tensor,
    confidence: Tensor,
    wrong: Tensor,
    thresholds: Tensor,
    count: Tensor | None = None,
) -> ImageSteps:
    """Steps of predictions, or of `count` equal ones each.

    Args:
        image: number of the image of each, (N,).
        confidence: of each, (N,).
        wrong: whether it is, (N,).
        thresholds: descending, (T,); what reaches none of them is left out.
        count: how many each stands for, (N,); None for 1.
    """
    place = torch.searchsorted(-thresholds.double(), -confidence.double())
    inside = (place < len(thresholds)).nonzero().flatten()
    order = inside[place[inside].argsort(stable=True)]
    order = order[image[order].argsort(stable=True)]
    image, place = image[order], place[order]
    size = torch.ones(len(order)).double() if count is None else count[order].double()
    is_first = torch.ones_like(image, dtype=torch.bool)
    is_first[1:] = image[1:] != image[:-1]
    sums = [_within(each, is_first) for each in (size, size * wrong[order])]
    return ImageSteps(place, is_first, *sums)


def _within(values: Tensor, is_first: Tensor) -> Tensor:
    """Sums up to each entry, beginning anew with each image; counts, so that nothing is rounded."""
    sums = values.cumsum(0)
    start = is_first.nonzero().flatten()
    return sums - (sums - values)[start][is_first.cumsum(0) - 1]


def accepted_counts(steps: ImageSteps, thresholds: int) -> tuple[Tensor, Tensor]:
    """Accepted predictions at each threshold, and wrong ones among them, (T,) each."""
    found = []
    for sums in (steps.kept, steps.wrong):
        found.append(_by_threshold(_increase(sums, steps), steps, thresholds).long())
    return found[0], found[1]


def images_at(steps: ImageSteps, place: int) -> tuple[Tensor, Tensor]:
    """Accepted predictions at one threshold of each image that has any, and wrong ones."""
    reached = steps.place <= place
    follows = torch.zeros_like(reached)
    follows[:-1] = reached[1:] & ~steps.is_first[1:]
    last = reached & ~follows
    return steps.kept[last], steps.wrong[last]


def log_evidence(steps: ImageSteps, thresholds: int, risk: float, most: float) -> Tensor:
    """Logarithm of the evidence against "at least `risk` is wrong", at each threshold, (T,).

        evidence = mean_j prod_i (1 + s_j w_i (risk n_i - k_i) / ((1 - risk) most))

    with n_i accepted predictions of image i, k_i of them wrong, w_i = min(1, most / n_i), and the
    shares s_j of the capital. Under that hypothesis, sum_i w_i k_i / sum_i w_i n_i >= risk in
    expectation, no factor is expected to be above 1, nor is their product: evidence of 1 / delta or
    more has a probability of at most delta, for any number of images and any dependence inside.
    """
    values = _log_bets(steps.kept, steps.wrong, risk, most)
    sums = _by_threshold(_increase(values, steps), steps, thresholds)
    return sums.logsumexp(1) - math.log(len(_BETS))


def evidence_bound(kept: Tensor, wrong: Tensor, level: float, most: float) -> float:
    """The risk above which the evidence against it reaches 1 / level, of images at one threshold.

    It is below the true risk with a probability of at most `level`; 1 where nothing can be said.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        risk = (low + high) / 2
        sums = _log_bets(kept, wrong, risk, most).sum(0)
        enough = float(sums.logsumexp(0)) - math.log(len(_BETS)) >= -math.log(level)
        low, high = (low, risk) if enough else (risk, high)
    return high


def evidence_bounds(steps: ImageSteps, thresholds: int, level: float, most: float) -> Tensor:
    """`evidence_bound` at each threshold, (T,), on straight lines between 96 risks."""
    found = torch.ones(thresholds, dtype=torch.float64)
    enough, before, last = -math.log(level), None, 1.0
    for number in range(_RISKS - 1, 0, -1):
        risk = (number / _RISKS) ** 2
        evidence = log_evidence(steps, thresholds, risk, most)
        if before is not None:  # evidence falls with the risk
            share = ((before - enough) / (before - evidence)).clamp(0, 1)
            crosses = (before >= enough) & (evidence < enough)
            found = (last - share * (last - risk)).where(crosses, found)
        found = torch.where(evidence >= enough, risk, found)
        before, last = evidence, risk
        if not bool((evidence >= enough).any()):
            break
    return found


def _log_bets(kept: Tensor, wrong: Tensor, risk: float, most: float) -> Tensor:
    """Growth of the capital by each entry with each bet, (E, J)."""
    weight = (most / kept).clamp(max=1)
    gain = weight * (risk * kept - wrong) / ((1 - risk) * most)
    return torch.log1p(gain[:, None] * torch.tensor(_BETS, dtype=torch.float64))


def _increase(values: Tensor, steps: ImageSteps) -> Tensor:
    """What each step adds to the value of its image."""
    before = torch.zeros_like(values)
    before[1:] = values[:-1]
    before[steps.is_first] = 0
    return values - before


def _by_threshold(increase: Tensor, steps: ImageSteps, thresholds: int) -> Tensor:
    """Sums over all images at each threshold, (T, ...)."""
    sums = increase.new_zeros(thresholds, *increase.shape[1:])
    return sums.index_add_(0, steps.place, increase).cumsum(0)
