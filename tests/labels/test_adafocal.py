"""AdaFocal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import AdaFocalLoss, adafocal_loss, focal_loss
from tools.endurance.loss_references import reference


def test_against_reference() -> None:
    logits = 3 * torch.randn(30, 4, dtype=torch.float64)
    target = torch.randint(0, 4, (30,))
    bins = {"gammas": torch.tensor([-1.5, 0.5, 4.0]), "edges": torch.tensor([0.2, 0.7])}
    expected = reference("adafocal", logits, target, **bins, reduction="none")
    found = adafocal_loss(logits, target, **bins, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_gradcheck_with_the_exponent_held() -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])
    gammas, edges = torch.tensor([-1.0, 2.0]), torch.tensor([0.3])

    def loss(z: Tensor) -> Tensor:
        return adafocal_loss(z, target, gammas=gammas, edges=edges)

    assert torch.autograd.gradcheck(loss, logits)


def test_it_begins_as_focal_loss() -> None:
    logits, target = torch.randn(6, 4), torch.randint(0, 4, (6,))
    torch.testing.assert_close(AdaFocalLoss()(logits, target), focal_loss(logits, target, gamma=1))


def _with_confidence(p: float, right: bool) -> tuple[list[float], int]:
    """Logits of two classes, the first predicted with probability p."""
    return [math.log(p / (1 - p)), 0.0], int(not right)


def test_exponents_follow_the_gap_of_their_bin() -> None:
    """Two bins: 0.6 sure and always right, 0.9 sure and never."""
    loss = AdaFocalLoss(num_bins=2)
    rows = [_with_confidence(0.6, True)] * 3 + [_with_confidence(0.9, False)] * 3
    logits, target = (torch.tensor(each) for each in zip(*rows, strict=True))
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    loss.note_validation(logits[order[:4]], target[order[:4]])
    loss.note_validation(logits[order[4:]], target[order[4:]])
    loss.end_epoch()
    expected = [math.exp(0.6 - 1), math.exp(0.9)]
    np.testing.assert_allclose(loss.gammas, expected, rtol=1e-5)
    np.testing.assert_allclose(loss.edges, [0.9], rtol=1e-5)
    for _ in range(4):  # 0.67 0.45 0.30 0.20 -> below the switch, it turns around
        loss.note_validation(logits, target)
        loss.end_epoch()
    assert loss.gammas[0].item() == pytest.approx(-0.2)
    loss.note_validation(logits, target)
    loss.end_epoch()
    assert loss.gammas[0].item() == pytest.approx(-0.2 * math.exp(0.4), rel=1e-5)
    for _ in range(6):
        loss.note_validation(logits, target)
        loss.end_epoch()
    np.testing.assert_allclose(loss.gammas, [-2.0, 20.0], rtol=1e-4)


def test_ignored_pixels_are_not_noted() -> None:
    loss = AdaFocalLoss(num_bins=1)
    logits = torch.tensor([[[2.0, 9.0]], [[0.0, 0.0]]]).movedim(0, 1)  # (1, 2, 2)
    loss.note_validation(logits, torch.tensor([[0, -100]]))
    loss.end_epoch()
    gap = torch.sigmoid(torch.tensor(2.0)).item() - 1
    assert loss.gammas.item() == pytest.approx(math.exp(gap), rel=1e-5)


def test_where_all_is_ignored_nothing_moves() -> None:
    loss = AdaFocalLoss(num_bins=3)
    loss.note_validation(torch.randn(40, 5), torch.randint(0, 5, (40,)))
    loss.end_epoch()
    gammas, edges = loss.gammas.clone(), loss.edges.clone()
    loss.note_validation(torch.randn(4, 5), torch.full((4,), -100))
    loss.end_epoch()
    assert torch.equal(loss.gammas, gammas)
    assert torch.equal(loss.edges, edges)


def test_fewer_samples_than_bins() -> None:
    loss = AdaFocalLoss(num_bins=5)
    loss.note_validation(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
    loss.end_epoch()
    assert (loss.edges.diff() >= 0).all()
    assert loss.gammas.isfinite().all()
    assert loss(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])).isfinite()


def test_state_resumes() -> None:
    loss, resumed = AdaFocalLoss(num_bins=3), AdaFocalLoss(num_bins=3)
    loss.note_validation(torch.randn(40, 5), torch.randint(0, 5, (40,)))
    loss.end_epoch()
    resumed.load_state_dict(loss.state_dict())
    logits, target = torch.randn(6, 5), torch.randint(0, 5, (6,))
    assert torch.equal(resumed(logits, target), loss(logits, target))


def test_an_epoch_needs_validation() -> None:
    with pytest.raises(RuntimeError, match="call note_validation"):
        AdaFocalLoss().end_epoch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"switch": 0.0}, "switch must be in"),
        ({"gamma": 0.1}, "gamma must be in"),
        ({"gamma_max": 0.5}, "gamma_max must be in"),
        ({"gamma_min": 0.0}, "gamma_min must be in"),
        ({"num_bins": 0}, "num_bins must be at least 1"),
    ],
)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaFocalLoss(**options)


def test_bad_edges() -> None:
    logits, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="edges must hold one number less than gammas"):
        adafocal_loss(logits, target, gammas=torch.ones(3), edges=torch.tensor([0.5]))
