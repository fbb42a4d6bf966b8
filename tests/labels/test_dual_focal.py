"""Dual focal loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import DualFocalLoss, cross_entropy_loss, dual_focal_loss
from tools.endurance.loss_references import reference


def test_by_hand() -> None:
    logits = torch.tensor([[6.0, 3.0, 1.0]], dtype=torch.float64).log()  # p = 0.6, 0.3, 0.1
    for label, p, below in ((0, 0.6, 0.3), (1, 0.3, 0.1), (2, 0.1, 0.0)):
        value = dual_focal_loss(logits, torch.tensor([label]), gamma=2.0).item()
        assert value == pytest.approx(-((1 - p + below) ** 2) * math.log(p), rel=1e-12)


def test_against_reference() -> None:
    logits = 3 * torch.randn(20, 5, dtype=torch.float64)
    target = torch.randint(0, 5, (20,))
    expected = reference("dual_focal", logits, target, reduction="none")
    found = dual_focal_loss(logits, target, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_gradcheck_on_maps_with_ignored_pixels() -> None:
    logits = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, (2, 2, 2))
    target[0, 0, 0] = -100

    def loss(z: Tensor) -> Tensor:
        return dual_focal_loss(z, target, gamma=2.3)

    assert torch.autograd.gradcheck(loss, logits)


def test_what_is_ignored_may_hold_anything() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [torch.nan, 1e30, -torch.inf], [1e30, 0.0, 1.0]])
    logits.requires_grad_()
    value = dual_focal_loss(logits, torch.tensor([0, -100, -100]))
    (slope,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(value, dual_focal_loss(logits[:1], torch.tensor([0])))
    assert slope[0].abs().sum() > 0
    assert not slope[1:].any()


def test_limits() -> None:
    logits, target = torch.randn(6, 4), torch.randint(0, 4, (6,))
    torch.testing.assert_close(
        dual_focal_loss(logits, target, gamma=0.0), cross_entropy_loss(logits, target)
    )
    tied = torch.zeros(1, 3, requires_grad=True)  # no class is below the label
    value = dual_focal_loss(tied, torch.tensor([1]), gamma=1.0)
    assert value.item() == pytest.approx(2 / 3 * math.log(3))
    assert torch.autograd.grad(value, tied)[0].isfinite().all()


def test_bad_gamma() -> None:
    with pytest.raises(ValueError, match="gamma must be"):
        DualFocalLoss(gamma=-1.0)
