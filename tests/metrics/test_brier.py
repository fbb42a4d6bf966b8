"""Brier score and its parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import BrierScore, brier_decomposition, brier_score

Case = tuple[Tensor, Tensor, Callable[[str], float]]
Make = Callable[..., tuple[Tensor, Tensor]]


def test_hand_worked_value() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    expected = (0.5 + 2 * 0.75**2) / 2
    assert float(brier_score(probs, torch.tensor([0, 1]))) == pytest.approx(expected)


def test_golden(case: Case) -> None:
    probs, target, number = case
    assert float(brier_score(probs, target)) == pytest.approx(number("brier"), rel=1e-12)
    metric = BrierScore()
    for part, labels in zip(probs.split(97), target.split(97), strict=True):
        metric.update(part, labels)
    assert float(metric.compute()) == pytest.approx(number("brier"), rel=1e-12)


def test_stream_from_dense_logits() -> None:
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    target = torch.randint(3, (2, 4, 5))
    target[0, 0] = -100
    metric = BrierScore(from_logits=True)
    metric.update(logits[:1], target[:1])
    metric.update(logits[1:], target[1:])
    torch.testing.assert_close(metric.compute(), brier_score(logits.softmax(1), target))


def test_decomposition_agrees_with_a_loop(make: Make) -> None:
    probs, target = make(400, 3, temperature=0.5)
    calibration = refinement = 0.0
    for c in range(3):
        p, y = probs[:, c].numpy(), (target == c).numpy().astype(float)
        for b in range(8):
            inside = (p > b / 8) & (p <= (b + 1) / 8)
            if inside.any():
                weight, rate = inside.mean(), y[inside].mean()
                calibration += weight * (p[inside].mean() - rate) ** 2
                refinement += weight * rate * (1 - rate)
    parts = brier_decomposition(probs, target, num_bins=8)
    assert float(parts.calibration) == pytest.approx(calibration)
    assert float(parts.refinement) == pytest.approx(refinement)


def test_parts_add_up(make: Make) -> None:
    probs, target = make(2000, 4, temperature=0.4)
    parts = brier_decomposition(probs, target)
    total = parts.calibration + parts.refinement + parts.within_bins
    torch.testing.assert_close(total, brier_score(probs, target))
    torch.testing.assert_close(parts.uncertainty - parts.resolution, parts.refinement)
    assert abs(float(parts.within_bins)) < 0.02
    rates = np.bincount(target.numpy(), minlength=4) / 2000
    assert float(parts.uncertainty) == pytest.approx(float((rates * (1 - rates)).sum()))


def test_constant_prediction_has_no_resolution() -> None:
    probs = torch.tensor([[0.8, 0.2]]).repeat(10, 1)
    parts = brier_decomposition(probs, torch.tensor([0] * 6 + [1] * 4))
    assert float(parts.resolution) == pytest.approx(0, abs=1e-12)
    assert float(parts.calibration) == pytest.approx(2 * 0.2**2)
    assert float(parts.within_bins) == pytest.approx(0, abs=1e-7)


def test_nothing_to_measure_is_nan() -> None:
    probs, target = torch.tensor([[0.5, 0.5]]), torch.tensor([-100])
    assert math.isnan(brier_score(probs, target))
    assert all(math.isnan(part) for part in brier_decomposition(probs, target))
