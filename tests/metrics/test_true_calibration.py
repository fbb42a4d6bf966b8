"""Confidence against the true posterior, and against objectness."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sfumato.metrics import (
    calibration_error,
    mean_objectness_deviation,
    true_calibration_error,
)

PROBS = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
POSTERIOR = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.5, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.1 + 0.1 + 0.3) / 3),
        ({"norm": "l2"}, math.sqrt((0.01 + 0.01 + 0.09) / 3)),
        ({"norm": "max"}, 0.3),
        ({"num_bins": 1}, (0.1 - 0.1 + 0.3) / 3),
        ({"num_bins": 10}, (0.1 + 0.1 + 0.3) / 3),
        ({"num_bins": 1, "binning": "mass"}, 0.1),
    ],
)
def test_hand_worked_values(options: dict[str, Any], expected: float) -> None:
    assert float(true_calibration_error(PROBS, POSTERIOR, **options)) == pytest.approx(expected)


def test_the_posterior_itself_is_calibrated() -> None:
    posterior = torch.randn(100, 5, dtype=torch.float64).softmax(1)
    assert float(true_calibration_error(posterior, posterior)) == 0
    binned = float(true_calibration_error(posterior, posterior, num_bins=15))
    assert binned == pytest.approx(0, abs=1e-12)


def test_binned_error_tends_to_it_with_many_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
    probs, posterior = (2 * logits).softmax(1), logits.softmax(1)
    labels = torch.multinomial(posterior, 1000, replacement=True, generator=generator)
    many = calibration_error(probs.repeat_interleave(1000, 0), labels.flatten())
    truth = true_calibration_error(probs, posterior, num_bins=15)
    assert float(many) == pytest.approx(float(truth), abs=3e-3)


def test_bad_pairs() -> None:
    with pytest.raises(ValueError, match="the same"):
        true_calibration_error(PROBS, POSTERIOR[:2])
    with pytest.raises(ValueError, match="posterior must sum to one"):
        true_calibration_error(PROBS, 2 * POSTERIOR)
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        true_calibration_error(PROBS, POSTERIOR, num_bins=0)


def test_objectness_deviation() -> None:
    objectness = torch.tensor([0.5, 0.9, 0.8], dtype=torch.float64)
    value = mean_objectness_deviation(PROBS, objectness)
    assert float(value) == pytest.approx((0.4 + 0.2 + 0.0) / 3)
    with pytest.raises(ValueError, match=r"objectness must be in \[0, 1\], got 1.5 at sample 2"):
        mean_objectness_deviation(PROBS, torch.tensor([0.5, 0.9, 1.5]))
    with pytest.raises(ValueError, match="objectness"):
        mean_objectness_deviation(PROBS, objectness[:2])
