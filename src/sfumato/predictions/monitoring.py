"""Calibration over time: alarms, and the accuracy to expect without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import (
    check_integer,
    check_number,
    check_open_share,
    like_input,
    to_outcomes,
    to_scores,
    to_tensor,
)
from sfumato.predictions.scalers import check_probabilities

_BLOCK = 32  # predictions between two looks at the bets
_MEMORY = 0.97  # of what the bets are made from, per block: about the last thousand predictions
_PRIOR = 16.0  # predictions of gap 0 that are taken as seen, so that early bets are small
_LARGEST = 1e300


class CalibrationAlarm:
    """Raises an alarm when confidence and correctness part, with one false alarm rate for ever.

    Under the null hypothesis E[confidence_t - correct_t | past] is within +- `tolerance` for every
    t, or with a `reference` within `tolerance` of the mean gap there. A bet lambda_t on the
    sign of the gap, made before the outcome is known, multiplies a capital

        S_t = (S_(t-1) + w_t) (1 + lambda_t (confidence_t - correct_t) - |lambda_t| tolerance)

    that is not expected to grow, whatever the bets. w_t = 1 / (k (k + 1)) at the begin of the k-th
    block puts a share of it on each time at which the drift might begin. By Ville's inequality the
    evidence S + what is not yet put in ever reaches 1 / alpha with probability at most alpha: one
    may look after each prediction and stop at any time. The bets follow the gap of about the last
    thousand predictions.

    Args:
        alpha: probability of ever raising an alarm where nothing drifts, in (0, 1).
        tolerance: gap between confidence and accuracy that is no matter, in [0, 1). 0 asks for
            perfect calibration and will find, in time, the smallest gap.
        num_bins: bins of confidence, each with a bet of its own. More than 1 also finds gaps that
            cancel on average, under the stronger hypothesis that each confidence is right.
        reference: confidence and correct of a first period, (N,) each: the alarm is then for a
            change of the gap. Half of alpha pays for not knowing that gap exactly.

    Example:
        >>> alarm = CalibrationAlarm(alpha=0.05)
        >>> alarm.update([0.9] * 100, [1] * 90 + [0] * 10).raised
        False
        >>> alarm.update([0.9] * 300, [1, 0] * 150).raised
        True
    """

    def __init__(
        self,
        alpha: float = 0.05,
        *,
        tolerance: float = 0.02,
        num_bins: int = 1,
        reference: tuple[Any, Any] | None = None,
    ) -> None:
        check_open_share("alpha", alpha)
        check_number("tolerance", tolerance, low=0.0, high=0.99)
        check_integer("num_bins", num_bins, low=1)
        if reference is not None and num_bins > 1:
            raise ValueError(
                f"num_bins must be 1 with a reference, whose gap is known on average only, got "
                f"{num_bins}"
            )
        self.alpha, self.tolerance, self.num_bins = alpha, float(tolerance), num_bins
        self.reference_interval = (0.0, 0.0)
        if reference is not None:
            alpha /= 2
            self.reference_interval = _gap_interval(*reference, alpha)
        self._level = alpha
        self._low = self.reference_interval[0] - self.tolerance
        self._high = self.reference_interval[1] + self.tolerance
        self.seen = 0
        self.raised_at: int | None = None
        self._capital = 0.0
        self._bets = np.zeros(num_bins)
        self._sums = np.zeros((3, num_bins))  # weight, sum of gaps, sum of squares; fading
        self._current = np.zeros((3, num_bins))  # of the block that is not complete

    @property
    def raised(self) -> bool:
        """True if the evidence ever reached 1 / alpha."""
        return self.raised_at is not None

    @property
    def evidence(self) -> float:
        """How many times the capital has grown; 1 / alpha (2 / alpha with a reference) alarms."""
        return self._capital + self._unplaced

    @property
    def _unplaced(self) -> float:
        """The part of the first unit of capital that is not yet put on any begin."""
        return 1 / (-(-self.seen // _BLOCK) + 1)

    def update(self, confidence: Any, correct: Any) -> CalibrationAlarm:
        """Add predictions in the order of time, (N,) each, none too; returns itself."""
        if not len(to_tensor("confidence", confidence)) and not len(to_tensor("correct", correct)):
            return self  # a quiet hour is no news
        scores = to_scores("confidence", confidence)
        right = to_outcomes("correct", correct, len(scores)).cpu().numpy()
        values = scores.cpu().numpy()
        gaps = values - right
        bins = np.minimum((values * self.num_bins).astype(np.int64), self.num_bins - 1)
        start = 0
        while start < len(gaps):  # blocks are counted from the first prediction ever seen
            stop = start + _BLOCK - self.seen % _BLOCK
            self._add(gaps[start:stop], bins[start:stop])
            start = stop
        return self

    def _add(self, gaps: np.ndarray, bins: np.ndarray) -> None:
        """Predictions of one block."""
        begins, before = self.seen % _BLOCK == 0, self._unplaced
        self.seen += len(gaps)
        if begins:  # capital is placed before the outcomes of a block are seen
            self._capital += before - self._unplaced
        bets = self._bets[bins]
        growth = 1 + bets * gaps - np.where(bets > 0, bets * self._high, bets * self._low)
        capital = np.minimum(self._capital * np.cumprod(growth), _LARGEST)
        over = capital + self._unplaced >= 1 / self._level
        if not self.raised and over.any():
            self.raised_at = self.seen - len(gaps) + int(over.argmax()) + 1
        self._capital = float(capital[-1])
        columns = np.stack([np.ones_like(gaps), gaps, gaps**2])
        for row, column in zip(self._current, columns, strict=True):
            np.add.at(row, bins, column)
        if self.seen % _BLOCK == 0:
            self._bet()

    def _bet(self) -> None:
        """Bets of the next block: the gap beyond the bounds over the variance, at most 1/2."""
        self._sums = _MEMORY * self._sums + self._current
        self._current = np.zeros_like(self._current)
        weight, total, squares = self._sums
        centre = (self._low + self._high) / 2
        mean = (total + _PRIOR * centre) / (weight + _PRIOR)
        around = squares - 2 * centre * total + centre**2 * weight
        variance = (around + _PRIOR / 4) / (weight + _PRIOR)
        beyond = np.maximum(mean - self._high, 0.0) + np.minimum(mean - self._low, 0.0)
        # Half of what could lose everything: the capital stays positive whatever comes.
        most = 0.5 / (1 + max(abs(self._low), abs(self._high)))
        self._bets = np.clip(beyond / variance, -most, most)

    def __repr__(self) -> str:
        state = f"raised at {self.raised_at}" if self.raised else "quiet"
        return f"CalibrationAlarm(alpha={self.alpha:g}, seen={self.seen}, {state})"


def _gap_interval(confidence: Any, correct: Any, alpha: float) -> tuple[float, float]:
    """Interval of the mean gap that misses it with probability at most alpha, for any N.

    A gap m is outside where bets on larger, or on smaller gaps than m, multiply their capital by
    2 / alpha; their sizes are fixed before each outcome is seen (Waudby-Smith and Ramdas, Sec. 4).
    """
    scores = to_scores("reference[0]", confidence)
    right = to_outcomes("reference[1]", correct, len(scores)).cpu().numpy()
    gaps = scores.cpu().numpy() - right
    seen = np.arange(1, len(gaps) + 1)
    means = np.cumsum(gaps) / (seen + 1)
    squares = (0.25 + np.cumsum((gaps - means) ** 2)) / (seen + 1)
    before = np.concatenate([[0.25], squares[:-1]])
    needed = math.log(2 / alpha)
    # Gaps are within 2 of any m.
    bets = np.minimum(np.sqrt(2 * needed / (len(gaps) * before)), 0.25)

    def bound(sign: int) -> float:
        inside, outside = float(gaps.mean()), -float(sign)
        for _ in range(50):
            middle = (inside + outside) / 2
            if np.log1p(sign * bets * (gaps - middle)).sum() >= needed:
                outside = middle
            else:
                inside = middle
        return outside

    return bound(1), bound(-1)


@dataclass(frozen=True)
class Period:
    """Predictions of one stretch of time.

    Args:
        start, end: time of the first and of the last.
        count: how many.
        confidence, accuracy: mean confidence, and share that was right.
        gap: confidence - accuracy.
        low, high: ends of the gap's interval; all intervals hold together.
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
        """True if the interval of the gap excludes 0."""
        return self.low > 0 or self.high < 0


