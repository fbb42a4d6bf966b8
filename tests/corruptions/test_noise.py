"""Noise: the distribution of the change."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from sfumato.corruptions.camera import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from sfumato.corruptions.random_numbers import Streams, draw_seeds


def _streams() -> Streams:
    return Streams(draw_seeds(40, torch.Generator().manual_seed(1)), device="cpu")


def _grey(level: float) -> torch.Tensor:
    return torch.full((40, 3, 32, 32), level)


def test_gaussian_noise_adds_the_same_spread_everywhere() -> None:
    for level in (0.0, 200.0):
        change = gaussian_noise(_grey(level), _streams(), std=0.1) - level
        assert change.mean().item() == pytest.approx(0.0, abs=0.3)
        assert change.std().item() == pytest.approx(25.5, rel=0.01)


def test_speckle_noise_grows_with_the_light() -> None:
    assert speckle_noise(_grey(0.0), _streams(), std=0.2).abs().max() == 0.0
    assert speckle_noise(_grey(100.0), _streams(), std=0.2).std().item() == pytest.approx(
        20, rel=0.01
    )


@pytest.mark.parametrize("photons", [3.0, 60.0, 500.0])
def test_shot_noise_counts_photons(photons: float) -> None:
    counts = shot_noise(_grey(204.0), _streams(), photons=photons) * photons / 255.0
    assert torch.allclose(counts, counts.round(), atol=1e-3)
    rate = 0.8 * photons
    assert counts.mean().item() == pytest.approx(rate, rel=0.01)
    assert counts.var().item() == pytest.approx(rate, rel=0.02)
    seen = torch.bincount(counts.round().long().flatten()).double()
    expected = stats.poisson.pmf(range(len(seen)), rate) * counts.numel()
    kept = expected > 20
    assert (
        stats.chisquare(
            [*seen.numpy()[kept], seen.numpy()[~kept].sum() + 1e-9],
            [*expected[kept], counts.numel() - expected[kept].sum() + 1e-9],
        ).pvalue
        > 1e-3
    )


def test_impulse_noise_replaces_single_values() -> None:
    noisy = impulse_noise(_grey(100.0), _streams(), amount=0.2)
    assert set(noisy.unique().tolist()) == {0.0, 100.0, 255.0}
    assert (noisy == 0.0).float().mean().item() == pytest.approx(0.1, abs=0.005)
    assert (noisy == 255.0).float().mean().item() == pytest.approx(0.1, abs=0.005)
    assert ((noisy != 100.0).sum(dim=1) == 1).any(), "the channels fall separately"
