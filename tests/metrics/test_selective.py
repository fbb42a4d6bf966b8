"""Selective classification: ranking by confidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from sfumato.metrics import (
    AURC,
    AccuracyAtCoverage,
    ConfidenceAUROC,
    ExcessAURC,
    accuracy_at_coverage,
    augrc,
    aurc,
    confidence_auroc,
    excess_aurc,
    risk_coverage,
)

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])
Make = Callable[..., tuple[Tensor, Tensor]]


def loop_aurc(correct: list[bool]) -> float:
    """Mean error of the k first, most confident first."""
    wrong = np.cumsum([not c for c in correct])
    return float(np.mean(wrong / np.arange(1, len(correct) + 1)))


def test_hand_worked_values() -> None:
    # By confidence: correct, correct, wrong, correct.
    curve = risk_coverage(PROBS, TARGET)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 4])
    assert curve.threshold.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert float(aurc(PROBS, TARGET)) == pytest.approx((1 / 3 + 1 / 4) / 4)
    assert float(excess_aurc(PROBS, TARGET)) == pytest.approx(1 / 3 / 4)
    assert float(augrc(PROBS, TARGET)) == pytest.approx((0.5 + 1) / 16)
    assert float(confidence_auroc(PROBS, TARGET)) == pytest.approx(2 / 3)


def test_augrc_is_the_papers_function_of_auroc_and_accuracy(make: Make) -> None:
    probs, target = make(500, 3)
    probs = (probs * 12).round().clamp(min=1)  # many equal confidences
    probs = probs / probs.sum(1, keepdim=True)
    confidence, predicted = probs.max(1)
    right = predicted == target
    accuracy = float(right.double().mean())
    area = float(binary_auroc(confidence.double(), right.long()))
    expected = (1 - area) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert float(augrc(probs, target)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("coverage", "expected"), [(0.25, 1.0), (0.5, 1.0), (0.51, 2 / 3), (0.75, 2 / 3), (1.0, 0.75)]
)
def test_accuracy_at_coverage(coverage: float, expected: float) -> None:
    value = accuracy_at_coverage(PROBS, TARGET, coverage=coverage)
    assert float(value) == pytest.approx(expected)


def test_coverage_is_not_rounded_up_by_floating_point() -> None:
    probs = torch.linspace(0.6, 0.99, 100, dtype=torch.float64)
    probs = torch.stack([probs, 1 - probs], 1)
    target = torch.ones(100, dtype=torch.long)
    target[-7:] = 0
    assert float(accuracy_at_coverage(probs, target, coverage=0.07)) == 1.0


def test_agrees_with_a_loop(make: Make) -> None:
    probs, target = make(500, 5, temperature=0.5)
    confidence, predicted = probs.max(1)
    order = confidence.argsort(descending=True)
    correct = (predicted == target)[order].tolist()
    assert float(aurc(probs, target)) == pytest.approx(loop_aurc(correct))
    best = loop_aurc(sorted(correct, reverse=True))
    assert float(excess_aurc(probs, target)) == pytest.approx(loop_aurc(correct) - best)
    assert float(accuracy_at_coverage(probs, target)) == pytest.approx(np.mean(correct[:400]))
    area = binary_auroc(confidence, (predicted == target).long())
    assert float(confidence_auroc(probs, target)) == pytest.approx(float(area), abs=1e-6)


def test_ties_are_averaged_over_all_orders() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.8, 0.8, 0.8, 0.6], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    target = torch.tensor([1, 0, 1, 1, 0, 0])
    tied = [True, False, False, True]
    areas = [loop_aurc([False, *order, True]) for order in set(itertools.permutations(tied))]
    assert float(aurc(probs, target)) == pytest.approx(np.mean(areas))
    # Three kept: the first and two of four ties, of which half are correct.
    assert float(accuracy_at_coverage(probs, target, coverage=0.5)) == pytest.approx(1 / 3)
    assert float(confidence_auroc(probs, target)) == pytest.approx((0 + 2 * 1 + 0) / 9)


def test_limits() -> None:
    sure = torch.eye(4)
    assert float(aurc(sure, torch.arange(4))) == 0
    assert float(excess_aurc(sure, torch.arange(4))) == 0
    assert float(aurc(sure, torch.arange(4).roll(1))) == pytest.approx(1)
    assert math.isnan(confidence_auroc(sure, torch.arange(4)))
    nothing = torch.full((4,), -100)
    for function in (aurc, excess_aurc, accuracy_at_coverage, confidence_auroc):
        assert math.isnan(function(sure, nothing))
    assert len(risk_coverage(sure, nothing).risk) == 0


@pytest.mark.parametrize(
    ("metric", "function"),
    [
        (AURC, aurc),
        (ExcessAURC, excess_aurc),
        (AccuracyAtCoverage, accuracy_at_coverage),
        (ConfidenceAUROC, confidence_auroc),
    ],
)
def test_streamed(make: Make, metric: type, function: Callable[..., Tensor]) -> None:
    probs, target = make(4000, 6, temperature=0.3)
    stream = metric()
    for part, labels in zip(probs.split(501), target.split(501), strict=True):
        stream.update(part, labels)
    # Predictions within 1/15,000 of each other count as tied.
    assert float(stream.compute()) == pytest.approx(float(function(probs, target)), abs=2e-4)


@pytest.mark.parametrize("coverage", [0.0, 1.5, -1.0])
def test_bad_coverage(coverage: float) -> None:
    with pytest.raises(ValueError, match="coverage must be in"):
        accuracy_at_coverage(PROBS, TARGET, coverage=coverage)
    with pytest.raises(ValueError, match="coverage must be in"):
        AccuracyAtCoverage(coverage=coverage)
