"""Label decays and blur scale: hand-worked values, golden vectors, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.inputs import blur_label_decay, blur_scale, noise_label_decay

Golden = Callable[[str], dict[str, Any]]


def test_hand_worked_values() -> None:
    # t = 2/3: sin^2(pi/3) = 3/4, so that SNR = 1/3 and 1 / (1 + 1/3) = 3/4.
    assert float(noise_label_decay(2 / 3)) == pytest.approx(0.75)
    assert float(noise_label_decay(2 / 3, 2.0)) == pytest.approx(0.5625)
    assert float(blur_label_decay(0.25, 0.5)) == pytest.approx(0.5)
    # Half-way between 0.3 and 30 on a logarithmic scale.
    assert float(blur_scale(0.5, sigma_max=30.0)) == pytest.approx(3.0)


def test_equals_the_released_schedules(golden: Golden) -> None:
    data = golden("mollify")
    t = torch.from_numpy(data["schedule.t"])
    for row, k in enumerate(data["schedule.k"]):
        noise, blur = noise_label_decay(t, float(k)), blur_label_decay(t, float(k))
        np.testing.assert_allclose(noise, data["schedule.gamma_noise"][row], rtol=0, atol=1e-15)
        np.testing.assert_allclose(blur, data["schedule.gamma_blur"][row], rtol=0, atol=1e-15)
    for case, width in (("square32", 32), ("square64", 64), ("nonsquare", 64)):
        scale = blur_scale(torch.from_numpy(data[f"{case}.t"]), sigma_max=width)
        np.testing.assert_allclose(scale, data[f"{case}.sigma_blur"], rtol=1e-14)


@pytest.mark.parametrize("decay", [noise_label_decay, blur_label_decay])
@pytest.mark.parametrize("k", [0.5, 1.0, 3.0])
def test_decay_rises_from_zero_to_one(
    decay: Callable[[torch.Tensor, float], torch.Tensor], k: float
) -> None:
    values = decay(torch.linspace(0, 1, 101), k)
    assert values[0] == 0.0
    assert values[-1] == 1.0
    assert (values.diff() > 0).all()


def test_half_of_the_label_is_left_where_signal_equals_noise() -> None:
    assert float(noise_label_decay(0.5)) == pytest.approx(0.5)


def test_keeps_shape_and_precision() -> None:
    for dtype in (torch.float32, torch.float64):
        t = torch.rand(2, 3, dtype=dtype)
        assert noise_label_decay(t).dtype == dtype
        assert blur_label_decay(t).shape == (2, 3)
    assert blur_label_decay(1).dtype == torch.float32


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan")])
def test_temperature_outside_its_range(bad: float) -> None:
    t = torch.tensor([0.5, bad])
    for call in (noise_label_decay, blur_label_decay):
        with pytest.raises(ValueError, match=r"t must be in \[0, 1\], got"):
            call(t)
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\], got"):
        blur_scale(t, sigma_max=8.0)


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match=r"k must be in \(0, inf\), got 0"):
        noise_label_decay(0.5, 0)
    with pytest.raises(ValueError, match="sigma_min must be in"):
        blur_scale(0.5, sigma_min=0.0, sigma_max=1.0)
    with pytest.raises(ValueError, match=r"sigma_max must be in \[2, inf\), got 1"):
        blur_scale(0.5, sigma_min=2.0, sigma_max=1.0)
