"""Snow, fog, frost and spatter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from sfumato.corruptions.random_numbers import Streams, draw_seeds
from sfumato.corruptions.weather import (
    _distance,
    _equalise,
    _outlines,
    _plasma,
    _refine,
    fallen_snow,
    fog,
    frost,
    frost_layer,
    snow_flakes,
    spatter,
)


def _streams(count: int, seed: int = 0) -> Streams:
    return Streams(draw_seeds(count, torch.Generator().manual_seed(seed)), device="cpu")


def test_plasma_refines_by_squares_then_diamonds() -> None:
    corners = torch.tensor([[[1.0, 3.0], [5.0, 11.0]]])
    fine = _refine(corners, _streams(1), 0.0)[0]
    assert fine[::2, ::2].tolist() == corners[0].tolist()
    assert fine[1::2, 1::2].tolist() == [[5.0, 5.0], [5.0, 5.0]]  # on a torus all four corners meet
    assert fine[0, 1].item() == (1 + 3 + 5 + 5) / 4
    assert fine[1, 0].item() == (1 + 5 + 5 + 5) / 4


def test_plasma_fills_zero_to_one() -> None:
    maps = _plasma(torch.zeros(4, 1, 1), _streams(4), 33, 2.0)
    assert maps.shape == (4, 64, 64)
    assert torch.equal(maps.amin((1, 2)), torch.zeros(4))
    assert torch.equal(maps.amax((1, 2)), torch.ones(4))


def test_fog_keeps_the_brightest_value_and_a_black_image() -> None:
    levels = torch.rand(3, 3, 20, 31) * 200
    foggy = fog(levels, _streams(3), strength=1.0, decay=2.0)
    assert (foggy.amax((1, 2, 3)) <= levels.amax((1, 2, 3)) + 1e-3).all()
    assert fog(torch.zeros(1, 3, 16, 16), _streams(1), strength=1.0, decay=2.0).max() == 0.0


def test_snow_is_the_whitened_image_plus_flakes_and_their_turn() -> None:
    levels = torch.rand(2, 3, 16, 16) * 255
    flakes = snow_flakes(levels, _streams(2), loc=0.2, scale=0.3, zoom=1.0, threshold=0.5)
    assert flakes.shape == (2, 1, 16, 16)
    assert ((flakes == 0) | (flakes >= 127)).all()
    degrees = torch.zeros(2)
    nothing = fallen_snow(levels, 0 * flakes, radius=1, sigma=1, degrees=degrees, blend=0.8)
    grey = (levels * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    white = 0.8 * levels + 0.2 * torch.maximum(levels, 1.5 * grey + 127.5)
    assert torch.allclose(nothing, white, atol=1e-3)
    point = torch.zeros(1, 1, 16, 16)
    point[0, 0, 2, 3] = 200.0
    dark = torch.zeros(1, 3, 16, 16)
    fallen = fallen_snow(dark, point, radius=0.0, sigma=1.0, degrees=torch.zeros(1), blend=1.0)
    assert fallen[0, 0].nonzero().tolist() == [[2, 3], [13, 12]]


@pytest.mark.parametrize("detail", [32, 64, 224])
def test_frost_has_the_measured_colour_and_contrast(detail: int) -> None:
    layer = frost_layer(_streams(400, 5), 32, 32, detail=detail)
    assert layer.min() >= 0.0
    assert layer.max() <= 255.0
    red, green, blue = layer.mean(dim=(0, 2, 3)).tolist()
    expected = (0.2 * 75.7 + 0.4 * 198.3 + 0.2 * 142.7 + 0.2 * 103.1, 164.9, 177.1)
    assert (red, green, blue) == pytest.approx(expected, rel=0.05)
    teal = layer.mean(dim=(2, 3))
    teal = layer[(teal[:, 2] - teal[:, 0]) > 60]
    assert len(teal) / 400 == pytest.approx(0.2, abs=0.06)
    flat = teal.transpose(0, 1).flatten(2)
    flat = flat - flat.mean(dim=2, keepdim=True)
    correlation = torch.corrcoef(flat.flatten(1))
    measured = correlation[[0, 1, 0], [1, 2, 2]].tolist()
    assert measured == pytest.approx([0.82, 0.93, 0.57], abs=0.06)


def test_frost_weighs_image_and_layer() -> None:
    levels = torch.rand(2, 1, 16, 16) * 255
    weights = {"image_weight": 0.7, "frost_weight": 0.0, "detail": 32}
    assert torch.allclose(frost(levels, _streams(2), **weights), 0.7 * levels)  # type: ignore[arg-type]


def test_distance_equals_scipy_up_to_twenty_pixels() -> None:
    edges = torch.rand(3, 1, 70, 24) < 0.01
    edges[2] = False
    got = _distance(edges)
    for n in range(2):
        expected = ndimage.distance_transform_edt(~edges[n, 0].numpy()).clip(max=20)
        np.testing.assert_allclose(got[n, 0].numpy(), expected, atol=1e-5)
    assert (got[2] == 20).all()


def test_equalise_by_hand() -> None:
    relief = torch.tensor([3.0, 3.0, 5.0, 5.0, 5.0, 9.0]).view(1, 1, 2, 3)
    assert _equalise(relief).flatten().tolist() == [0, 0, 191, 191, 191, 255]
    assert _equalise(torch.full((1, 1, 2, 2), 7.0)).unique().tolist() == [0.0]


def test_outlines_follow_a_square() -> None:
    drops = torch.zeros(1, 1, 20, 20)
    drops[..., 6:14, 6:14] = 200.0
    edges = _outlines(drops)[0, 0]
    assert edges[10].nonzero().flatten().tolist() in ([5, 13], [6, 13], [6, 14], [5, 14])
    assert not edges[8:12, 8:12].any()
    assert not _outlines(torch.zeros(1, 1, 20, 20)).any()


def test_water_adds_light_and_mud_covers() -> None:
    levels = torch.full((30, 3, 32, 32), 100.0)
    common = {"loc": 0.65, "scale": 0.3, "sigma": 1.0, "threshold": 0.69, "strength": 0.6}
    wet = spatter(levels, _streams(30), kind="water", **common)  # type: ignore[arg-type]
    assert (wet >= 100.0).all()
    assert wet.amax((2, 3))[:, 1].tolist() == pytest.approx([100 + 0.6 * 238] * 30, abs=0.1)
    muddy = spatter(levels, _streams(30), kind="mud", **common)  # type: ignore[arg-type]
    assert (muddy <= 100.001).all()
    assert muddy.amin((0, 2, 3)).tolist() == pytest.approx([63, 42, 20], abs=0.5)


def test_spatter_without_a_drop_leaves_the_image() -> None:
    levels = torch.rand(2, 1, 16, 16) * 255
    dry = {"loc": 0.0, "scale": 0.01, "sigma": 1.0, "threshold": 0.7, "strength": 0.6}
    for kind in ("water", "mud"):
        assert torch.equal(spatter(levels, _streams(2), kind=kind, **dry), levels)  # type: ignore[arg-type]
