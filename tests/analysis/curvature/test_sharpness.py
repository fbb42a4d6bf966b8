"""Expected sharpness, the 1/N law of the loss's variance, frequency responses."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.analysis import (
    expected_sharpness,
    frequency_response,
    loss_variance,
    plot_frequency_responses,
    plot_loss_variances,
)
from sfumato.analysis.curvature import ExpectedSharpness
from sfumato.features import Blur, Smooth


def test_sharpness_by_hand() -> None:
    found = ExpectedSharpness(torch.tensor([1.0, 2.0, 4.0, 5.0]).double(), centre=3.0)
    assert found.value == (0 + 0 + 1 + 2) / 4  # Eq. (17)
    assert found.about_mean == (0 + 0 + 1 + 2) / 4  # Eq. (18), the mean is 3 as well
    assert found.gaussian == pytest.approx(np.std([1, 2, 4, 5], ddof=1) / math.sqrt(2 * math.pi))


def test_gaussian_losses_obey_eq_22() -> None:
    losses = 3.0 + 0.5 * torch.randn(100000).double()
    found = ExpectedSharpness(losses, centre=3.0)
    assert found.value == pytest.approx(found.gaussian, rel=0.02)
    assert found.about_mean == pytest.approx(found.gaussian, rel=0.02)


def test_sharpness_of_a_quadratic() -> None:
    """|eps|^2 / P over the ball of radius rho in P dimensions is rho^2 / (P + 2)."""

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight

    data = [(torch.zeros(1), torch.zeros(4))]
    found = expected_sharpness(Weights(), data, F.mse_loss, radius=2.0, samples=300)
    assert found.centre == 0.0
    assert found.value == pytest.approx(4 / 6, rel=0.06)


def test_sharpness_grows_with_dropout_and_radius() -> None:
    data = [(torch.randn(64, 8), torch.randint(3, (64,)))]
    values = {}
    for rate in (0.0, 0.2, 0.5):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(rate), nn.Linear(32, 3))
        found = expected_sharpness(network, data, radius=0.0, samples=20)
        values[rate] = float(found.losses.std())
    assert values[0.0] == 0.0
    assert 0 < values[0.2] < values[0.5]
    near, far = (expected_sharpness(network.eval(), data, radius=r).value for r in (0.5, 5.0))
    assert near < far
    assert not network.training


def test_sharpness_is_repeatable() -> None:
    network, data = nn.Linear(3, 2), [(torch.randn(5, 3), torch.randint(2, (5,)))]
    first, second = (
        expected_sharpness(
            network, data, radius=0.1, samples=3, generator=torch.Generator().manual_seed(4)
        ).losses
        for _ in range(2)
    )
    assert torch.equal(first, second)


def dropout_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))


def test_variance_falls_with_ensemble_size() -> None:
    data = [(torch.randn(40, 6), torch.randint(4, (40,))) for _ in range(2)]
    found = loss_variance(dropout_network(), data, sizes=(1, 2, 4, 8), passes=400)
    assert found.slope == pytest.approx(-1.0, abs=0.12)
    ratio = found.variances / found.expected
    assert ((ratio > 0.75) & (ratio < 1.35)).all()  # Eq. (28), first order
    torch.testing.assert_close(found.expected, found.expected[0] / found.sizes)
    assert found.losses[0] > found.losses[-1]  # ensembles predict better, too


def test_variance_against_a_loop() -> None:
    network = dropout_network()
    data = [(torch.randn(5, 6), torch.tensor([0, 1, -100, 2, 3]))]
    found = loss_variance(
        network, data, sizes=(1, 3), passes=7, generator=torch.Generator().manual_seed(2)
    )
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(2)))
    torch.manual_seed(seed)
    rows = []
    with torch.no_grad():
        for _ in range(7):
            probs = network(data[0][0]).double().softmax(1).numpy()
            rows.append([probs[i, int(c)] for i, c in enumerate(data[0][1]) if c >= 0])
    table = np.array(rows)
    losses = -np.log(table).mean(1)
    assert float(found.losses[0]) == pytest.approx(losses.mean(), rel=1e-6)
    assert float(found.variances[0]) == pytest.approx(np.var(losses, ddof=1), rel=1e-6)
    expected = (table.var(0, ddof=1) / table.mean(0) ** 2).mean() / 4
    np.testing.assert_allclose(found.expected, [expected, expected / 3], rtol=1e-6)
    triples = [-np.log(table[list(each)].mean(0)).mean() for each in combinations(range(7), 3)]
    assert min(triples) < float(found.losses[1]) < max(triples)


def test_variance_of_pixels() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Dropout(0.5), nn.Conv2d(4, 3, 1))
    target = torch.randint(3, (2, 4, 4))
    target[0] = 255
    data = [(torch.randn(2, 1, 4, 4), target)]
    found = loss_variance(network, data, sizes=(1, 2), passes=10, ignore_index=255)
    assert found.variances.isfinite().all()


def test_variance_bad_input() -> None:
    network, data = dropout_network(), [(torch.randn(5, 6), torch.randint(4, (5,)))]
    with pytest.raises(ValueError, match="passes must be at least 40"):
        loss_variance(network, data, sizes=(1, 20), passes=30)
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        loss_variance(network, data, sizes=(0,))
    with pytest.raises(ValueError, match="sizes must hold at least one"):
        loss_variance(network, data, sizes=())
    with pytest.raises(ValueError, match="no active dropout"):
        loss_variance(nn.Linear(6, 4), data, passes=50)
    with pytest.raises(ValueError, match="not ignored"):
        loss_variance(network, [(data[0][0], torch.full((5,), -100))], passes=50)
    with pytest.raises(ValueError, match=r"target must be class indices in \[0, 4\)"):
        loss_variance(network, [(data[0][0], torch.full((5,), 9))], passes=50)


@pytest.mark.parametrize("padding", ["zeros", "replicate", "reflect", "grow"])
@pytest.mark.parametrize(("kernel", "power"), [((1, 1), 1), ((1, 2, 1), 2), ((1, 4, 6, 4, 1), 4)])
def test_response_of_binomial_blurs(kernel: tuple[int, ...], power: int, padding: str) -> None:
    found = frequency_response(Blur(kernel, padding))
    expected = (found.frequencies * torch.pi / 2).cos() ** power
    torch.testing.assert_close(found.along_axis, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.along_diagonal, expected**2, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.amplitude, torch.outer(expected, expected), rtol=0, atol=1e-6)


def test_smooth_is_a_low_pass_filter_at_every_level() -> None:
    """Proposition 2.2; Prob adds the slope of its bound, which falls with the level."""
    for level in (0.5, 5.0, 20.0):
        found = frequency_response(Smooth(inplace=True), level=level)
        slope = 1 - math.tanh(level / 10) ** 2
        blur = frequency_response(Blur())
        torch.testing.assert_close(found.amplitude, slope * blur.amplitude, rtol=1e-4, atol=1e-6)
    assert frequency_response(Smooth(), level=-1.0).amplitude.max() == 0  # nothing through a ReLU


def test_response_of_a_stack_and_of_several_channels() -> None:
    once = frequency_response(Blur())
    thrice = frequency_response(nn.Sequential(Blur(), Blur(), Blur()))
    torch.testing.assert_close(thrice.amplitude, once.amplitude**3, rtol=0, atol=1e-6)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    found = frequency_response(conv, channels=4, size=16)
    kernel = conv.weight[0, 0].detach().double().flip(0, 1)
    torch.testing.assert_close(found.impulse[7:10, 7:10], kernel, rtol=0, atol=1e-7)
    assert conv.weight.dtype == torch.float32


def test_response_bad_input() -> None:
    with pytest.raises(ValueError, match="at least as large"):
        frequency_response(nn.AvgPool2d(2))
    with pytest.raises(ValueError, match="reaches the border"):
        frequency_response(Blur((1, 4, 6, 4, 1)), size=4)
    with pytest.raises(ValueError, match="size must be even"):
        frequency_response(Blur(), size=9)


def test_figures() -> None:
    figure = plot_frequency_responses(
        {"box": frequency_response(Blur()), "binomial": frequency_response(Blur((1, 2, 1)))}
    )
    figure.canvas.draw()
    assert figure.axes[0].get_ylabel() == "amplification"
    data = [(torch.randn(10, 6), torch.randint(4, (10,)))]
    figure = plot_loss_variances({"a": loss_variance(dropout_network(), data, passes=40)})
    figure.canvas.draw()
    assert figure.axes[0].get_xlabel() == "ensemble size N"
    for plot in (plot_frequency_responses, plot_loss_variances):
        with pytest.raises(ValueError, match="must hold at least one"):
            plot({})
