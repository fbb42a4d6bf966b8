"""Max suppression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.labels import MaxSupLoss, cross_entropy_loss, maxsup_loss, maxsup_penalty
from tools.endurance.loss_references import reference


def test_against_reference() -> None:
    logits = 3 * torch.randn(6, 5, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, 4, 0])
    expected = reference("maxsup", logits, target, weight=0.15, reduction="none")
    found = maxsup_loss(logits, target, weight=0.15, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_released_form() -> None:
    """The script's two lines: cross entropy and lam * (topk(1) - mean), both averaged."""
    logits, target = torch.randn(8, 7, requires_grad=True), torch.randint(0, 7, (8,))
    extra = logits.topk(1, -1)[0] - logits.mean(-1, keepdim=True)
    released = F.cross_entropy(logits, target) + 0.1 * extra.mean()
    ours = maxsup_loss(logits, target)
    torch.testing.assert_close(ours, released)
    slopes = (torch.autograd.grad(each, logits)[0] for each in (ours, released))
    torch.testing.assert_close(*slopes)


def test_is_label_smoothing_where_the_prediction_is_right() -> None:
    logits = torch.randn(4, 6, dtype=torch.float64)
    target = logits.argmax(1)
    smoothed = cross_entropy_loss(logits, target, smoothing=0.1)
    torch.testing.assert_close(maxsup_loss(logits, target, weight=0.1), smoothed)


def test_limits() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        maxsup_loss(logits, target, weight=0.0), cross_entropy_loss(logits, target)
    )
    assert maxsup_penalty(torch.full((2, 4), 7.0)).item() == pytest.approx(0.0, abs=1e-6)


def test_gradcheck() -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])

    def loss(z: Tensor) -> Tensor:
        return maxsup_loss(z, target, weight=0.7)

    assert torch.autograd.gradcheck(loss, logits)


def test_weight_rises_from_the_first_epoch_to_the_last_and_resumes() -> None:
    loss = MaxSupLoss(epochs=5)
    seen = []
    for _ in range(5):
        seen.append(loss.current_weight)
        loss.end_epoch()
    np.testing.assert_allclose(seen, [0.1, 0.125, 0.15, 0.175, 0.2])
    assert loss.current_weight == 0.2
    resumed = MaxSupLoss(epochs=9)
    resumed.load_state_dict(loss.state_dict())
    assert resumed.current_weight == pytest.approx(0.1 + 0.1 * 5 / 8)
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = maxsup_loss(logits, target, weight=resumed.current_weight)
    assert torch.equal(resumed(logits, target), expected)


def test_one_epoch_has_the_first_weight() -> None:
    assert MaxSupLoss().current_weight == 0.1


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="weight must be"):
        maxsup_loss(torch.randn(2, 3), torch.tensor([0, 1]), weight=-0.1)
    with pytest.raises(ValueError, match="last_weight must be"):
        MaxSupLoss(last_weight=-0.1)
    with pytest.raises(ValueError, match="epochs must be"):
        MaxSupLoss(epochs=-1)
