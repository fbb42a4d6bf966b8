"""Signed and debiased calibration error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    SignedCalibrationError,
    accuracy,
    average_confidence,
    calibration_error,
    debiased_calibration_error,
    signed_calibration_error,
)

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])
Make = Callable[..., tuple[Tensor, Tensor]]


def test_hand_worked_directions() -> None:
    error = signed_calibration_error(PROBS, TARGET, num_bins=5)
    expected = [0.5 / 4, (0.1 + 0.4) / 4, 0.0]
    assert [float(part) for part in error] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_directions_add_up(make: Make, temperature: float) -> None:
    probs, target = make(1000, 4, temperature=temperature)
    error = signed_calibration_error(probs, target)
    torch.testing.assert_close(error.over + error.under, calibration_error(probs, target))
    net = average_confidence(probs, target) - accuracy(probs, target)
    torch.testing.assert_close(error.net, net)
    assert (float(error.net) > 0) == (temperature < 1)
    metric = SignedCalibrationError()
    metric.update(probs[:300], target[:300])
    metric.update(probs[300:], target[300:])
    for ours, exact in zip(metric.compute(), error, strict=True):
        torch.testing.assert_close(ours, exact)
    with pytest.raises(TypeError, match="no single value"):
        metric.interval()


def test_hand_worked_debiased() -> None:
    probs, target = torch.tensor([[0.75, 0.25]] * 8), torch.tensor([0] * 7 + [1])
    rate, gap = 7 / 8, 1 / 8
    square = gap**2 - rate * (1 - rate) / 7
    value = debiased_calibration_error(probs, target, norm="l2")
    assert float(value) == pytest.approx(math.sqrt(max(square, 0)))
    # The mean of a folded normal, by quadrature.
    deviation = math.sqrt(rate * (1 - rate) / 8)
    z = np.linspace(-9, 9, 200_001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    folded = float((np.abs(gap + deviation * z) * density).sum() * (z[1] - z[0]))
    value = debiased_calibration_error(probs, target)
    assert float(value) == pytest.approx(2 * gap - folded, abs=1e-6)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_debiased_is_nearer_to_the_truth(make: Make, norm: Any, binning: Any) -> None:
    plain, debiased = [], []
    for seed in range(20):
        probs, target = make(1000, 4, seed=seed)  # calibrated: the truth is zero
        options = {"norm": norm, "binning": binning}
        plain.append(float(calibration_error(probs, target, **options)))
        debiased.append(float(debiased_calibration_error(probs, target, **options)))
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_debiased_keeps_a_real_error(make: Make) -> None:
    probs, target = make(20_000, 4, temperature=0.4)
    plain = float(calibration_error(probs, target))
    assert float(debiased_calibration_error(probs, target)) == pytest.approx(plain, rel=0.01)


def test_bins_of_one_sample_add_nothing() -> None:
    probs, target = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 1])
    assert float(debiased_calibration_error(probs, target)) == 0
    assert float(debiased_calibration_error(probs, target, norm="l2")) == 0


def test_bad_norm() -> None:
    with pytest.raises(ValueError, match="norm must be one of"):
        debiased_calibration_error(PROBS, TARGET, norm="max")  # type: ignore[arg-type]
