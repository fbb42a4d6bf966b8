"""Silhouettes and textures: functions over the plane with the properties the renderer relies on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sfumato.data.scenes.render import CLASSES, CONTEXTS, TEXTURES, signed_distance

KINDS = range(len(CLASSES))


def _plane(points: int, reach: float) -> tuple[Tensor, Tensor]:
    line = ((torch.arange(points) + 0.5) / points - 0.5) * 2 * reach
    y, x = torch.meshgrid(line, line, indexing="ij")
    return x, y


def _at(name: str, x: float, y: float) -> float:
    return float(signed_distance(CLASSES.index(name), torch.tensor([x]), torch.tensor([y])))


def test_ten_classes_with_ten_contexts() -> None:
    assert len(set(CLASSES)) == len(set(CONTEXTS)) == 10


def test_disc_of_area_one_by_hand() -> None:
    radius = 1 / math.sqrt(math.pi)
    assert _at("disc", 0.0, 0.0) == pytest.approx(-radius, abs=1e-4)
    assert _at("disc", 0.6, 0.8) == pytest.approx(1.0 - radius, abs=1e-4)


def test_cross_by_hand() -> None:
    # an arm reaches 1 and is 0.72 wide in units of the square root of its area
    side = 1 / math.sqrt(4 * 0.72 - 0.72**2)
    assert _at("cross", 0.0, 0.0) == pytest.approx(-0.36 * side, abs=1e-4)
    assert _at("cross", 0.0, 1.5 * side) == pytest.approx(0.5 * side, abs=1e-4)


def test_the_ring_has_a_hole_and_the_arrow_points_up() -> None:
    assert _at("ring", 0.0, 0.0) > 0 > _at("ring", 0.45, 0.0)
    assert _at("arrow", 0.0, 0.7) < 0 < _at("arrow", 0.4, -0.5)


@pytest.mark.parametrize("kind", KINDS, ids=CLASSES)
def test_area_is_one_near_the_origin(kind: int) -> None:
    x, y = _plane(800, 1.2)
    inside = signed_distance(kind, x, y) <= 0
    assert float(inside.float().mean()) * 2.4**2 == pytest.approx(1.0, abs=0.005)
    assert abs(float(x[inside].mean())) < 0.16
    assert abs(float(y[inside].mean())) < 0.16
    assert float((x * x + y * y)[inside].max()) < 1.0


@pytest.mark.parametrize("kind", KINDS, ids=CLASSES)
def test_distance_never_grows_faster_than_the_way(kind: int) -> None:
    points = torch.rand(20_000, 2, dtype=torch.float64) * 3 - 1.5
    steps = torch.randn_like(points) * 0.05
    before = signed_distance(kind, points[:, 0], points[:, 1])
    after = signed_distance(kind, points[:, 0] + steps[:, 0], points[:, 1] + steps[:, 1])
    assert bool(((after - before).abs() <= steps.norm(dim=1) + 1e-9).all())


@pytest.mark.parametrize("kind", KINDS, ids=CLASSES)
def test_distance_is_exact_along_nearly_all_of_the_edge(kind: int) -> None:
    x, y = (axis.double().requires_grad_() for axis in _plane(400, 1.1))
    distance = signed_distance(kind, x, y)
    across, up = torch.autograd.grad(distance.sum(), (x, y))
    slope = (across.square() + up.square()).sqrt()[distance.abs() < 0.01]
    assert float((slope - 1).abs().median()) < 1e-6
    assert float(((slope - 1).abs() < 1e-3).float().mean()) > 0.97


def test_silhouettes_are_distinct_but_alike() -> None:
    x, y = _plane(200, 1.1)
    inside = torch.stack([signed_distance(kind, x, y) <= 0 for kind in KINDS]).flatten(1)
    both = (inside.unsqueeze(0) & inside.unsqueeze(1)).sum(2)
    either = (inside.unsqueeze(0) | inside.unsqueeze(1)).sum(2)
    overlap = (both / either).fill_diagonal_(0.0)
    assert 0.7 < float(overlap.max()) < 0.9


@pytest.mark.parametrize("kind", KINDS, ids=CONTEXTS)
def test_textures_fill_the_unit_range(kind: int) -> None:
    x, y = _plane(100, 6.0)
    pattern = TEXTURES[kind](x, y, torch.tensor(0.3))
    assert pattern.shape == x.shape
    assert float(pattern.min()) >= 0.0
    assert float(pattern.max()) <= 1.0
    assert float(pattern.max() - pattern.min()) > 0.8
    assert 0.15 < float(pattern.mean()) < 0.85


def test_stripes_and_bricks_by_hand() -> None:
    stripes, bricks = (TEXTURES[CONTEXTS.index(name)] for name in ("stripes", "bricks"))
    x, zero = torch.tensor([0.0, 0.25, 0.5, 1.0]), torch.zeros(4)
    assert stripes(x, zero, zero).tolist() == [1.0, 0.5, 0.0, 1.0]
    # a joint between rows; a brick's middle; a joint between bricks, shifted in the next row
    x, y = torch.tensor([0.3, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.5, 0.5, 1.5])
    assert bricks(x, y, zero).tolist() == [1.0, 0.0, 1.0, 1.0]
