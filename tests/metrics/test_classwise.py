"""Class-wise calibration error."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import ClasswiseCalibrationError, classwise_calibration_error

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])
Case = tuple[Tensor, Tensor, Callable[[str], float]]


def test_hand_worked_value() -> None:
    # class 0: -0.1, 1.5 - 1, 0.4; class 1: 0.3, -0.7, -0.4; each over 4 samples
    each = classwise_calibration_error(PROBS, TARGET, num_bins=5, reduction="none")
    assert each.tolist() == pytest.approx([1.0 / 4, 1.4 / 4])
    assert float(classwise_calibration_error(PROBS, TARGET, num_bins=5)) == pytest.approx(0.3)


def test_golden(case: Case) -> None:
    probs, target, number = case
    value = classwise_calibration_error(probs, target)
    assert float(value) == pytest.approx(number("cwece15_closed_first"), rel=1e-12)
    metric = ClasswiseCalibrationError(probs.shape[1])
    for part, labels in zip(probs.split(97), target.split(97), strict=True):
        metric.update(part, labels)
    assert float(metric.compute()) == pytest.approx(number("cwece15_closed_first"), rel=1e-12)


def test_golden_per_class(golden: Callable[[str], dict[str, Any]]) -> None:
    arrays = golden("metrics")
    probs, target = (torch.from_numpy(arrays[f"edge.{k}"]) for k in ("probs", "labels"))
    each = classwise_calibration_error(probs, target, reduction="none")
    np.testing.assert_allclose(each, arrays["edge.cwece15_closed_first_per_class"], rtol=1e-12)


def test_released_form_drops_zeros_and_missing_classes(
    golden: Callable[[str], dict[str, Any]],
) -> None:
    # In "edge" some labels have probability exactly 0, and the last class is never a label.
    arrays = golden("metrics")
    probs, target = (torch.from_numpy(arrays[f"edge.{k}"]) for k in ("probs", "labels"))
    value = float(classwise_calibration_error(probs, target))
    assert arrays["edge.cwece15_released"] < arrays["edge.cwece15_all_classes"] < value


def test_stream_from_dense_logits() -> None:
    logits = torch.randn(2, 3, 4, 5)
    target = torch.randint(3, (2, 4, 5))
    target[0, 0] = -100
    metric = ClasswiseCalibrationError(3, from_logits=True, reduction="none")
    metric.update(logits[:1], target[:1])
    metric.update(logits[1:], target[1:])
    expected = classwise_calibration_error(logits.softmax(1), target, reduction="none")
    torch.testing.assert_close(metric.compute(), expected)


def test_edges() -> None:
    assert math.isnan(classwise_calibration_error(PROBS, torch.full((4,), -100)))
    metric = ClasswiseCalibrationError(3)
    with pytest.raises(ValueError, match="have 2 classes, not 3"):
        metric.update(PROBS, TARGET)
    with pytest.raises(ValueError, match="reduction must be one of"):
        classwise_calibration_error(PROBS, TARGET, reduction="sum")  # type: ignore[arg-type]


def test_equal_mass_against_a_loop() -> None:
    """Classwise ACE without ties: each class's samples, sorted, cut into parts of equal number."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(120, 4, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(4, (120,), generator=generator)
    errors = []
    for number in range(4):
        order = probs[:, number].argsort()
        gap = probs[order, number] - (target[order] == number).double()
        # The edge belongs to the lower bin, so the first of five holds one more, the last one less.
        cuts = [0, *(24 * k + 1 for k in range(1, 5)), 120]
        errors.append(sum(abs(float(gap[a:b].sum())) for a, b in pairwise(cuts)))
    expected = [error / 120 for error in errors]
    found = classwise_calibration_error(probs, target, num_bins=5, binning="mass", reduction="none")
    assert found.tolist() == pytest.approx(expected)
    mean = classwise_calibration_error(probs, target, num_bins=5, binning="mass")
    assert float(mean) == pytest.approx(sum(expected) / 4)


def test_equal_mass_of_a_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(3000, 5, generator=generator)).softmax(1)
    target = torch.multinomial(probs.sqrt(), 1, generator=generator).squeeze(1)
    metric = ClasswiseCalibrationError(5, binning="mass", reduction="none")
    for part, labels in zip(probs.split(700), target.split(700), strict=True):
        metric.update(part, labels)
    exact = classwise_calibration_error(probs, target, binning="mass", reduction="none")
    torch.testing.assert_close(metric.compute(), exact, rtol=0, atol=1e-3)
    zeros = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    metric = ClasswiseCalibrationError(2, binning="mass", num_bins=3)
    metric.update(zeros, torch.tensor([0, 0, 1]))
    exact = classwise_calibration_error(zeros, torch.tensor([0, 0, 1]), binning="mass", num_bins=3)
    torch.testing.assert_close(metric.compute(), exact)
