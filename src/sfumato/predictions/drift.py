"""`CalibrationAlarm`: does the confidence still hold today? Safe to be looked at all the time.

A test martingale in the sense of Ville; bets after Waudby-Smith and Ramdas, Estimating Means of
Bounded Random Variables by Betting, JRSS B 2024; unknown time of change as in Shin, Ramdas and
Rinaldo, E-detectors, 2022 (arXiv 2203.03532).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato._core.arrays import to_outcomes, to_scores
from sfumato._core.checks import check_integer, check_number, check_open_share

_BLOCK = 32  # predictions between two looks at the bets
_MEMORY = 0.97  # of what the bets are made from, per block: about the last thousand predictions
_PRIOR = 16.0  # predictions of gap 0 that are taken as seen, so that early bets are small
_LARGEST = 1e300


class CalibrationAlarm:
    """Raises an alarm when confidence and correctness part, with one false alarm rate for ever.

    Under the null hypothesis E[confidence_t - correct_t | past] is within +- `tolerance` for every
    t. A bet lambda_t on the sign of the gap, made before the outcome is known, multiplies a capital

        S_t = (S_(t-1) + w_t) (1 + lambda_t (confidence_t - correct_t) - |lambda_t| tolerance)

    that is not expected to grow, whatever the bets: w_t = 1 / (k (k + 1)) at the begin of the k-th
    block puts a share of the capital on each time at which the drift might begin. By Ville's
    inequality the evidence S + what is not yet put in ever reaches 1 / alpha with probability at
    most alpha, so that one may look after each prediction and stop at any time. The size of the
    bets follows the gap of about the last thousand predictions.

    Args:
        alpha: probability of ever raising an alarm where nothing drifts, in (0, 1).
        tolerance: gap between confidence and accuracy that is no matter, in [0, 1). A tolerance of
            0 asks for perfect calibration and will find, in time, the smallest gap.
        num_bins: bins of confidence, each with a bet of its own. More than 1 also finds gaps that
            cancel on average, under the stronger hypothesis that each confidence is right.

    Raises:
        ValueError: confidences outside [0, 1], other lengths.

    Example:
        >>> alarm = CalibrationAlarm(alpha=0.05)
        >>> alarm.update([0.9] * 100, [1] * 90 + [0] * 10).raised
        False
        >>> alarm.update([0.9] * 300, [1, 0] * 150).raised
        True
    """

    def __init__(self, alpha: float = 0.05, *, tolerance: float = 0.02, num_bins: int = 1) -> None:
        check_open_share("alpha", alpha)
        check_number("tolerance", tolerance, low=0.0, high=0.99)
        check_integer("num_bins", num_bins, low=1)
        self.alpha, self.tolerance, self.num_bins = alpha, float(tolerance), num_bins
        self.seen = 0
        self.raised_at: int | None = None
        self._capital = 0.0
        self._bets = np.zeros(num_bins)
        self._sums = np.zeros((3, num_bins))  # weight, sum of gaps, sum of squares; fading
        self._current = np.zeros((3, num_bins))  # of the block that is not complete

    @property
    def raised(self) -> bool:
        """Whether the evidence ever reached 1 / alpha."""
        return self.raised_at is not None

    @property
    def evidence(self) -> float:
        """The e-value: how many times the capital has grown; 1 / alpha raises the alarm."""
        return self._capital + self._unplaced

    @property
    def _unplaced(self) -> float:
        """What of the first unit of capital is not yet put on any begin."""
        blocks = -(-self.seen // _BLOCK)
        return 1 / (blocks + 1)

    def update(self, confidence: Any, correct: Any) -> CalibrationAlarm:
        """Add predictions in the order of time, (N,) each; returns itself."""
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
        before = self._unplaced
        if self.seen % _BLOCK == 0:
            self.seen += len(gaps)
            self._capital += before - self._unplaced
        else:
            self.seen += len(gaps)
        bets = self._bets[bins]
        growth = 1 + bets * gaps - np.abs(bets) * self.tolerance
        capital = np.minimum(self._capital * np.cumprod(growth), _LARGEST)
        over = capital + self._unplaced >= 1 / self.alpha
        if not self.raised and over.any():
            self.raised_at = self.seen - len(gaps) + int(over.argmax()) + 1
        self._capital = float(capital[-1])
        columns = np.stack([np.ones_like(gaps), gaps, gaps**2])
        for row, column in zip(self._current, columns, strict=True):
            np.add.at(row, bins, column)
        if self.seen % _BLOCK == 0:
            self._bet()

    def _bet(self) -> None:
        """Bets of the next block: the gap beyond the tolerance over the variance, at most 1/2."""
        self._sums = _MEMORY * self._sums + self._current
        self._current = np.zeros_like(self._current)
        weight, total, squares = self._sums
        mean = total / (weight + _PRIOR)
        variance = (squares + _PRIOR / 4) / (weight + _PRIOR)
        size = np.maximum(np.abs(mean) - self.tolerance, 0.0) / variance
        self._bets = np.sign(mean) * np.minimum(size, 0.5 / (1 + self.tolerance))

    def __repr__(self) -> str:
        state = f"raised at {self.raised_at}" if self.raised else "quiet"
        return f"CalibrationAlarm(alpha={self.alpha:g}, seen={self.seen}, {state})"
