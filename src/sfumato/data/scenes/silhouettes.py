"""The ten silhouettes, each a signed distance: negative inside, zero on the edge.

Every silhouette has area 1 and its middle near the origin, so one `scale` means one area for all
classes and a morph (a blend of two distances) stays in place. Built from half-planes and discs by
`maximum` (intersection) and `minimum` (union): exact along edges, a lower bound of the distance
beyond a corner. Only operations that every processor rounds alike touch pixels (sums, products,
quotients, floors, and roots by `length`; no sine, no `torch.add(alpha=)` or `addcmul`, which some
processors fuse), so the bytes depend on no chunk, thread, vector unit or machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data.scenes.length import length

Distance = Callable[[Tensor, Tensor], Tensor]


def disc(x: Tensor, y: Tensor) -> Tensor:
    return length(x, y) - 1.0


def ring(x: Tensor, y: Tensor) -> Tensor:
    return (length(x, y) - 0.72).abs() - 0.28


def crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(length(x - 0.2, y) - 1.0, 0.78 - length(x - 0.7, y))


def drop(x: Tensor, y: Tensor) -> Tensor:
    """A disc and the cone of its two tangents through the tip at (0, 1.65)."""
    lower = y + 0.25
    tip, sine = 1.9, 1.0 / 1.9
    cosine = math.sqrt(1.0 - sine * sine)
    cone = x.abs() * cosine + (lower - tip) * sine
    neck = sine - lower  # the tangents touch the disc at height `sine`: the cone starts there
    return torch.minimum(length(x, lower) - 1.0, torch.maximum(cone, neck))


def heart(x: Tensor, y: Tensor) -> Tensor:
    """A square on its corner with a half-disc on each upper side."""
    side, upper = x.abs(), y + 0.3
    square = (side + upper.abs() - 1.0) * math.sqrt(0.5)
    return torch.minimum(square, length(side - 0.5, upper - 0.5) - math.sqrt(0.5))


def leaf(x: Tensor, y: Tensor) -> Tensor:
    """Where two discs overlap."""
    return length(x.abs() + 0.75, y) - 1.35


def star(x: Tensor, y: Tensor) -> Tensor:
    """Five points: mirrored into one tenth of the plane, where a single edge remains."""
    side, height = x.abs(), y
    for angle in (0.6 * math.pi, 0.2 * math.pi):
        normal_x, normal_y = math.cos(angle), -math.sin(angle)
        beyond = 2.0 * (side * normal_x + height * normal_y).clamp_min(0.0)
        side, height = (side - beyond * normal_x).abs(), height - beyond * normal_y
    inner_x, inner_y = 0.5 * math.sin(0.2 * math.pi), 0.5 * math.cos(0.2 * math.pi)
    slope = math.hypot(inner_x, 1.0 - inner_y)
    return (side * (1.0 - inner_y) + (height - 1.0) * inner_x) / slope


def cross(x: Tensor, y: Tensor) -> Tensor:
    side, height = x.abs(), y.abs()
    long, short = torch.maximum(side, height), torch.minimum(side, height)
    return torch.maximum(long - 1.0, short - 0.36)


def arrow(x: Tensor, y: Tensor) -> Tensor:
    side = x.abs()
    head = torch.maximum((side + y - 1.0) * math.sqrt(0.5), 0.05 - y)
    shaft = torch.maximum(side - 0.36, (y + 0.1).abs() - 0.85)
    return torch.minimum(head, shaft)


def house(x: Tensor, y: Tensor) -> Tensor:
    side = x.abs()
    walls = torch.maximum(side - 0.75, -0.85 - y)
    return torch.maximum(walls, (side + y - 1.0) * math.sqrt(0.5))


_UNITS: tuple[tuple[Distance, float], ...] = (
    (disc, 1.7725),
    (ring, 1.5917),
    (crescent, 1.2586),
    (drop, 1.9341),
    (heart, 1.8898),
    (leaf, 1.3765),
    (star, 1.2122),
    (cross, 1.5367),
    (arrow, 1.2787),
    (house, 1.4876),
)
CLASSES: tuple[str, ...] = tuple(silhouette.__name__ for silhouette, _ in _UNITS)


def signed_distance(silhouette: int, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance from (x, y) to the edge of silhouette number `silhouette`, of area 1.

    `_UNITS` holds the square root of each area as its function draws it.

    Example:
        >>> signed_distance(CLASSES.index("disc"), torch.zeros(1), torch.zeros(1))
        tensor([-0.5642])
    """
    function, unit = _UNITS[silhouette]
    return function(x * unit, y * unit) / unit
