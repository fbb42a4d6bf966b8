"""Confidence beside accuracy over time, and the accuracy to expect where there are no labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from sfumato._core.arrays import to_outcomes, to_scores
from sfumato._core.checks import check_integer, check_open_share


@dataclass(frozen=True)
class Period:
    """Predictions of one stretch of time.

    Args:
        start: time of the first.
        end: time of the last.
        count: how many.
        confidence: mean confidence.
        accuracy: share that was right.
        gap: confidence - accuracy.
        low: lower end of the gap's interval; all intervals hold together.
        high: upper end.
    """

    start: Any
    end: Any
    count: int
    confidence: float
    accuracy: float
    gap: float
    low: float
    high: float

    @property
    def is_off(self) -> bool:
        """Whether the interval of the gap excludes 0."""
        return self.low > 0 or self.high < 0


def calibration_over_time(
    time: Any, confidence: Any, correct: Any, *, periods: int = 20, level: float = 0.95
) -> list[Period]:
    """Mean confidence and accuracy of successive stretches with equal numbers of predictions.

    The band of the gap is gap +- z s / sqrt(n), s the standard deviation of confidence - correct in
    the stretch, with z for `periods` intervals that hold together (Bonferroni). For a decision made
    while data come in use `CalibrationAlarm`: who looks at bands again and again will see one off.

    Args:
        time: of each prediction; numbers, dates or anything that sorts, (N,).
        confidence: (N,) in [0, 1].
        correct: (N,).
        periods: number of stretches; fewer where there are fewer than 2 predictions for each.
        level: probability that all intervals cover.

    Example:
        >>> rows = calibration_over_time(range(100), [0.9] * 100, [1] * 50 + [0] * 50, periods=2)
        >>> [(row.start, row.end, round(row.gap, 2)) for row in rows]
        [(0, 49, -0.1), (50, 99, 0.9)]
    """
    check_integer("periods", periods, low=1)
    check_open_share("level", level)
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores)).cpu().numpy()
    values, times = scores.cpu().numpy(), np.asarray(time)
    if times.shape != values.shape:
        raise ValueError(f"time must be ({len(values)},), got {times.shape}")
    order = np.argsort(times, kind="stable")
    parts = np.array_split(order, max(1, min(periods, len(order) // 2)))
    z = NormalDist().inv_cdf(1 - (1 - level) / 2 / len(parts))
    return [_period(times[part], values[part], right[part], z) for part in parts]


def _period(times: np.ndarray, confidence: np.ndarray, correct: np.ndarray, z: float) -> Period:
    excess = confidence - correct
    gap = float(excess.mean())
    # A stretch that is all right has no spread; what its confidences expect is the least there is.
    spread = max(float(excess.std()), math.sqrt(float((confidence * (1 - confidence)).mean())))
    half = z * spread / math.sqrt(len(excess))
    return Period(
        times[0].item() if times.dtype.kind in "biuf" else times[0],
        times[-1].item() if times.dtype.kind in "biuf" else times[-1],
        len(excess),
        float(confidence.mean()),
        float(correct.mean()),
        gap,
        gap - half,
        gap + half,
    )


class ExpectedAccuracy(NamedTuple):
    """The accuracy that confidences promise, and what has to be true for that."""

    accuracy: float
    low: float
    high: float
    assumption: str


def expected_accuracy(confidence: Any, *, level: float = 0.95) -> ExpectedAccuracy:
    """Accuracy to expect of predictions without labels: the mean of their confidences.

    The number of right ones among independent predictions has the mean sum c and the variance sum
    c (1 - c), if each confidence is right. This can't see a drift that the model does not see: one
    that is confidently wrong about new kinds of input will promise what it does not hold. Compare
    with the expected accuracy of labelled data, and label a sample now and then.

    Args:
        confidence: (N,) in [0, 1].
        level: probability that the interval is to cover the accuracy of these predictions.

    Example:
        >>> expected_accuracy([0.9, 0.8, 0.7, 1.0]).accuracy
        0.85
    """
    scores = to_scores("confidence", confidence)
    sums = (float(scores.sum()), float(scores.square().sum()))
    return expected_accuracy_of_sums(len(scores), *sums, level=level)


def expected_accuracy_of_sums(
    count: float, total: float, squares: float, *, level: float = 0.95
) -> ExpectedAccuracy:
    """`expected_accuracy` from the number of confidences, their sum and that of their squares."""
    check_open_share("level", level)
    mean = total / count
    error = math.sqrt(max(total - squares, 0.0)) / count
    half = NormalDist().inv_cdf((1 + level) / 2) * error
    return ExpectedAccuracy(
        round(mean, 12),
        max(mean - half, 0.0),
        min(mean + half, 1.0),
        "if the confidences are still calibrated on these data, which needs labels to check",
    )