def calibration_over_time(
    confidence: Any, correct: Any, *, time: Any, periods: int = 20, level: float = 0.95
) -> list[Period]:
    """Mean confidence and accuracy of successive stretches with equal numbers of predictions.

    The band of the gap is gap +- z s / sqrt(n), s the standard deviation of confidence - correct,
    with z for `periods` intervals that hold together (Bonferroni). To decide while data come in use
    `CalibrationAlarm`: who looks at bands again and again will see one off.

    Args:
        confidence: (N,) in [0, 1].
        correct: (N,).
        time: of each prediction; numbers, dates or anything that sorts, (N,).
        periods: number of stretches; fewer where there are fewer than 2 predictions for each.
        level: probability that all intervals cover.

    Example:
        >>> rows = calibration_over_time(
        ...     [0.9] * 100, [1] * 50 + [0] * 50, time=range(100), periods=2
        ... )
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
    is_number = times.dtype.kind in "biuf"
    start, end = (each.item() if is_number else each for each in times[[0, -1]])
    means = float(confidence.mean()), float(correct.mean())
    return Period(start, end, len(excess), *means, gap, gap - half, gap + half)


class ExpectedAccuracy(NamedTuple):
    """The accuracy that confidences claim, and what has to be true for that."""

    accuracy: float
    low: float
    high: float
    assumption: str


def expected_accuracy(confidence: Any, *, level: float = 0.95) -> ExpectedAccuracy:
    """Accuracy to expect of predictions without labels: the mean of their confidences.

    The number of right ones among independent predictions has the mean sum c and the variance sum
    c (1 - c), if each confidence is right. This can't see a drift that the model does not see:
    label a sample now and then, and compare.

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


