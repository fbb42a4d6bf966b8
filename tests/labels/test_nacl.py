"""Neighbour-aware calibration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import NACLLoss, cross_entropy_loss, nacl_loss, neighbour_penalty
from tools.endurance.loss_references import penalty_of


def test_against_reference_with_ignored_pixels() -> None:
    logits = 2 * torch.randn(2, 3, 4, 5, dtype=torch.float64)
    target = torch.randint(0, 3, (2, 4, 5))
    target[torch.rand(target.shape) < 0.3] = 255
    expected = penalty_of("nacl", logits, target, weight=1.0, ignore_index=255, reduction="none")
    found = neighbour_penalty(logits, target, ignore_index=255, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_released_form_inside_of_a_map() -> None:
    """Away from the border the released code counts the same nine labels."""
    logits, target = torch.randn(1, 3, 5, 6), torch.randint(0, 3, (1, 5, 6))
    patches = torch.nn.functional.unfold(target[:, None].float(), 3, padding=1)
    shares = torch.stack([(patches == k).sum(1) / 9 for k in range(3)], 1).view(1, 3, 5, 6)
    released = (shares - logits).abs().mean(1)
    ours = neighbour_penalty(logits, target, reduction="none")
    torch.testing.assert_close(ours[:, 1:-1, 1:-1], released[:, 1:-1, 1:-1])


def test_what_is_ignored_may_hold_anything() -> None:
    logits = torch.randn(1, 3, 3, 3)
    target = torch.randint(0, 3, (1, 3, 3))
    target[0, 1, 1] = -100
    value = nacl_loss(logits, target)
    logits[0, :, 1, 1] = torch.tensor([torch.nan, torch.inf, 1e30])
    logits.requires_grad_()
    again = nacl_loss(logits, target)
    torch.testing.assert_close(again, value)
    (slope,) = torch.autograd.grad(again, logits)
    assert slope.isfinite().all()
    assert not slope[0, :, 1, 1].any()


def test_gradcheck() -> None:
    logits = torch.randn(1, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[[0, 1, 2], [2, -100, 1]]])

    def loss(z: Tensor) -> Tensor:
        return nacl_loss(z, target, weight=0.7)

    assert torch.autograd.gradcheck(loss, logits)


def test_limits() -> None:
    logits, target = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    torch.testing.assert_close(
        nacl_loss(logits, target, weight=0.0), cross_entropy_loss(logits, target)
    )
    same = torch.full((2, 4, 4), 1)
    label = torch.nn.functional.one_hot(same, 3).movedim(-1, 1).float()
    assert neighbour_penalty(label, same).item() == 0.0
    torch.testing.assert_close(nacl_loss(logits, label), nacl_loss(logits, same))


def test_bad_weight() -> None:
    with pytest.raises(ValueError, match="weight must be"):
        NACLLoss(weight=-0.1)
