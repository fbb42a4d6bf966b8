"""Elastic warping, pixelation and JPEG."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from sfumato.corruptions.camera import (
    _affine_positions,
    elastic_transform,
    jpeg_compression,
    pixelate,
)
from sfumato.corruptions.filters import pixel_grid, sample
from sfumato.corruptions.random_numbers import Streams, draw_seeds


def _streams(count: int, seed: int = 0) -> Streams:
    return Streams(draw_seeds(count, torch.Generator().manual_seed(seed)), device="cpu")


@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 33), (224, 224)])
@pytest.mark.parametrize("scale", [0.95, 0.65, 0.25])
def test_pixelate_equals_pillow(height: int, width: int, scale: float) -> None:
    image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8)
    picture = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    box = Image.Resampling.BOX
    small = picture.resize((int(width * scale), int(height * scale)), box)
    expected = torch.from_numpy(np.array(small.resize((width, height), box))).permute(2, 0, 1)
    assert torch.equal(pixelate(image.float(), scale=scale)[0].to(torch.uint8), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_equals_pillow(channels: int) -> None:
    levels = ndimage.gaussian_filter(np.random.default_rng(0).random((40, 52, channels)), (2, 2, 0))
    image = (levels / levels.max() * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, "JPEG", quality=25)
    expected = np.array(Image.open(file)).reshape(image.shape)
    got = jpeg_compression(torch.from_numpy(image).permute(2, 0, 1)[None].float(), quality=25)
    assert np.abs(got[0].permute(1, 2, 0).numpy() - expected).max() <= 1


@pytest.mark.parametrize(("border", "mode"), [("mirror", "mirror"), ("mirror_edge", "reflect")])
def test_sampling_equals_scipy(border: str, mode: str) -> None:
    image = torch.rand(1, 1, 12, 17)
    positions = pixel_grid(image)[None] + 9 * torch.randn(1, 12, 17, 2)
    got = sample(image, positions, border=border)  # type: ignore[arg-type]
    where = positions[0].double().numpy()
    expected = ndimage.map_coordinates(
        image[0, 0].double().numpy(), [where[..., 1], where[..., 0]], order=1, mode=mode
    )
    np.testing.assert_allclose(got[0, 0].numpy(), expected, atol=2e-5)


def test_affine_positions_send_the_moved_corners_back() -> None:
    image = torch.zeros(3, 1, 30, 48)
    positions = _affine_positions(image, _streams(3), 2.0)
    moved = torch.tensor([[34.0, 25.0], [34.0, 5.0], [14.0, 5.0]]) + _streams(3).uniform(
        3, 2, low=-2.0, high=2.0
    )
    for n in range(3):
        for corner, (x, y) in zip(moved[n], ((34, 25), (34, 5), (14, 5)), strict=True):
            left, top = corner.floor().long().tolist()
            wx, wy = (corner - corner.floor()).tolist()
            square = positions[n, top : top + 2, left : left + 2]
            weights = torch.tensor([[(1 - wx) * (1 - wy), wx * (1 - wy)], [(1 - wx) * wy, wx * wy]])
            assert (square * weights[..., None]).sum((0, 1)).tolist() == pytest.approx(
                [x, y], abs=0.05
            )


def test_elastic_without_displacement_is_the_identity() -> None:
    levels = torch.rand(2, 3, 20, 20) * 255
    same = elastic_transform(levels, _streams(2), alpha=0.0, sigma=0.0, affine=0.0, unit=1.0)
    assert torch.allclose(same, levels, atol=1e-3)


def test_elastic_only_moves_light() -> None:
    flat = torch.full((2, 1, 32, 32), 90.0)
    moved = elastic_transform(flat, _streams(2), alpha=0.1, sigma=0.04, affine=0.05, unit=1.0)
    assert torch.allclose(moved, flat, atol=1e-3)
