"""Noise of one frequency."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sfumato.corruptions import accuracy_by_frequency, frequency_mask, frequency_noise


def test_mask_by_hand() -> None:
    mask = frequency_mask(4, 4, frequency=math.pi / 2, band=0.2)
    assert mask.int().tolist() == [[0, 1, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]]
    assert frequency_mask(4, 6, frequency=0.0, band=0.1).nonzero().tolist() == [[0, 0]]


def test_rings_tile_the_plane() -> None:
    rings = [
        frequency_mask(33, 37, frequency=(i + 0.5) * math.pi / 10, band=math.pi / 10)
        for i in range(10)
    ]
    total = torch.stack(rings).sum(dim=0)
    assert total.unique().tolist() == [1]


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 31)])
@pytest.mark.parametrize("frequency", [0.0, 0.3, 1.5, math.pi])
def test_noise_lies_in_the_band(height: int, width: int, frequency: float) -> None:
    images = torch.full((3, 3, height, width), 0.5)
    band = 0.2 * math.pi
    noisy = frequency_noise(images, frequency=frequency, std=0.05, band=band)
    spectrum = torch.fft.fft2((noisy - images).double()).abs()
    mask = frequency_mask(height, width, frequency=frequency, band=band)
    assert spectrum[..., ~mask].max() < 1e-4
    energy = (noisy - images).double().var().item()
    assert energy == pytest.approx(0.05**2 * mask.double().mean().item(), rel=0.35)


def test_equal_energy_is_equal() -> None:
    images = torch.full((50, 3, 32, 32), 0.5)
    for frequency in (0.5, 1.5, 2.8):
        noisy = frequency_noise(images, frequency=frequency, std=0.05, equal_energy=True)
        assert (noisy - images).std().item() == pytest.approx(0.05, rel=0.03)


def test_batching_does_not_matter_and_std_zero_is_the_image() -> None:
    images = torch.rand(5, 1, 24, 24)
    whole = frequency_noise(images, frequency=1.0, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    parts = [frequency_noise(p, frequency=1.0, generator=generator) for p in images.split(2)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.allclose(frequency_noise(images, frequency=1.0, std=0.0), images, atol=1e-6)
    assert frequency_noise(images[:0], frequency=1.0).shape == (0, 1, 24, 24)


class _HighPass(nn.Module):
    """Class 1 if neighbouring columns differ: deceived by high frequencies only."""

    def forward(self, images: Tensor) -> Tensor:
        rough = images.diff(dim=3).abs().mean(dim=(1, 2, 3))
        return torch.stack([torch.full_like(rough, 0.05), rough], dim=1)


def test_accuracy_falls_where_the_model_is_weak() -> None:
    images, target = torch.full((40, 1, 32, 32), 0.5), torch.zeros(40, dtype=torch.int64)
    frequencies = [0.1 * math.pi, 0.9 * math.pi]
    accuracy = accuracy_by_frequency(_HighPass(), images, target, frequencies=frequencies, std=0.2)
    assert accuracy.tolist() == [1.0, 0.0]
    small = accuracy_by_frequency(
        _HighPass(), images, target, frequencies=frequencies, std=0.2, batch_size=7
    )
    assert torch.equal(accuracy, small)


def test_bad_input_is_named() -> None:
    images = torch.rand(1, 1, 16, 16)
    with pytest.raises(ValueError, match=r"frequency must be in \[0, 3.14159\], got 4"):
        frequency_noise(images, frequency=4.0)
    with pytest.raises(ValueError, match=r"holds no coefficient of a 16 x 16 image. Use a wider"):
        frequency_noise(images, frequency=0.2, band=0.01)
    with pytest.raises(TypeError, match=r"images must be floating point, got torch.uint8. Divide"):
        frequency_noise(torch.zeros(1, 1, 16, 16, dtype=torch.uint8), frequency=1.0)
    with pytest.raises(ValueError, match=r"images must be \(N, C, H, W\)"):
        frequency_noise(images[0], frequency=1.0)
    with pytest.raises(ValueError, match="band must be in"):
        frequency_mask(8, 8, frequency=1.0, band=0.0)