class Expected(NamedTuple):
    """A measure that calibrated probabilities claim, one number a class, with its interval."""

    value: Any
    low: Any
    high: Any


class ExpectedPerformance(NamedTuple):
    """Measures to expect of each class, (C,) each: NaN where it is never, or always, expected.

    Args:
        precision: share of the predictions of the class that are right.
        recall: share of the class's samples that are predicted as such.
        auroc: chance that a sample of the class has a higher probability of it than another one.
    """

    precision: Expected
    recall: Expected
    auroc: Expected


def expected_performance(probs: Any, *, level: float = 0.95) -> ExpectedPerformance:
    """Estimate precision, recall and AUROC of each class without labels, from probabilities.

        precision_c = sum_i [c predicted] p_ic / sum_i [c predicted]
        recall_c    = sum_i [c predicted] p_ic / sum_i p_ic
        AUROC_c     = sum_ij p_ic (1 - p_jc) ([p_ic > p_jc] + [p_ic = p_jc] / 2)
                      / (sum_i p_ic  sum_j (1 - p_jc))

    Each is that of the confusion matrix that is expected where every probability is right:
    calibrate them first. The interval is of these samples' own measure, whose labels are drawn with
    the probabilities: a normal one with the variance sum_i p_ic (1 - p_ic) d_i^2, d_i the
    derivative by the label of i.

    Args:
        probs: (N, C) with C >= 2; the class with the highest one is predicted.
        level: probability that an interval is to cover, one class at a time.

    Example:
        >>> found = expected_performance([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
        >>> found.precision.value.tolist(), found.recall.value.round(decimals=3).tolist()
        ([0.75, 0.8], [0.882, 0.615])

    Reference:
        Bialek et al., Estimating Model Performance Under Covariate Shift Without Labels, 2024
        (CBPE); the interval is ours.
    """
    check_open_share("level", level)
    rows = to_tensor("probs", probs)
    if rows.ndim != 2 or rows.shape[1] < 2 or not len(rows):
        raise ValueError(
            f"probs must be (N, C) with N >= 1 and C >= 2 classes, got {tuple(rows.shape)}"
        )
    rows = rows.double()
    check_probabilities(rows)
    chosen = torch.zeros_like(rows).scatter_(1, rows.argmax(1, keepdim=True), 1.0)
    total, hits = rows.sum(0), (chosen * rows).sum(0)
    recall = hits / total
    measures = {
        "precision": (hits / chosen.sum(0), chosen / chosen.sum(0)),
        "recall": (recall, (chosen - recall) / total),
        "auroc": _expected_auroc(rows),
    }
    half = NormalDist().inv_cdf((1 + level) / 2)
    doubt = rows * (1 - rows)
    found = {}
    for name, (value, slope) in measures.items():
        error = half * (doubt * slope.square()).sum(0).sqrt()
        ends = (value, (value - error).clamp(min=0), (value + error).clamp(max=1))
        found[name] = Expected(*(like_input(each, probs) for each in ends))
    return ExpectedPerformance(**found)


def _expected_auroc(rows: Tensor) -> tuple[Tensor, Tensor]:
    """AUROC of each class, (C,), and its derivative by the label of each sample, (N, C)."""
    values, slopes = [], []
    for column in rows.unbind(1):
        seen, place = column.unique(return_inverse=True)
        of_class, of_others = (
            torch.zeros_like(seen).index_add_(0, place, each) for each in (column, 1 - column)
        )
        # Samples of other classes below each probability, and of the class above it; ties are half.
        below = of_others.cumsum(0) - of_others / 2
        above = of_class.flip(0).cumsum(0).flip(0) - of_class / 2
        positive, negative = of_class.sum(), of_others.sum()
        value = (of_class * below).sum() / (positive * negative)
        slope = (below - above) / (positive * negative) - value / positive + value / negative
        values.append(value)
        slopes.append(slope[place])
    return torch.stack(values), torch.stack(slopes, 1)
