"""Feature maps: deviations, Fourier amplitudes, covariances (Eq. 14), at names or stage ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.analysis import (
    feature_covariance,
    feature_deviation,
    feature_spectrum,
    plot_feature_covariances,
    plot_feature_deviations,
    plot_feature_spectra,
    stage_blocks,
    stage_ends,
)
from sfumato.features import Blur
from sfumato.models import resnet

Data = list[tuple[Tensor, Tensor]]


def noise(images: int, channels: int, size: int, batches: int = 1) -> Data:
    shape = (images // batches, channels, size, size)
    return [(torch.randn(shape), torch.zeros(shape[0])) for _ in range(batches)]


def test_modules_are_found() -> None:
    network = resnet(8, num_classes=3, width=4, smooth=True, dropout=0.1)
    images = torch.zeros(2, 3, 16, 16)
    assert stage_ends(network, images) == ["stages.0", "stages.1", "stages.2"]
    blocks = stage_blocks(network, images)
    assert blocks[:2] == ["stages.0.0", "stages.0.smooth"]
    assert len(blocks) == 6


def test_deviation_against_a_loop() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.Conv2d(2, 3, 1))
    data = noise(6, 1, 6, batches=2)
    found = feature_deviation(
        network, data, modules=["1", "2"], samples=4, generator=torch.Generator().manual_seed(3)
    )
    generator = torch.Generator().manual_seed(3)
    seed = int(torch.randint(2**62, (), generator=generator))
    torch.manual_seed(seed)
    model, points = [], []
    for images, _ in data:
        with torch.no_grad():
            maps = np.stack([network(images).numpy() for _ in range(4)])
        model.append(maps.std(0, ddof=1).mean())
        points.append(maps.std((3, 4)).mean())
    assert float(found.between_passes[1]) == pytest.approx(np.mean(model), rel=1e-5)
    assert float(found.between_points[1]) == pytest.approx(np.mean(points), rel=1e-5)


def test_blur_takes_white_noise_down_by_the_root_of_its_points() -> None:
    """Proposition 2.1: the mean of four independent points has half the standard deviation."""
    network = nn.Sequential(nn.Dropout(0.5), nn.AvgPool2d(2, stride=1))
    data = [(torch.ones(8, 2, 40, 40), torch.zeros(8))]
    found = feature_deviation(network, data, modules=["0", "1"], samples=60)
    for values in (found.between_passes, found.between_points):
        assert float(values[1] / values[0]) == pytest.approx(0.5, abs=0.02)
    assert float(found.between_points[0]) == pytest.approx(1.0, abs=0.02)  # 0 or 2, evenly


def test_deviation_by_depth_of_a_network_with_smoothing() -> None:
    network = resnet(8, num_classes=3, width=4, smooth=True, dropout=0.3)
    found = feature_deviation(network, noise(8, 3, 16), samples=6)
    passes = dict(zip(found.modules, found.between_passes.tolist(), strict=True))
    for stage in range(3):
        assert passes[f"stages.{stage}.smooth"] < passes[f"stages.{stage}.0"]
    still = feature_deviation(resnet(8, num_classes=3, width=4), noise(4, 3, 16), samples=2)
    assert (still.between_passes == 0).all()


def test_amplitudes_against_a_loop() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3))
    data = noise(6, 1, 10, batches=2)
    found = feature_spectrum(network, data, modules=["0"])
    with torch.no_grad():
        maps = torch.cat([network(images) for images, _ in data]).numpy()
    logs = np.log(np.abs(np.fft.fft2(maps)) + 1e-6).mean((0, 1))
    expected = np.diagonal(logs)[:5]
    np.testing.assert_allclose(found.log_amplitudes["0"], expected, rtol=1e-4)
    np.testing.assert_allclose(found.relative("0"), expected - expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.frequencies["0"], np.linspace(0, 1, 5))


def test_blur_removes_high_frequencies_of_noise() -> None:
    network = nn.Sequential(nn.Identity(), Blur((1, 2, 1)))
    found = feature_spectrum(network, noise(64, 2, 32), modules=["0", "1"])
    gain = (found.log_amplitudes["1"] - found.log_amplitudes["0"]).exp()
    expected = (found.frequencies["0"] * torch.pi / 2).cos() ** 4
    inner = slice(0, 10)  # zeros at the border leak into what should vanish
    torch.testing.assert_close(gain[inner], expected[inner], rtol=0.12, atol=0.02)


def test_spectrum_at_stage_ends_of_other_shapes() -> None:
    network = resnet(8, num_classes=3, width=4)
    data = [(torch.randn(2, 3, 16, 24), torch.zeros(2))]
    found = feature_spectrum(network, data)
    assert {name: len(f) for name, f in found.frequencies.items()} == {
        "stages.0": 9,
        "stages.1": 5,
        "stages.2": 3,
    }
    assert all(values.isfinite().all() for values in found.log_amplitudes.values())


def test_one_convolution_of_noise_has_the_covariance_of_eq_14() -> None:
    network = nn.Sequential(nn.Conv2d(1, 1, (1, 3), bias=False))
    first, second, third = weight = [0.8, -0.5, 0.6]
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor(weight).view(1, 1, 1, 3))
    data = [(2 * x, y) for x, y in noise(60000, 1, 7, batches=3)]
    found = feature_covariance(network, data, module="0", radius=2)
    row = found.covariance[2]
    sigma = 4.0
    expected = first * second * sigma + second * third * sigma  # Eq. (14)
    assert float(row[3]) == pytest.approx(expected, abs=0.06)
    assert float(row[1]) == pytest.approx(expected, abs=0.06)
    assert float(row[4]) == pytest.approx(first * third * sigma, abs=0.06)
    assert float(row[2]) == pytest.approx(sigma * sum(w * w for w in weight), abs=0.08)
    assert found.covariance[[0, 1, 3, 4]].abs().max() < 0.06  # rows share no input


def test_random_convolutions_have_the_autocorrelation_of_their_kernels() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False))
    found = feature_covariance(network, noise(40000, 2, 9, batches=2), module="0", radius=3)
    kernels = network[0].weight.detach().double().numpy()
    expected = np.zeros((7, 7))
    for down in range(-2, 3):
        for right in range(-2, 3):
            for y in range(max(0, -down), min(3, 3 - down)):
                for x in range(max(0, -right), min(3, 3 - right)):
                    pair = kernels[:, :, y, x] * kernels[:, :, y + down, x + right]
                    expected[3 + down, 3 + right] += pair.sum() / 3
    np.testing.assert_allclose(found.covariance, expected, atol=0.012)
    assert np.abs(expected).max() > 0.2


def test_deep_networks_correlate_further() -> None:
    """Fig. D.1: five layers reach beyond the three points of one."""
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()) for _ in range(4)]
    deep = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), *layers)
    data = noise(3000, 1, 19)
    first, last = (
        feature_covariance(deep, data, module=name, radius=4).correlation for name in ("0", "5")
    )
    far = torch.ones(9, 9, dtype=torch.bool)
    far[2:7, 2:7] = False  # what two 3 x 3 windows that overlap can reach
    assert first[far].square().mean().sqrt() < 1.5 / len(data[0][0]) ** 0.5  # chance
    assert last[far].square().mean() > 9 * first[far].square().mean()
    assert last[4, 5].abs() > 5 * first[4, 5].abs()


def test_silent_channels_do_not_spoil_the_correlation() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False))
    with torch.no_grad():
        network[0].weight[1] = 0
    found = feature_covariance(network, noise(50, 1, 5), module="0", radius=1)
    assert float(found.correlation[1, 1]) == pytest.approx(1.0)


def test_hooks_are_gone_and_channels_last_is_read() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.movedim(1, -1)

    network = nn.Sequential(Last())
    data = noise(4, 2, 8)
    found = feature_spectrum(network, data, modules=["0"])
    torch.testing.assert_close(
        found.log_amplitudes["0"],
        feature_spectrum(nn.Sequential(nn.Identity()), data, modules=["0"]).log_amplitudes["0"],
    )
    assert not network[0]._forward_hooks


def test_bad_input() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    data = noise(4, 1, 6)
    with pytest.raises(ValueError, match=r"modules must name modules .* got \['7'\]"):
        feature_spectrum(network, data, modules=["7"])
    with pytest.raises(ValueError, match="does not return a feature map"):
        feature_deviation(network, data, modules=["1"])
    with pytest.raises(ValueError, match="samples must be at least 2"):
        feature_deviation(network, data, modules=["0"], samples=1)
    with pytest.raises(ValueError, match="radius 3 needs maps of 7 x 7"):
        feature_covariance(network, data, module="0", radius=3)
    with pytest.raises(ValueError, match="at least two images"):
        feature_covariance(network, noise(1, 1, 6), module="0", radius=1)
    with pytest.raises(ValueError, match="loader must give at least one batch"):
        feature_deviation(network, [])
    with pytest.raises(ValueError, match="no stages"):
        feature_spectrum(nn.Sequential(nn.Identity()), data)


def test_figures() -> None:
    plain = resnet(8, num_classes=3, width=4, dropout=0.2)
    smooth = resnet(8, num_classes=3, width=4, dropout=0.2, smooth=True)
    data = noise(4, 3, 16)
    models = {"plain": plain, "smooth": smooth}
    figure = plot_feature_deviations(
        {title: feature_deviation(model, data, samples=2) for title, model in models.items()}
    )
    figure.canvas.draw()
    assert "model uncertainty" in figure.axes[0].get_title()
    figure = plot_feature_spectra(
        {title: feature_spectrum(model, data) for title, model in models.items()}
    )
    figure.canvas.draw()
    assert figure.axes[0].get_title() == "stages.0"
    found = feature_covariance(plain, data, module="stages.0", radius=2)
    figure = plot_feature_covariances({"first stage": found})
    figure.canvas.draw()
    assert figure.axes[0].get_title() == "first stage"
    for plot in (plot_feature_deviations, plot_feature_spectra, plot_feature_covariances):
        with pytest.raises(ValueError, match="must hold at least one"):
            plot({})
