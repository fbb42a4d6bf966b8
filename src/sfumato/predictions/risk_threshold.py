"""`risk_threshold`: from which confidence on a prediction may be accepted, with a guarantee.

Learn then Test: Calibrating Predictive Algorithms to Achieve Risk Control, Angelopoulos et al.,
2021 (arXiv 2110.01052), whose tests are here exact (Clopper and Pearson 1934), or bets on whole
images, and passed through by the fallback procedure of Wiens (2003).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sfumato._core.arrays import like_input, to_codes, to_outcomes, to_scores, to_tensor
from sfumato._core.binomial import binomial_tail, clopper_pearson_upper
from sfumato._core.checks import check_integer, check_open_share
from sfumato.predictions.image_evidence import (
    ImageSteps,
    accepted_counts,
    evidence_bound,
    image_steps,
    images_at,
    log_evidence,
)

# 1, and 1 - 10^(-d) for d = 7, 6.997, ... 0: as fine near 1, where networks crowd, as elsewhere.
_STEPS = 300
THRESHOLDS = (1.0, *(1 - 10 ** (-step / _STEPS) for step in range(7 * _STEPS, -1, -1)))
MOST_PER_IMAGE = 10
# The d where a sequence may begin: nine with a tenth of delta each, and four that share the last
# tenth, for models whose confidences are all low. At the last one, 0, something is always accepted.
_STARTS = (6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.3)
_LOW_STARTS = (0.1, 0.05, 0.02, 0.0)


@dataclass(frozen=True)
class RiskThreshold:
    """From which confidence on predictions may be accepted, and what that keeps.

    Args:
        target_risk: the error of what is accepted that was asked for.
        delta: probability, over draws of the data, that the error is larger even so.
        confidence: accept where the confidence is at least this; None where no threshold is found.
        coverage: share of the predictions that is accepted; None likewise.
        risk_bound: upper bound on the error of the accepted ones (Clopper-Pearson, or that of the
            bets on images) at the level that was left for this threshold, at most `target_risk`;
            None likewise.
        accepted: number of accepted predictions.
        errors: number of wrong ones among them.
        images: number of images with accepted predictions; None where predictions are independent.
        most_per_image: as how many accepted predictions an image counts at most; None likewise.
    """

    target_risk: float
    delta: float
    confidence: float | None = None
    coverage: float | None = None
    risk_bound: float | None = None
    accepted: int = 0
    errors: int = 0
    images: int | None = None
    most_per_image: int | None = None

    def accept(self, confidence: Any) -> Any:
        """True where a prediction of this confidence may be accepted; array in, array out."""
        values = to_tensor("confidence", confidence)
        if self.confidence is None:
            return like_input(torch.zeros_like(values, dtype=torch.bool), confidence)
        return like_input(values.double() >= self.confidence, confidence)


def risk_threshold(
    confidence: Any,
    correct: Any,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> RiskThreshold:
    """The lowest confidence from which on at most `target_risk` of what is accepted is wrong.

        P( P(wrong | confidence >= threshold) > target_risk ) <= delta

    over draws of the data, whatever the model and however its confidences are distributed: right
    also for small files, ties and confidences that mean nothing. Data to come must be drawn as
    these were, independently; where several predictions are of one image and so are not, name the
    `images`, and the promise needs only these to be independent.

    A list of thresholds that is fixed before the data are seen is tested from the highest down:
    with n predictions at or above t and k of them wrong, t passes where P(Binomial(n, target_risk)
    <= k) is at most the level at hand. A sequence that begins at the very top would end there, with
    a handful of predictions; so it may begin at thirteen places, nine with delta / 10 each and four
    below 0.21, which share the last tenth. A test that is passed hands its level on to the next, a
    test that is failed loses it (fallback procedure): the levels of all wrong steps add up to at
    most delta, and so the choice is paid for. Where nothing is accepted the test is failed, too:
    that no prediction was seen above a threshold says nothing of those to come.

    Args:
        confidence: of each prediction, in [0, 1]; (N,).
        correct: whether it was right; (N,).
        target_risk: the error that what is accepted may have, in (0, 1).
        delta: how often, over draws of the data, the promise may be broken; in (0, 1).
        thresholds: candidates, chosen without a look at these data, descending; every one of them
            then starts with an equal share of delta. None takes 2,102 from 1 to 0.
        images: name or number of the image that each prediction is of, (N,); any other unit that
            holds several dependent predictions does, such as a patient. Each threshold is then
            tested by bets on whole images (`image_evidence.py`).
        most_per_image: an image with more accepted predictions than this counts as this many in the
            error that is promised: without a limit one crowded image could spoil any promise. 1
            promises the mean error of images.

    Returns:
        A `RiskThreshold`, whose `confidence` is None where no threshold reaches the target.

    Raises:
        ValueError: confidences outside [0, 1], other lengths, nothing to look at.

    Example:
        >>> confidence = torch.linspace(0.5, 1, 2000)
        >>> found = risk_threshold(confidence, confidence > 0.6, target_risk=0.05)
        >>> round(found.confidence, 3), round(found.coverage, 3), round(found.risk_bound, 3)
        (0.586, 0.827, 0.043)

    Reference:
        Angelopoulos et al. 2021, Sec. 2.3.2; Wiens, A Fixed Sequence Bonferroni Procedure for
        Testing Multiple Endpoints, Pharmaceutical Statistics 2003; for classifiers that reject,
        Geifman and El-Yaniv, NIPS 2017 (there Bonferroni over a binary search).
    """
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores))
    grid = _check_thresholds(thresholds)
    if images is not None:
        places = torch.tensor(grid, dtype=torch.float64)
        return risk_threshold_of_images(
            image_steps(to_codes("images", images, len(scores)), scores, ~right, places),
            len(scores),
            target_risk=target_risk,
            delta=delta,
            thresholds=thresholds,
            most_per_image=most_per_image,
        )
    ordered, order = scores.sort(descending=True)
    wrong = torch.cat([right.new_zeros(1).long(), (~right)[order].long().cumsum(0)])
    kept = torch.searchsorted(-ordered, -torch.tensor(grid, dtype=torch.float64), right=True)
    return risk_threshold_of_counts(
        kept,
        wrong[kept],
        len(scores),
        target_risk=target_risk,
        delta=delta,
        thresholds=thresholds,
    )


def risk_threshold_of_counts(
    kept: Tensor,
    wrong: Tensor,
    total: int,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
) -> RiskThreshold:
    """`risk_threshold` from counts, so that files of any size need one number per threshold.

    Args:
        kept: predictions whose confidence is at least each threshold, (T,).
        wrong: wrong ones among them, (T,).
        total: number of predictions.
        target_risk: as in `risk_threshold`.
        delta: as in `risk_threshold`.
        thresholds: those of the counts, descending; None is `THRESHOLDS`.
    """
    check_open_share("target_risk", target_risk)
    check_open_share("delta", delta)
    grid = _check_thresholds(thresholds)
    if len(kept) != len(grid) or len(wrong) != len(grid):
        raise ValueError(
            f"kept and wrong must have one number for each of the {len(grid)} thresholds, got "
            f"{len(kept)} and {len(wrong)}"
        )
    starts = _starting_levels(delta, grid, is_own=thresholds is not None)
    # Few predictions leave most thresholds with the counts of their neighbours.
    different, place_of = torch.unique_consecutive(kept, return_inverse=True)
    errors = wrong.new_zeros(len(different)).scatter_(0, place_of, wrong)
    tails = binomial_tail(errors, different, target_risk)[place_of]
    place, level = _fallback(tails.tolist(), starts)
    if place is None:
        return RiskThreshold(target_risk, delta)
    return RiskThreshold(
        target_risk,
        delta,
        confidence=grid[place],
        coverage=int(kept[place]) / total,
        risk_bound=float(clopper_pearson_upper(wrong[place], kept[place], level)),
        accepted=int(kept[place]),
        errors=int(wrong[place]),
    )


def risk_threshold_of_images(
    steps: ImageSteps,
    total: int,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> RiskThreshold:
    """`risk_threshold` from what each image has above each threshold.

    Args:
        steps: from `image_steps` with the same thresholds.
        total: number of predictions, accepted or not.
        target_risk: as in `risk_threshold`.
        delta: as in `risk_threshold`.
        thresholds: those of the steps, descending; None is `THRESHOLDS`.
        most_per_image: as in `risk_threshold`.
    """
    check_open_share("target_risk", target_risk)
    check_open_share("delta", delta)
    check_integer("most_per_image", most_per_image, low=1)
    grid = _check_thresholds(thresholds)
    starts = _starting_levels(delta, grid, is_own=thresholds is not None)
    evidence = log_evidence(steps, len(grid), target_risk, most_per_image)
    place, level = _fallback((-evidence).exp().tolist(), starts)
    if place is None:
        return RiskThreshold(target_risk, delta, most_per_image=most_per_image)
    kept, wrong = accepted_counts(steps, len(grid))
    each = images_at(steps, place)
    return RiskThreshold(
        target_risk,
        delta,
        confidence=grid[place],
        coverage=int(kept[place]) / total,
        risk_bound=evidence_bound(*each, level, most_per_image),
        accepted=int(kept[place]),
        errors=int(wrong[place]),
        images=len(each[0]),
        most_per_image=most_per_image,
    )


def _fallback(probabilities: list[float], starts: dict[int, float]) -> tuple[int | None, float]:
    """The last place that passes, and the level it was tested at.

    Args:
        probabilities: of so few errors, or of so much evidence, if the risk were the target, one
            for each threshold.
        starts: level that is added at these places.
    """
    level, found, found_level = 0.0, None, 0.0
    for place, probability in enumerate(probabilities):
        level += starts.get(place, 0.0)
        if level > 0 and probability <= level:
            found, found_level = place, level
        else:
            level = 0.0
    return found, found_level


def _starting_levels(delta: float, grid: Sequence[float], *, is_own: bool) -> dict[int, float]:
    if is_own:
        return dict.fromkeys(range(len(grid)), delta / len(grid))
    share = delta / (len(_STARTS) + 1)
    levels = [*[share] * len(_STARTS), *[share / len(_LOW_STARTS)] * len(_LOW_STARTS)]
    places = [1 + 7 * _STEPS - round(d * _STEPS) for d in (*_STARTS, *_LOW_STARTS)]
    return dict(zip(places, levels, strict=True))


def _check_thresholds(thresholds: Sequence[float] | None) -> Sequence[float]:
    if thresholds is None:
        return THRESHOLDS
    grid = [float(value) for value in thresholds]
    if not grid or any(later >= first for first, later in pairwise(grid)):
        raise ValueError("thresholds must be descending, each once, and at least one")
    return grid
