"""Cross entropy weighed by the Brier score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import BSCELoss, bsce_loss, cross_entropy_loss, focal_loss
from tools.endurance.loss_references import reference


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
def test_against_reference(norm: Any, gamma: float) -> None:
    logits = 3 * torch.randn(12, 5, dtype=torch.float64)
    target = torch.randint(0, 5, (12,))
    expected = reference("bsce", logits, target, gamma=gamma, norm=norm, reduction="none")
    soft = torch.nn.functional.one_hot(target, 5).double()
    for each in (target, soft):
        for stop in (True, False):
            found = bsce_loss(
                logits, each, gamma=gamma, norm=norm, stop_gradient=stop, reduction="none"
            )
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_weight_is_held_constant() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, (6,))
    p = logits.detach().softmax(1)
    label = torch.nn.functional.one_hot(target, 4).double()
    brier = (label - p).square().sum(1, keepdim=True)
    (slope,) = torch.autograd.grad(bsce_loss(logits, target, reduction="sum"), logits)
    torch.testing.assert_close(slope, brier * (p - label))


@pytest.mark.parametrize("norm", [1, 2])
def test_gradcheck_of_the_whole_form(norm: Any) -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])
    soft = torch.randn(3, 4, 2, dtype=torch.float64).softmax(1)
    for each in (target, soft):

        def loss(z: Tensor, each: Tensor = each) -> Tensor:
            return bsce_loss(z, each, norm=norm, stop_gradient=False)

        assert torch.autograd.gradcheck(loss, logits)


def test_limits() -> None:
    logits, target = torch.randn(6, 4), torch.randint(0, 4, (6,))
    torch.testing.assert_close(
        bsce_loss(logits, target, gamma=0.0), cross_entropy_loss(logits, target)
    )
    whole = bsce_loss(logits, target, gamma=3.0, norm=1, stop_gradient=False)
    torch.testing.assert_close(whole, 8 * focal_loss(logits, target, gamma=3.0))


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="gamma must be"):
        bsce_loss(torch.randn(2, 3), torch.tensor([0, 1]), gamma=-0.1)
    norm: Any = 3
    with pytest.raises(ValueError, match="norm must be one of"):
        BSCELoss(norm=norm)


@pytest.mark.parametrize("target", [torch.tensor([2]), torch.tensor([[0.1, 0.2, 0.7]])])
def test_slope_of_a_sure_and_wrong_prediction_is_not_lost(target: Tensor) -> None:
    # The second class has 4e-8, less than float32 has between p and 1, times a cost of 1000.
    slopes = []
    for dtype in (torch.float32, torch.float64):
        logits = torch.tensor([[1000.0, 983.0, 0.0]], dtype=dtype, requires_grad=True)
        goal = target.to(dtype) if target.is_floating_point() else target
        loss = bsce_loss(logits, goal, gamma=3.0, stop_gradient=False)
        slopes.append(torch.autograd.grad(loss, logits)[0].double())
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-5)
