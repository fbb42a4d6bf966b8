"""Accuracy, top-1 and top-k."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sfumato.metrics import Accuracy, TopKAccuracy, accuracy

Case = tuple[Tensor, Tensor, Callable[[str], float]]
PROBS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]])
TARGET = torch.tensor([0, 2, 0, 1])


@pytest.mark.parametrize(("top_k", "expected"), [(1, 0.5), (2, 1.0), (3, 1.0), (9, 1.0)])
def test_hand_worked_value(top_k: int, expected: float) -> None:
    assert float(accuracy(PROBS, TARGET, top_k=top_k)) == expected
    metric = TopKAccuracy(top_k=top_k)
    metric.update(PROBS[:3], TARGET[:3])
    metric.update(PROBS[3:], TARGET[3:])
    assert float(metric.compute()) == expected


def test_top_k_agrees_with_topk() -> None:
    probs, target = torch.randn(400, 9).softmax(1), torch.randint(9, (400,))
    for k in (1, 3, 5):
        named = probs.topk(k, 1).indices == target.unsqueeze(1)
        assert float(accuracy(probs, target, top_k=k)) == float(named.any(1).double().mean())


def test_golden(case: Case) -> None:
    probs, target, number = case
    assert float(accuracy(probs, target)) == number("accuracy")
    metric = Accuracy()
    metric.update(probs, target)
    assert float(metric.compute()) == pytest.approx(number("accuracy"), rel=1e-15)


def test_uniform_predictions_are_not_all_correct() -> None:
    probs, target = torch.full((10, 10), 0.1), torch.arange(10)
    assert float(accuracy(probs, target)) == 0.1
    metric = Accuracy()
    metric.update(probs, target)
    assert float(metric.compute()) == pytest.approx(0.1)


def test_edges() -> None:
    assert math.isnan(accuracy(PROBS, torch.full((4,), -100)))
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        accuracy(PROBS, TARGET, top_k=0)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        TopKAccuracy(top_k=0)


def test_top_1_and_top_5_stay_apart_in_a_collection() -> None:
    # Both are 1 on the first batch; a collection merges metrics whose states agree then.
    from torchmetrics import MetricCollection

    both = MetricCollection({"top1": TopKAccuracy(top_k=1), "top2": TopKAccuracy(top_k=2)})
    both.update(PROBS[:1], TARGET[:1])
    both.update(PROBS[1:], TARGET[1:])
    values = both.compute()
    assert (float(values["top1"]), float(values["top2"])) == (0.5, 1.0)
