"""Entropy confidence penalty."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import ECPLoss, cross_entropy_loss, ecp_loss, entropy_penalty
from tools.endurance.loss_references import penalty_of


def test_by_hand() -> None:
    # p = (3/4, 1/4): sum p log p = log(3) * 3/4 - log(4).
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    expected = (0.75 * math.log(3) - math.log(4)) / 2
    assert entropy_penalty(logits).item() == pytest.approx(expected, rel=1e-14)
    value = ecp_loss(logits, torch.tensor([0]), weight=0.5).item()
    assert value == pytest.approx(math.log(4 / 3) + 0.5 * expected, rel=1e-14)


def test_against_reference() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    for reduction in ("none", "mean"):
        expected = penalty_of("ecp", logits, weight=1.0, reduction=reduction)
        found = entropy_penalty(logits, reduction=reduction)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_golden(check_golden: Callable[..., int]) -> None:
    # The released code clamps probabilities at 1e-10, which adds up to 2.3e-9 / C for each class it
    # clamps: without an absolute tolerance a nearly certain single pixel misses 1e-6 by a third.
    assert check_golden("ecp", ecp_loss, atol=1e-10) == 10

    def entropy(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
        return -entropy_penalty(logits, target, ignore_index=ignore_index)

    compared = check_golden("ecp", entropy, value="entropy", gradient="entropy_grad", atol=2e-9)
    assert compared == 7


def test_limits() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        ecp_loss(logits, target, weight=0.0), cross_entropy_loss(logits, target)
    )
    uniform = entropy_penalty(torch.full((2, 8), 7.0))
    assert uniform.item() == pytest.approx(-math.log(8) / 8)
    assert entropy_penalty(torch.tensor([[1e4, 0.0, -1e4]])).item() == 0.0


def test_masked_class_has_no_entropy() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    penalty = entropy_penalty(logits)
    (slope,) = torch.autograd.grad(penalty, logits)
    torch.testing.assert_close(penalty, entropy_penalty(logits[:, ::2]) * 2 / 3)
    assert slope[0, 1] == 0.0
    (again,) = torch.autograd.grad(entropy_penalty(logits), logits, create_graph=True)
    torch.testing.assert_close(again.detach(), slope)


def test_gradcheck() -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])

    def loss(z: Tensor) -> Tensor:
        return ecp_loss(z, target, weight=0.7)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)
    assert torch.autograd.gradcheck(lambda z: entropy_penalty(z, target), logits)


def test_target_only_masks() -> None:
    logits = torch.randn(4, 3, 5)
    target = torch.randint(0, 3, (4, 5))
    target[0] = 255
    masked = entropy_penalty(logits, target, ignore_index=255)
    torch.testing.assert_close(masked, entropy_penalty(logits[1:]))


def test_bad_weight() -> None:
    with pytest.raises(ValueError, match="weight must be in"):
        ecp_loss(torch.randn(2, 3), torch.tensor([0, 1]), weight=-0.1)
    with pytest.raises(ValueError, match="weight must be in"):
        ECPLoss(weight=-0.1)


def test_module() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    weight = torch.rand(3)
    module = ECPLoss(weight=0.3, class_weight=weight)
    assert torch.equal(
        module(logits, target), ecp_loss(logits, target, weight=0.3, class_weight=weight)
    )
