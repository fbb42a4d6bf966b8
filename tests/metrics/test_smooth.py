"""Calibration error without bins."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    KSCalibrationError,
    SmoothCalibrationError,
    ks_calibration_error,
    smooth_calibration_error,
)

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])
Make = Callable[..., tuple[Tensor, Tensor]]


def smooth_at(confidence: np.ndarray, residual: np.ndarray, width: float) -> float:
    """The integral of the definition: Gaussians of all mirror images, on 4,001 points."""
    t = np.linspace(0, 1, 4001)
    total = np.zeros_like(t)
    for shift in range(-4, 5):
        for sign in (1, -1):
            centre = sign * confidence + 2 * shift
            kernel = np.exp(-((t[:, None] - centre) ** 2) / (2 * width**2))
            total += (kernel * residual).sum(1) / (width * math.sqrt(2 * math.pi))
    heights = np.abs(total) / len(confidence)
    return float(((heights[1:] + heights[:-1]) / 2).sum() / 4000)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 3.0])
def test_smooth_error_solves_its_equation(make: Make, temperature: float) -> None:
    probs, target = make(300, 3, temperature=temperature)
    value = float(smooth_calibration_error(probs, target))
    confidence = probs.amax(1).numpy()
    residual = confidence - (probs.argmax(1) == target).numpy()
    # The mesh of 2,000 points moves confidences by up to 0.0005.
    assert smooth_at(confidence, residual, value) == pytest.approx(value, abs=1e-3)


def test_smooth_error_of_one_confidence_is_its_gap() -> None:
    # One confidence: the kernel keeps its mass, so the error is |gap| at any width.
    probs = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
    assert float(smooth_calibration_error(probs, torch.arange(100) // 60)) == pytest.approx(0.2)


def test_smooth_error_is_continuous_where_ece_jumps() -> None:
    from sfumato.metrics import calibration_error

    target = torch.tensor([0] * 50 + [1] * 50)
    values, binned = [], []
    for shift in (-1e-4, 1e-4):
        # Correct at 0.5, wrong at 0.45: one bin or two, as the confidence moves over the edge.
        confidence = torch.full((100,), 0.5 + shift, dtype=torch.float64)
        confidence[50:] = 0.45
        rest = (1 - confidence) / 2
        probs = torch.stack([confidence, rest, rest], 1)
        values.append(float(smooth_calibration_error(probs, target)))
        binned.append(float(calibration_error(probs, target, num_bins=2)))
    assert abs(values[0] - values[1]) < 0.005
    assert abs(binned[0] - binned[1]) > 0.4


def test_smooth_error_streamed(make: Make) -> None:
    probs, target = make(2000, 4, temperature=0.5)
    metric = SmoothCalibrationError()
    metric.update(probs[:700], target[:700])
    metric.update(probs[700:], target[700:])
    exact = float(smooth_calibration_error(probs, target))
    assert float(metric.compute()) == pytest.approx(exact, abs=1e-4)


def test_hand_worked_ks() -> None:
    # Ascending: 0.6 - 1, 0.7 - 0, 0.8 - 1, 0.9 - 1 -> sums -0.4, 0.3, 0.1, 0.0
    assert float(ks_calibration_error(PROBS, TARGET)) == pytest.approx(0.4 / 4)


def test_ks_agrees_with_a_loop(make: Make) -> None:
    probs, target = make(500, 4, temperature=0.6)
    confidence, predicted = probs.max(1)
    total, highest = 0.0, 0.0
    for i in confidence.argsort().tolist():
        total += float(confidence[i]) - float(predicted[i] == target[i])
        highest = max(highest, abs(total))
    assert float(ks_calibration_error(probs, target)) == pytest.approx(highest / 500)
    metric = KSCalibrationError()
    metric.update(probs, target)
    assert float(metric.compute()) == pytest.approx(highest / 500, abs=1 / 500)


@pytest.mark.parametrize("function", [smooth_calibration_error, ks_calibration_error])
def test_nothing_to_measure_is_nan(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert math.isnan(function(PROBS, torch.full((4,), -100)))
