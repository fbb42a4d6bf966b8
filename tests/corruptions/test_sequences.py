"""Sequences: what each frame shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.corruptions import is_ordered, perturb
from sfumato.corruptions.filters import homography_rotate, homography_tilt, warp


def _smooth(height: int = 32, width: int = 32) -> torch.Tensor:
    coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (fine * 255).to(torch.uint8)


def test_translate_shifts_by_whole_pixels_with_black() -> None:
    image = _smooth()
    frames = perturb(image, "translate")[0]
    assert torch.equal(frames[7], image[0])
    assert torch.equal(frames[0][..., :-7], image[0][..., 7:])
    assert frames[0][..., -7:].max() == 0
    assert torch.equal(frames[15][..., 8:], image[0][..., :-8])


def test_brightness_passes_through_the_image() -> None:
    image = _smooth()
    frames = perturb(image, "brightness")[0]
    assert torch.equal(frames[15], image[0])
    means = frames.float().mean(dim=(1, 2, 3))
    assert (means.diff() > 0).all()


def test_noise_begins_clean_and_draws_each_frame_anew() -> None:
    image = torch.full((1, 3, 64, 64), 128, dtype=torch.uint8)
    spread = {"gaussian_noise": 0.02, "gaussian_noise_2": 0.04, "gaussian_noise_3": 0.06}
    spread |= {
        name: math.sqrt(128 / 255 / photons)
        for name, photons in (("shot_noise", 700), ("shot_noise_2", 400), ("shot_noise_3", 200))
    }
    for name, std in spread.items():
        frames = perturb(image, name, generator=torch.Generator().manual_seed(0))[0].float()
        assert torch.equal(frames[0], image[0].float())
        assert not is_ordered(name)
        assert frames[1:].std().item() == pytest.approx(255 * std, rel=0.03)
        assert abs(torch.corrcoef(frames[1:3].flatten(1))[0, 1].item()) < 0.04


def test_rotate_and_scale_equal_pillow_inside() -> None:
    image = _smooth(41, 41)
    picture = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    turned = perturb(image, "rotate")[0]
    assert torch.equal(turned[15], image[0])
    bilinear = Image.Resampling.BILINEAR
    for frame, degrees in ((0, -15), (30, 15)):  # Pillow turns the other way
        expected = np.array(picture.rotate(-degrees, bilinear)).transpose(2, 0, 1).astype(int)
        assert np.abs(turned[frame].numpy() - expected)[:, 8:-8, 8:-8].max() <= 1
    scaled = perturb(image, "scale")[0]
    assert torch.equal(scaled[15], image[0])
    factor, centre = 1.3, 20.5
    shift = centre - centre / factor
    expected = picture.transform(
        (41, 41), Image.Transform.AFFINE, (1 / factor, 0, shift, 0, 1 / factor, shift), bilinear
    )
    difference = scaled[30].numpy() - np.array(expected).transpose(2, 0, 1).astype(int)
    assert np.abs(difference)[:, 2:-2, 2:-2].max() <= 1


def test_tilt_is_the_projected_plane() -> None:
    image = torch.zeros(1, 1, 30, 40)
    angle = math.radians(9.0)
    matrix = homography_tilt(image, 9.0)
    focal = 50.0
    for x, y in ((0.0, 0.0), (40.0, 3.0), (13.0, 29.0)):
        px, py, pz = x - 20.0, y - 15.0, 1.0
        px, pz = (
            math.cos(angle) * px - math.sin(angle) * pz,
            math.sin(angle) * px + math.cos(angle) * pz,
        )
        py, pz = (
            math.cos(angle) * py - math.sin(angle) * pz,
            math.sin(angle) * py + math.cos(angle) * pz,
        )
        expected = (focal * px / (pz + focal) + 20.0, focal * py / (pz + focal) + 15.0)
        got = matrix @ torch.tensor([x, y, 1.0], dtype=torch.float64)
        assert (got[:2] / got[2]).tolist() == pytest.approx(expected)


def test_quarter_turn_is_exact() -> None:
    image = torch.rand(2, 3, 17, 17)
    turned = warp(image, homography_rotate(image, 90.0))
    assert torch.allclose(turned, image.rot90(-1, (2, 3)), atol=1e-4)


def test_zoom_blur_runs_from_sharp_to_blurred() -> None:
    image = _smooth()
    frames = perturb(image, "zoom_blur")[0].float()
    assert torch.equal(frames[0], image[0].float())
    change = (frames - frames[0]).abs().mean(dim=(1, 2, 3))
    assert (change.diff() > 0).all()


def test_snow_and_motion_blur_turn_through_the_angles() -> None:
    snow = perturb(torch.zeros(1, 1, 32, 32), "snow", generator=torch.Generator().manual_seed(2))
    flakes = snow[0, :, 0] - snow[0, :, 0].amin(dim=(1, 2), keepdim=True)
    light = flakes.sum(dim=(1, 2))
    assert light.std() / light.mean() < 0.15, "one layer of flakes, only its direction moves"
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 16, 16] = 1.0
    frames = perturb(point, "motion_blur")[0, :, 0]
    # Tap i reads the pixel at distance i along the angle, so the light moves the other way.
    assert frames[0, 16, 18] > 0.05  # -180 degrees
    assert frames[10, 18, 16] > 0.05  # -90
    assert frames[20, 16, 14] > 0.05  # 0
