"""Powers of what a prediction misses, where it misses next to nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sfumato.labels import adafocal_loss, bsce_loss, dual_focal_loss, flsd_loss, focal_loss
from sfumato.labels.focal import power_of_miss

SCALES = (1.0, 10.0, 30.0, 100.0, 1000.0)
EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.3, 3.0)
LOSSES: dict[str, Callable[..., Tensor]] = {
    "focal": focal_loss,
    "dual focal": dual_focal_loss,
    "bsce, norm 1": partial(bsce_loss, norm=1, stop_gradient=False),
    "bsce, norm 2": partial(bsce_loss, norm=2, stop_gradient=False),
    "adafocal": lambda z, y, gamma: adafocal_loss(z, y, gammas=torch.tensor([gamma])),
    "flsd": flsd_loss,
}


def _second(loss: Callable[..., Tensor], logits: Tensor, target: Tensor) -> Tensor:
    """The Hessian of the loss times a vector."""
    logits = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(logits, target), logits, create_graph=True)
    direction = torch.arange(1.0, 1 + logits.shape[1]).to(logits)
    (product,) = torch.autograd.grad((slope * direction).sum(), logits)
    return product


@pytest.mark.parametrize("gamma", EXPONENTS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", SCALES)
def test_second_derivatives_are_right_at_any_scale(name: str, gamma: float, scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(64, 4, generator=draw)
    target = torch.randint(0, 4, (64,), generator=draw)
    loss: Any = partial(LOSSES[name], gamma=gamma)
    ours, exact = (_second(loss, each, target) for each in (logits, logits.double()))
    # B^(g/2 - 1) B'' and B^(g/2 - 2) B'^2 of the Brier score cancel, and are large where g < 1.
    atol = 1e-3 if name == "bsce, norm 2" and gamma < 1 else 1e-6
    torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("gap", [5.0, 20.0, 44.0, 60.0, 90.0, 200.0])
def test_second_derivative_of_a_sure_prediction_by_hand(gamma: float, gap: float) -> None:
    """Of two classes, with miss m: L = m^g (-log(1 - m)), dm/dz = -m (1 - m)."""
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64, requires_grad=True)
    value = focal_loss(logits, torch.tensor([0]), gamma=gamma)
    (slope,) = torch.autograd.grad(value, logits, create_graph=True)
    (second,) = torch.autograd.grad(slope[0, 0], logits)
    expected = (gamma + 1) ** 2 * math.exp(-(gamma + 1) * gap)  # L ~ m^(g + 1), m ~ exp(-z)
    assert second[0, 0].item() == pytest.approx(expected, rel=0.1, abs=1e-20)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0, torch.tensor([0.5, 1.5, 1.0])])
def test_values_are_powers_down_to_nothing(exponent: float | Tensor) -> None:
    least = float(exponent.min()) if isinstance(exponent, Tensor) else exponent
    miss = torch.tensor([0.25, 1e-30, 0.0])
    torch.testing.assert_close(power_of_miss(miss, exponent, least=least), miss**exponent)
