"""Drift: the martingale by hand, its false alarms by simulation, bands and expectations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from sfumato.auditing.files import ConfidenceFile
from sfumato.auditing.judge import drift_of
from sfumato.auditing.totals import Batch, TimeSums
from sfumato.predictions import CalibrationAlarm, calibration_over_time, expected_accuracy


def stream(seed: int, n: int, gap: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, n)
    return confidence, rng.random(n) < confidence - gap


def loop_evidence(confidence: np.ndarray, correct: np.ndarray, tolerance: float) -> list[float]:
    """After each prediction, written from the equations: one bin, blocks of 32."""
    capital, bet, memory, fresh, values = 0.0, 0.0, np.zeros(3), np.zeros(3), []
    for t, (c, y) in enumerate(zip(confidence, correct, strict=True)):
        block = t // 32 + 1
        if t % 32 == 0:
            capital += 1 / (block * (block + 1))
        gap = c - y
        capital *= 1 + bet * gap - abs(bet) * tolerance
        values.append(capital + 1 / (block + 1))
        fresh += [1, gap, gap**2]
        if t % 32 == 31:
            memory, fresh = 0.97 * memory + fresh, np.zeros(3)
            mean = memory[1] / (memory[0] + 16)
            variance = (memory[2] + 4) / (memory[0] + 16)
            bet = np.sign(mean) * min(
                max(abs(mean) - tolerance, 0) / variance, 0.5 / (1 + tolerance)
            )
    return values


def test_evidence_is_the_martingale() -> None:
    confidence, correct = stream(0, 500, gap=0.1)
    alarm = CalibrationAlarm(tolerance=0.01)
    for part in np.array_split(np.arange(500), 7):  # however the stream is cut
        alarm.update(confidence[part], correct[part])
    expected = loop_evidence(confidence, correct, 0.01)
    assert alarm.evidence == pytest.approx(expected[-1], rel=1e-9)
    first = next(t for t, value in enumerate(expected) if value >= 20)
    assert alarm.raised_at == first + 1


@pytest.mark.parametrize(("tolerance", "gap", "num_bins"), [(0.0, 0.0, 1), (0.05, -0.05, 1)])
def test_false_alarms_under_continuous_looking(tolerance: float, gap: float, num_bins: int) -> None:
    """2,000 predictions, looked at after each; 5 % of 200 streams are 10, once in 200 times 18."""
    alarms = sum(
        CalibrationAlarm(tolerance=tolerance, num_bins=num_bins)
        .update(*stream(seed, 2000, gap))
        .raised
        for seed in range(200)
    )
    assert alarms <= 18


@pytest.mark.slow
def test_false_alarms_with_bins_in_long_streams() -> None:
    alarms = sum(
        CalibrationAlarm(tolerance=0.0, num_bins=5).update(*stream(seed, 20_000)).raised
        for seed in range(500)
    )
    assert alarms <= 38  # of 25 promised; more than that once in 200 times


def test_finds_a_drift_that_begins_late() -> None:
    alarm = CalibrationAlarm().update(*stream(0, 5000))
    assert not alarm.raised
    alarm.update(*stream(1, 1000, gap=0.15))
    assert alarm.raised_at is not None
    assert 5000 < alarm.raised_at < 5600


def test_bins_find_gaps_that_cancel() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.choice([0.6, 0.9], 4000)
    correct = rng.random(4000) < np.where(confidence == 0.6, 0.75, 0.75)
    assert not CalibrationAlarm().update(confidence, correct).raised
    assert CalibrationAlarm(num_bins=5).update(confidence, correct).raised


def test_band_holds_all_periods_together() -> None:
    off = 0
    for seed in range(100):
        confidence, correct = stream(seed, 2000)
        rows = calibration_over_time(confidence, correct, time=np.arange(2000), periods=10)
        off += any(row.is_off for row in rows)
    assert off <= 12  # 5 expected, more than that once in 200 times
    confidence, correct = stream(0, 2000)
    correct[1500:] = False
    order = np.random.default_rng(0).permutation(2000)
    dates = (np.datetime64("2024-01-01") + np.arange(2000))[order]
    rows = calibration_over_time(confidence[order], correct[order], time=dates, periods=4)
    assert [row.is_off for row in rows] == [False, False, False, True]
    assert rows[-1].start == np.datetime64("2024-01-01") + np.timedelta64(1500, "D")
    assert rows[-1].accuracy == 0
    assert sum(row.count for row in rows) == 2000


def test_expected_accuracy_covers() -> None:
    inside = 0
    for seed in range(200):
        confidence, correct = stream(seed, 300)
        found = expected_accuracy(confidence)
        inside += found.low <= correct.mean() <= found.high
    assert inside >= 180
    assert "calibrated" in found.assumption


@pytest.mark.parametrize(
    ("count", "gap"),
    [
        case if case in ((60, -0.2), (400, 0.4)) else pytest.param(*case, marks=pytest.mark.slow)
        for case in product((60, 400), (0.0, 0.05, -0.2, 0.4))
    ],
)
def test_no_change_raises_few_alarms_however_far_off_the_model_is(count: int, gap: float) -> None:
    """With a tolerance of 0, so that nothing but the guarantee keeps it quiet."""
    raised, missed = 0, 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 0.8, count + 3000)
        correct = rng.random(len(confidence)) < confidence - gap
        first = (confidence[:count], correct[:count])
        alarm = CalibrationAlarm(0.1, tolerance=0.0, reference=first)
        low, high = alarm.reference_interval
        missed += not low <= gap <= high
        raised += alarm.update(confidence[count:], correct[count:]).raised
    assert missed <= 14  # of 7.5 at most
    assert raised <= 22  # of 15 at most


def test_an_audit_holds_its_level_over_both_alarms() -> None:
    """Calibrated, and off from the start: no drift, so at most 5 % may be told of one."""
    changes, gaps = 0, 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 0.95, 2000)
        for gap in (0.0, 0.3):
            file = ConfidenceFile(
                name="model",
                confidence=torch.from_numpy(confidence),
                correct=torch.from_numpy(rng.random(2000) < confidence - gap),
                times=torch.arange(2000, dtype=torch.float64) * 3600,
                is_dated=True,
            )
            sums = TimeSums()
            batch = Batch(file)
            sums.add(batch)
            drift = drift_of(file, batch.found, sums.named())
            assert drift is not None
            changes += drift["alarm"] is not None
            gaps += gap == 0 and (
                drift["from_start"] or drift["miscalibration"]["after"] is not None
            )
            assert drift["from_start"] or gap == 0
    assert changes + gaps <= 12  # of 120 calibrated and 120 steady ones, 12 at most


def test_nothing_new_changes_nothing() -> None:
    alarm = CalibrationAlarm().update([0.9] * 40, [1] * 40)
    before = alarm.evidence
    for confidence, correct in (([], []), (np.empty(0), np.empty(0)), (torch.empty(0), [])):
        assert alarm.update(confidence, correct) is alarm
    assert (alarm.seen, alarm.evidence) == (40, before)
    with pytest.raises(ValueError, match=r"confidence must be \(N,\) with N >= 1"):
        alarm.update([], [1])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="alpha must be below 1"):
        CalibrationAlarm(1.0)
    with pytest.raises(ValueError, match=r"confidence must be numbers in \[0, 1\]"):
        CalibrationAlarm().update([2.0], [1])
    with pytest.raises(ValueError, match="num_bins must be 1 with a reference"):
        CalibrationAlarm(num_bins=2, reference=([0.5], [1]))
    with pytest.raises(ValueError, match=r"time must be \(2,\)"):
        calibration_over_time([0.5, 0.5], [1, 0], time=[1])
