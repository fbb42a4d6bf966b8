"""The floor of a calibration error is the mean ECE of simulated perfect networks."""

from __future__ import annotations

import math

import pytest
import torch

from sfumato.metrics import calibration_error, calibration_floor
from sfumato.metrics.calibration import binomial_deviation


def test_two_samples_by_hand() -> None:
    """Of two at 0.9 both are right with 0.81 (gap 0.2), one with 0.18 (0.8), none with 0.01."""
    probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    expected = (0.81 * 0.2 + 0.18 * 0.8 + 0.01 * 1.8) / 2
    assert float(calibration_floor(probs)) == pytest.approx(expected)


def test_deviation_equals_the_sum_over_the_distribution() -> None:
    for n, p in ((1, 0.3), (7, 0.5), (40, 0.99), (200, 0.07), (3, 1.0), (5, 0.0), (0, 0.4)):
        expected = sum(
            math.comb(n, k) * p**k * (1 - p) ** (n - k) * abs(k - n * p) for k in range(n + 1)
        )
        found = binomial_deviation(*torch.tensor([n, p], dtype=torch.float64))
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_is_what_perfect_networks_show() -> None:
    generator = torch.Generator().manual_seed(0)
    top = 0.5 + 0.5 * torch.rand(300, generator=generator, dtype=torch.float64).sqrt()
    probs = torch.stack([top, 1 - top], 1)
    shown = [
        float(calibration_error(probs, (torch.rand(300, generator=generator) > top).long()))
        for _ in range(400)
    ]
    mean = sum(shown) / len(shown)
    assert float(calibration_floor(probs)) == pytest.approx(mean, rel=0.03)
    assert mean > 0.03  # far from zero, which is the point


def test_edges() -> None:
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(calibration_floor(certain)) == 0
    assert math.isnan(float(calibration_floor(certain[:0])))
    with pytest.raises(ValueError, match=r"probs must be \(N, C\), got \(2, 2, 3\)"):
        calibration_floor(torch.full((2, 2, 3), 0.5))
    with pytest.raises(ValueError, match="probs must sum to one"):
        calibration_floor(torch.tensor([[3.0, 1.0]]))
