"""Margin-based label smoothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from sfumato.labels import MbLSLoss, cross_entropy_loss, margin_penalty, mbls_loss
from tools.endurance.loss_references import penalty_of


def test_by_hand() -> None:
    # Distances to the top are 0, 3, 8: beyond the margin 2 lie 1 and 6.
    logits = torch.tensor([[5.0, 2.0, -3.0]], requires_grad=True)
    penalty = margin_penalty(logits, margin=2.0)
    penalty.backward()
    assert penalty.item() == pytest.approx(7 / 3)
    torch.testing.assert_close(logits.grad, torch.tensor([[2.0, -1.0, -1.0]]) / 3)


def test_against_reference() -> None:
    logits = torch.randn(6, 5, dtype=torch.float64) * 4
    values = margin_penalty(logits, margin=3.0, reduction="none")
    expected = penalty_of("mbls", logits, margin=3.0, weight=1.0, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "margin"), [("mbls_m10", 10.0), ("mbls_m6", 6.0)])
def test_golden(check_golden: Callable[..., int], name: str, margin: float) -> None:
    loss, penalty = partial(mbls_loss, margin=margin), partial(margin_penalty, margin=margin)
    # Tied maxima share the gradient here; the released code gives it to the first of them.
    assert check_golden(name, loss, tied_gradient=False) == 10
    compared = check_golden(
        name, penalty, value="penalty", gradient="penalty_grad", tied_gradient=False
    )
    assert compared == 10


def test_limits() -> None:
    logits, target = torch.randn(8, 5) * 10, torch.randint(0, 5, (8,))
    stock = cross_entropy_loss(logits, target)
    torch.testing.assert_close(mbls_loss(logits, target, margin=1e6), stock)
    torch.testing.assert_close(mbls_loss(logits, target, weight=0.0), stock)


def test_nothing_moves_within_the_margin() -> None:
    logits = torch.tensor([[4.0, 0.0, 1.0], [20.0, 0.0, 1.0]], requires_grad=True)
    margin_penalty(logits, margin=10.0).backward()
    assert not logits.grad[0].any()
    assert logits.grad[1].all()


def test_kink_belongs_to_the_margin() -> None:
    logits = torch.tensor([[4.0, 0.0, 4.0]], requires_grad=True)
    margin_penalty(logits, margin=4.0).backward()
    assert not logits.grad.any()


def test_ties_share_the_gradient() -> None:
    logits = torch.tensor([[4.0, 0.0, 4.0]], requires_grad=True)
    margin_penalty(logits, margin=1.0).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, -1.0, 0.5]]) / 3)


@pytest.mark.parametrize("margin", [0.0, 1.5])
def test_gradcheck(margin: float) -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64) * 3
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])

    def loss(z: Tensor) -> Tensor:
        return mbls_loss(z, target, margin=margin, weight=0.7)

    logits.requires_grad_()
    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


def test_released_average_over_ignored_is_not_repeated(golden: Callable[[str], Any]) -> None:
    arrays = golden("losses_dense")
    logits = torch.tensor(arrays["ignore_m100.logits"])
    target = torch.tensor(arrays["ignore_m100.labels"])
    released = arrays["ignore_m100.mbls_m6.released_default_loss"]
    everywhere = cross_entropy_loss(logits, target) + 0.1 * margin_penalty(logits, margin=6.0)
    np.testing.assert_allclose(everywhere, released, rtol=1e-12)
    assert abs(mbls_loss(logits, target, margin=6.0).item() - released) > 1e-4


def test_bad_parameters() -> None:
    logits, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="margin must be in"):
        mbls_loss(logits, target, margin=-1.0)
    with pytest.raises(ValueError, match="weight must be in"):
        mbls_loss(logits, target, weight=float("nan"))
    with pytest.raises(ValueError, match="margin must be in"):
        margin_penalty(logits, margin=float("inf"))
    with pytest.raises(ValueError, match="margin must be in"):
        MbLSLoss(margin=-1.0)


def test_module() -> None:
    logits, target = torch.randn(4, 3) * 9, torch.tensor([0, 1, 2, 0])
    weight = torch.rand(3)
    module = MbLSLoss(margin=2.0, weight=0.3, class_weight=weight)
    expected = mbls_loss(logits, target, margin=2.0, weight=0.3, class_weight=weight)
    assert torch.equal(module(logits, target), expected)


@given(arrays(np.float64, st.integers(2, 12), elements=st.floats(-50, 50)))
def test_proposition_1(logits: np.ndarray) -> None:
    """The penalty without margin lies between KL(uniform || softmax) and log K above that."""
    row = torch.from_numpy(logits).unsqueeze(0)
    classes = row.shape[1]
    divergence = float(-row.log_softmax(1).mean() - math.log(classes))
    penalty = float(margin_penalty(row, margin=0.0))
    slack = 1e-9 * (1 + abs(divergence))
    assert divergence - slack <= penalty <= divergence + math.log(classes) + slack


def test_proposition_1_is_tight() -> None:
    """Equal logits reach the lower bound; one far above all others comes near the upper one."""
    even, peaked = torch.zeros(1, 5).double(), torch.tensor([[60.0, 0, 0, 0, 0]]).double()
    assert float(margin_penalty(even, margin=0.0)) == 0.0
    divergence = float(-peaked.log_softmax(1).mean() - math.log(5))
    bound = divergence + math.log(5)
    assert float(margin_penalty(peaked, margin=0.0)) == pytest.approx(bound, abs=1e-12)
