"""Mean confidence of all, of wrong and of correct predictions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    AverageConfidence,
    Overconfidence,
    Underconfidence,
    average_confidence,
    overconfidence,
    underconfidence,
)

PROBS = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
TARGET = torch.tensor([0, 1, 0])
Case = tuple[Tensor, Tensor, Callable[[str], float]]
PAIRS = [
    (average_confidence, AverageConfidence, (0.9 + 0.6 + 0.7) / 3, "avg_confidence"),
    (overconfidence, Overconfidence, (0.6 + 0.7) / 2, "overconfidence"),
    (underconfidence, Underconfidence, 0.1, "underconfidence"),
]


@pytest.mark.parametrize(("function", "metric", "expected", "key"), PAIRS)
def test_hand_worked_value(function, metric, expected: float, key: str) -> None:
    assert float(function(PROBS, TARGET)) == pytest.approx(expected)
    stream = metric()
    stream.update(PROBS[:1], TARGET[:1])
    stream.update(PROBS[1:], TARGET[1:])
    assert float(stream.compute()) == pytest.approx(expected)


@pytest.mark.parametrize(("function", "metric", "expected", "key"), PAIRS)
def test_golden(case: Case, function, metric, expected: float, key: str) -> None:
    probs, target, number = case
    assert float(function(probs, target)) == pytest.approx(number(key), rel=1e-12)
    stream = metric()
    stream.update(probs, target)
    assert float(stream.compute()) == pytest.approx(number(key), rel=1e-12)


def test_no_wrong_prediction_is_not_overconfident() -> None:
    assert float(overconfidence(PROBS[:1], TARGET[:1])) == 0
    assert float(underconfidence(PROBS[1:], TARGET[1:])) == 0


@pytest.mark.parametrize(("function", "metric", "expected", "key"), PAIRS)
def test_nothing_to_measure_is_nan(function, metric, expected: float, key: str) -> None:
    assert math.isnan(function(PROBS, torch.full((3,), -100)))


@pytest.mark.parametrize(("function", "metric", "expected", "key"), PAIRS)
def test_ignored_samples_do_not_count(function, metric, expected: float, key: str) -> None:
    probs, target = torch.cat([PROBS, PROBS]), torch.cat([TARGET, torch.full((3,), 9)])
    assert float(function(probs, target, ignore_index=9)) == pytest.approx(expected)
