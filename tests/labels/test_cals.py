"""Class-adaptive label smoothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import CALSLoss, cals_loss, cals_penalty, cross_entropy_loss
from tools.endurance.loss_references import penalty_of


def test_against_reference() -> None:
    logits = 5 * torch.randn(8, 4, dtype=torch.float64)
    multipliers = torch.tensor([0.0, 0.3, 1e-6, 2.0], dtype=torch.float64)
    options: dict[str, Any] = {"multipliers": multipliers, "rho": 1.5, "margin": 3.0}
    found = cals_penalty(logits, **options, reduction="none")
    expected = penalty_of("cals", logits, **options, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_gradcheck() -> None:
    logits = 3 * torch.randn(3, 4, 2, dtype=torch.float64)
    logits.requires_grad_()
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])
    multipliers = torch.rand(4, dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return cals_loss(z, target, multipliers=multipliers, margin=2.0)

    assert torch.autograd.gradcheck(loss, logits)


def test_within_the_margin_it_is_cross_entropy() -> None:
    logits, target = torch.randn(6, 4), torch.randint(0, 4, (6,))
    value = cals_loss(logits, target, margin=100.0)
    torch.testing.assert_close(value, cross_entropy_loss(logits, target), rtol=1e-5, atol=1e-6)


def test_multipliers_are_mean_slopes_of_the_validation_set() -> None:
    loss = CALSLoss(3, margin=2.0)
    logits = torch.tensor([[9.0, 1.0, 0.0], [4.0, 0.0, 3.0], [0.0, 0.0, 50.0]])
    for part in (slice(0, 1), slice(1, 3)):
        loss.note_validation(logits[part], torch.tensor([0, 0, -100])[part])
    loss.end_epoch()
    slopes = [[1e-6, 1e-6 + 3, 1e-6 + 3.5], [1e-6, 1e-6 + 1, 1e-6]]
    np.testing.assert_allclose(loss.multipliers, np.mean(slopes, 0), rtol=1e-5)
    target = torch.tensor([0, 0, 2])
    expected = cals_loss(logits, target, multipliers=loss.multipliers, margin=2.0)
    assert torch.equal(loss(logits, target), expected)


def test_rho_grows_where_the_penalty_does_not_fall() -> None:
    loss = CALSLoss(2, margin=1.0, rho_every=2, rho_max=1.3)
    seen = []
    for lead in (5.0, 5.0, 0.0, 0.0, 50.0, 60.0):
        loss.note_validation(torch.tensor([[lead, 0.0]]), torch.tensor([0]))
        loss.end_epoch()
        seen.append(round(float(loss.rho), 4))
    assert seen == [1.0, 1.2, 1.2, 1.2, 1.2, 1.3]


def test_where_all_is_ignored_multipliers_stay() -> None:
    loss = CALSLoss(3, margin=1.0)
    loss.note_validation(9 * torch.randn(20, 3), torch.randint(0, 3, (20,)))
    loss.end_epoch()
    multipliers = loss.multipliers.clone()
    loss.note_validation(torch.randn(4, 3), torch.full((4,), -100))
    loss.end_epoch()
    assert torch.equal(loss.multipliers, multipliers)
    assert int(loss.completed_epochs) == 2


def test_state_resumes() -> None:
    loss, resumed = CALSLoss(5, margin=1.0), CALSLoss(5, margin=1.0)
    loss.note_validation(9 * torch.randn(20, 5), torch.randint(0, 5, (20,)))
    loss.end_epoch()
    resumed.load_state_dict(loss.state_dict())
    logits, target = torch.randn(6, 5), torch.randint(0, 5, (6,))
    assert torch.equal(resumed(logits, target), loss(logits, target))
    assert float(resumed.previous_penalty) == float(loss.previous_penalty) > 0


def test_an_epoch_needs_validation() -> None:
    with pytest.raises(RuntimeError, match="call note_validation"):
        CALSLoss(3).end_epoch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0.0}, "margin must be in"),
        ({"rho": 0.0}, "rho must be in"),
        ({"rho_max": 0.5}, "rho_max must be in"),
        ({"rho_factor": 0.9}, "rho_factor must be in"),
        ({"improvement": 1.1}, "improvement must be in"),
        ({"rho_every": 0}, "rho_every must be at least 1"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
    ],
)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CALSLoss(**{"num_classes": 3, **options})


def test_bad_multipliers() -> None:
    with pytest.raises(ValueError, match=r"multipliers must have shape \(3,\)"):
        cals_loss(torch.randn(2, 3), torch.tensor([0, 1]), multipliers=torch.ones(4))
