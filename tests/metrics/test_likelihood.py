"""Negative log likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.metrics import NegativeLogLikelihood, negative_log_likelihood

Case = tuple[Tensor, Tensor, Callable[[str], float]]


def test_hand_worked_value() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    value = negative_log_likelihood(probs, torch.tensor([0, 1]))
    assert float(value) == pytest.approx(math.log(8) / 2)


def test_golden(case: Case) -> None:
    probs, target, number = case
    # float32 inputs, so their logarithms carry 1e-7 each; "edge" is infinite on both sides.
    assert float(negative_log_likelihood(probs, target)) == pytest.approx(number("nll"), rel=1e-8)
    floored = negative_log_likelihood(probs.double(), target, floor=1e-12)
    assert float(floored) == pytest.approx(number("nll_clip1e-12"), rel=1e-12)


def test_stream_from_logits_is_cross_entropy() -> None:
    logits, target = 4 * torch.randn(300, 12, dtype=torch.float64), torch.randint(12, (300,))
    target[::5] = -100
    metric = NegativeLogLikelihood(from_logits=True)
    for part, labels in zip(logits.split(64), target.split(64), strict=True):
        metric.update(part, labels)
    torch.testing.assert_close(metric.compute(), F.cross_entropy(logits, target))


def test_impossible_label_is_infinite_and_stays_so() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    target = torch.tensor([1, 0])
    assert negative_log_likelihood(probs, target) == torch.inf
    metric = NegativeLogLikelihood()
    metric.update(probs[:1], target[:1])
    metric.update(probs[1:], target[1:])
    assert metric.compute() == torch.inf
    assert metric.interval() == (math.inf, math.inf)


def test_interval_is_that_of_a_mean() -> None:
    logits, target = torch.randn(5000, 4, dtype=torch.float64), torch.randint(4, (5000,))
    metric = NegativeLogLikelihood(from_logits=True)
    metric.update(logits, target)
    losses = F.cross_entropy(logits, target, reduction="none")
    half = 1.959964 * float(losses.std(correction=0)) / math.sqrt(5000)
    low, high = metric.interval()
    mean = float(losses.mean())
    assert (low, high) == pytest.approx((mean - half, mean + half))


def test_edges() -> None:
    probs = torch.tensor([[0.5, 0.5]])
    assert math.isnan(negative_log_likelihood(probs, torch.tensor([-100])))
    with pytest.raises(ValueError, match="floor must be in"):
        negative_log_likelihood(probs, torch.tensor([0]), floor=2.0)
