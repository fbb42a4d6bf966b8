"""Blur: kernels by hand, the glass scan against its loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.corruptions.camera import (
    _copied_from,
    defocus_blur,
    disk_kernel,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from sfumato.corruptions.filters import clipped_zoom
from sfumato.corruptions.random_numbers import Streams, draw_seeds


class _FixedMoves:
    """Stands in for the random streams with moves that the test knows."""

    def __init__(self, moves: Tensor) -> None:
        self.moves = moves

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        assert self.moves.shape[1:] == shape
        assert low <= int(self.moves.min())
        assert int(self.moves.max()) < high
        return self.moves


@pytest.mark.parametrize(
    ("radius", "alias_blur", "centre"), [(0.3, 0.4, 0.8450), (0.4, 0.5, 0.6194), (0.5, 0.6, 0.4452)]
)
def test_small_disks_are_small_gaussians(radius: float, alias_blur: float, centre: float) -> None:
    kernel = disk_kernel(radius, alias_blur)
    assert kernel.shape == (3, 3)
    assert kernel[1, 1].item() == pytest.approx(centre, abs=1e-4)
    assert kernel.sum().item() == pytest.approx(1.0)


def test_radius_one_is_a_plus() -> None:
    plus = torch.tensor([[0.0, 0.2, 0.0], [0.2, 0.2, 0.2], [0.0, 0.2, 0.0]])
    middle = disk_kernel(1, 0.2)[1:4, 1:4]
    assert torch.allclose(middle, plus, atol=1e-5)


@pytest.mark.parametrize(("radius", "alias_blur"), [(3, 0.1), (8, 0.5), (10, 0.5)])
def test_large_disks_are_round_and_keep_the_light(radius: float, alias_blur: float) -> None:
    kernel = disk_kernel(radius, alias_blur)
    assert torch.allclose(kernel, kernel.T)
    assert torch.allclose(kernel, kernel.flip(0))
    # Where the disk fills the grid, the mirrored rim of the published kernel adds 1 % of light.
    assert 1.0 - 1e-4 < kernel.sum().item() < 1.015
    flat = defocus_blur(torch.full((1, 1, 40, 40), 80.0), radius=radius, alias_blur=alias_blur)
    assert torch.allclose(flat, torch.full_like(flat, 80.0 * kernel.sum().item()), atol=1e-2)


@pytest.mark.parametrize(("height", "width", "max_delta"), [(8, 8, 1), (12, 9, 2), (16, 14, 4)])
def test_glass_copies_as_the_scan_does(height: int, width: int, max_delta: int) -> None:
    rows, columns = height - 2 * max_delta, width - 2 * max_delta
    generator = np.random.default_rng(0)
    moves = generator.integers(-max_delta, max_delta, (5, 2, rows, columns))
    source = _copied_from(_FixedMoves(torch.from_numpy(moves)), height, width, max_delta)  # type: ignore[arg-type]
    for n in range(5):
        image = np.arange(height * width).reshape(height, width)
        for h in range(height - max_delta, max_delta, -1):
            for w in range(width - max_delta, max_delta, -1):
                dy, dx = moves[n, :, h - max_delta - 1, w - max_delta - 1]
                image[h, w] = image[h + dy, w + dx]
        assert source[n].tolist() == image.flatten().tolist()


def test_glass_leaves_the_first_rows_and_only_moves_values() -> None:
    levels = torch.randint(0, 256, (3, 3, 32, 32)).float()
    streams = Streams(draw_seeds(3), device="cpu")
    shuffled = glass_blur(levels, streams, sigma=0.05, max_delta=1, iterations=2)
    assert torch.equal(shuffled[..., :2, :], levels[..., :2, :])
    assert torch.equal(shuffled[..., :, :2], levels[..., :, :2])
    assert (shuffled[..., 31, 31] != levels[..., 31, 31]).any()
    assert set(shuffled[0, 0].unique().tolist()) <= set(levels[0, 0].unique().tolist())


def test_glass_moves_the_channels_together() -> None:
    levels = torch.rand(2, 1, 32, 32).mul(255).floor().expand(2, 3, 32, 32)
    streams = Streams(draw_seeds(2), device="cpu")
    shuffled = glass_blur(levels, streams, sigma=0.4, max_delta=1, iterations=2)
    assert torch.equal(shuffled[:, 0], shuffled[:, 2])


def test_zoom_blur_is_the_mean_over_the_factors() -> None:
    levels = torch.rand(2, 3, 20, 26) * 255
    factors = [1.0 + 0.02 * i for i in range(5)]
    expected = torch.stack([levels, *(clipped_zoom(levels, f) for f in factors)]).mean(dim=0)
    assert torch.allclose(zoom_blur(levels, count=5, step=0.02), expected, atol=1e-3)


def test_a_flat_image_stays_flat() -> None:
    levels = torch.full((2, 3, 24, 24), 77.0)
    streams = Streams(draw_seeds(2), device="cpu")
    blurred = [
        defocus_blur(levels, radius=1.5, alias_blur=0.1),
        gaussian_blur(levels, sigma=2.0),
        motion_blur(levels, streams, radius=8, sigma=3),
        zoom_blur(levels, count=7, step=0.01),
        glass_blur(levels, streams, sigma=0.7, max_delta=2, iterations=1),
    ]
    for result in blurred:
        assert torch.allclose(result, levels, atol=1e-3)
