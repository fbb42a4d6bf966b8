"""Focal loss and FLSD."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.labels import FLSDLoss, FocalLoss, cross_entropy_loss, flsd_loss, focal_loss
from tools.endurance.loss_references import reference


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0]])  # p_y = 1/2
    value = focal_loss(logits, torch.tensor([0]), gamma=2.0)
    assert value.item() == pytest.approx(0.25 * math.log(2))


@pytest.mark.parametrize("rule", ["paper", "released"])
@pytest.mark.parametrize("gamma", [3.0, 2.0])
def test_flsd_against_reference(rule: Any, gamma: float) -> None:
    logits = torch.randn(60, 9, dtype=torch.float64) * torch.linspace(0.1, 3, 60)[:, None]
    target = torch.randint(0, 9, (60,))
    p = logits.softmax(1)
    read = p.amax(1) if rule == "paper" else p.gather(1, target[:, None]).squeeze(1)
    steps = (0.2,) if rule == "paper" else (0.2, 0.5)
    assert set(torch.bucketize(read, torch.tensor(steps)).tolist()) == set(range(len(steps) + 1))
    expected = reference("flsd", logits, target, rule=rule, gamma=gamma, reduction="none")
    values = flsd_loss(logits, target, rule=rule, gamma=gamma, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_flsd_boundary_belongs_to_the_confident() -> None:
    # p = 0.2 exactly for every class.
    logits, target = torch.zeros(1, 5, dtype=torch.float64), torch.tensor([0])
    for rule in ("paper", "released"):
        value = flsd_loss(logits, target, rule=rule).item()
        assert value == pytest.approx(0.8**3 * math.log(5))


def test_golden(check_golden: Callable[..., int]) -> None:
    assert check_golden("focal3", focal_loss) == 10
    released = check_golden("flsd53", lambda z, y, **k: flsd_loss(z, y, rule="released", **k))
    assert released == 7


@pytest.mark.parametrize("rule", ["paper", "released"])
def test_flsd_keeps_the_precision_of_the_logits(rule: Any) -> None:
    logits, target = torch.randn(6, 5, requires_grad=True), torch.arange(6) % 5
    expected = torch.autograd.grad(flsd_loss(logits, target, rule=rule), logits)[0]
    torch.set_default_dtype(torch.float64)
    try:
        found = torch.autograd.grad(flsd_loss(logits, target, rule=rule), logits)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_gamma_zero_is_cross_entropy() -> None:
    logits = torch.randn(5, 3, requires_grad=True)
    target = torch.randint(0, 3, (5,))
    ours, stock = focal_loss(logits, target, gamma=0.0), cross_entropy_loss(logits, target)
    torch.testing.assert_close(ours, stock)
    torch.testing.assert_close(*(torch.autograd.grad(each, logits)[0] for each in (ours, stock)))


def test_flsd_is_focal_where_all_are_confident() -> None:
    logits = torch.tensor([[5.0, 0.0, 1.0], [0.0, 6.0, 1.0]])
    target = torch.tensor([0, 1])
    torch.testing.assert_close(flsd_loss(logits, target), focal_loss(logits, target))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("create_graph", [False, True])
def test_certain_prediction_has_finite_gradient(gamma: float, create_graph: bool) -> None:
    logits = torch.tensor([[1e4, 0.0], [-1e4, 0.0]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([0, 0]), gamma=gamma, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=create_graph)
    assert loss.item() == 1e4
    torch.testing.assert_close(gradient.detach(), torch.tensor([[0.0, 0.0], [-1.0, 1.0]]))


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_gradcheck(gamma: float) -> None:
    logits = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [1, 1], [0, 2]])
    weight = torch.rand(3, dtype=torch.float64)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return focal_loss(z, target, gamma=gamma, class_weight=weight)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


def test_class_weight_scales_entries() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    weight = torch.tensor([1.0, 2.0, 4.0])
    plain = focal_loss(logits, target, reduction="none")
    weighted = focal_loss(logits, target, class_weight=weight, reduction="none")
    torch.testing.assert_close(weighted, plain * weight[target])
    mean = focal_loss(logits, target, class_weight=weight)
    torch.testing.assert_close(mean, weighted.sum() / 8)


@pytest.mark.parametrize("loss", [focal_loss, flsd_loss])
def test_bad_input(loss: Callable[..., torch.Tensor]) -> None:
    logits, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="target must hold class indices for this loss"):
        loss(logits, torch.rand(2, 3))
    with pytest.raises(ValueError, match="gamma must be in"):
        loss(logits, target, gamma=-1.0)
    with pytest.raises(ValueError, match="rule must be one of"):
        flsd_loss(logits, target, rule="other")


def test_modules() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    weight = torch.rand(3)
    module = FocalLoss(gamma=1.0, class_weight=weight)
    expected = focal_loss(logits, target, gamma=1.0, class_weight=weight)
    assert torch.equal(module(logits, target), expected)
    module = FLSDLoss(rule="released", gamma=2.0)
    expected = flsd_loss(logits, target, rule="released", gamma=2.0)
    assert torch.equal(module(logits, target), expected)
    with pytest.raises(ValueError, match="rule must be one of"):
        FLSDLoss(rule="other")
