"""Several thresholds whose promises hold together: one per class, or accept, escalate, reject."""

from __future__ import annotations

from typing import Any, NamedTuple

from sfumato._core.arrays import like_input, to_codes, to_labels, to_outcomes, to_scores, to_tensor
from sfumato._core.checks import check_open_share
from sfumato.predictions.risk_threshold import MOST_PER_IMAGE, RiskThreshold, risk_threshold


def class_risk_thresholds(
    confidence: Any,
    correct: Any,
    predicted: Any,
    *,
    target_risk: float,
    delta: float = 0.05,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> dict[int, RiskThreshold]:
    """A threshold for each predicted class; all promises hold together with 1 - delta.

    Errors are seldom spread evenly: a class that is often confused needs a higher threshold than
    the others. `delta` is divided among the classes that occur.

    Args:
        confidence: of each prediction, (N,).
        correct: whether it was right, (N,).
        predicted: the class that was predicted, (N,).
        target_risk: the error of what is accepted, in every class.
        delta: how often any of the promises may be broken.
        images: the image of each, where predictions of one are not independent, (N,).
        most_per_image: as how many accepted ones an image counts at most; see `risk_threshold`.

    Returns:
        For each class that was predicted at least once its `RiskThreshold`; `coverage` is the share
        of the class.
    """
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores))
    classes = to_labels("predicted", predicted, len(scores), 2**62)
    codes = None if images is None else to_codes("images", images, len(scores))
    seen = classes.unique().tolist()
    return {
        number: risk_threshold(
            scores[classes == number],
            right[classes == number],
            target_risk=target_risk,
            delta=delta / len(seen),
            images=None if codes is None else codes[classes == number],
            most_per_image=most_per_image,
        )
        for number in seen
    }


class DecisionThresholds(NamedTuple):
    """Two thresholds: accept from the upper one on, escalate between them, reject below."""

    accept: RiskThreshold
    escalate: RiskThreshold

    def decide(self, confidence: Any) -> Any:
        """0 accept, 1 escalate, 2 reject, for each confidence; array in, array out."""
        values = to_tensor("confidence", confidence)
        kept = self.escalate.accept(values)
        return like_input(2 - kept.long() - (kept & self.accept.accept(values)).long(), confidence)


def decision_thresholds(
    confidence: Any,
    correct: Any,
    *,
    accept_risk: float,
    escalate_risk: float,
    delta: float = 0.05,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> DecisionThresholds:
    """Accept, escalate or reject: two thresholds whose promises hold together.

    What is accepted is wrong in at most `accept_risk`; what is not rejected, that is accepted or
    shown to a person, in at most `escalate_risk`. Each has half of `delta`.

    Args:
        confidence: of each prediction, (N,).
        correct: whether it was right, (N,).
        accept_risk: error of what is accepted.
        escalate_risk: error of what is accepted or escalated, at least `accept_risk`.
        delta: how often either promise may be broken.
        images: the image of each, where predictions of one are not independent, (N,).
        most_per_image: as how many accepted ones an image counts at most; see `risk_threshold`.

    Example:
        >>> import torch
        >>> confidence = torch.linspace(0.5, 1, 2000)
        >>> found = decision_thresholds(
        ...     confidence, confidence > 0.6, accept_risk=0.01, escalate_risk=0.1
        ... )
        >>> found.decide(torch.tensor([0.9, 0.58, 0.5]))
        tensor([0, 1, 2])
    """
    check_open_share("accept_risk", accept_risk)
    if not accept_risk <= escalate_risk:
        raise ValueError(
            f"escalate_risk must be at least accept_risk {accept_risk:g}, got {escalate_risk!r}: "
            "what is escalated is less sure than what is accepted"
        )
    upper, lower = (
        risk_threshold(
            confidence,
            correct,
            target_risk=risk,
            delta=delta / 2,
            images=images,
            most_per_image=most_per_image,
        )
        for risk in (accept_risk, escalate_risk)
    )
    return DecisionThresholds(upper, lower)
