"""The ten contexts: background textures as patterns in [0, 1] over the plane, one period per unit.

Like the silhouettes they use exactly rounded operations only. `tone` is the sample's own number in
[0, 1): it makes `fade`, `clouds` and the cells of `mosaic` differ between samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data.scenes.length import length

Pattern = Callable[[Tensor, Tensor, Tensor], Tensor]


def _triangle(x: Tensor) -> Tensor:
    """A wave from 1 at the integers down to 0 at the halves."""
    return ((x - x.floor()) * 2.0 - 1.0).abs_()


def _sharpen(wave: Tensor, slope: float, middle: float = 0.5) -> Tensor:
    return ((wave - middle) * slope + 0.5).clamp_(0.0, 1.0)


def _smooth(wave: Tensor) -> Tensor:
    """3w^2 - 2w^3: rounds the corners of a triangle wave into something like a cosine."""
    return wave * wave * (3.0 - 2.0 * wave)


def fade(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _smooth(_triangle(0.12 * x + tone))


def clouds(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    first = _smooth(_triangle(0.31 * x + 0.17 * y + tone))
    second = _smooth(_triangle(0.43 * y - 0.23 * x + 3.0 * tone))
    third = _smooth(_triangle(0.37 * x + 0.61 * y + first))
    return (first + second + third) * (1.0 / 3.0)


def mosaic(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    """Cells with a brightness each, scattered by the fractional part of a product."""
    mixed = (2.0 * x).floor() * 0.7548777 + (2.0 * y).floor() * 0.5698403 + tone
    mixed = (mixed - mixed.floor()) * 47.3
    mixed = mixed * (mixed + 13.7)
    return mixed - mixed.floor()


def stripes(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(x), 2.5)


def zigzag(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(x + 0.7 * _triangle(0.5 * y)), 2.5)


def ripples(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(length(x, y)), 2.5)


def dots(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    across, along = _triangle(x), _triangle(y)
    return _sharpen((across * across + along * along) * 0.5, -4.0, 0.25)


def checks(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen((_triangle(0.5 * x) - 0.5) * (_triangle(0.5 * y) - 0.5), 30.0, 0.0)


def grid(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(torch.maximum(_triangle(x), _triangle(y)), 4.0, 0.72)


def bricks(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    row = y.floor()
    shifted = 0.5 * x + 0.5 * (row - 2.0 * (0.5 * row).floor())
    joint = torch.maximum(_triangle(shifted) * 2.0 - 1.0, _triangle(y))
    return _sharpen(joint, 4.0, 0.72)


TEXTURES: tuple[Pattern, ...] = (
    stripes,
    mosaic,
    bricks,
    ripples,
    fade,
    dots,
    clouds,
    zigzag,
    checks,
    grid,
)
CONTEXTS: tuple[str, ...] = tuple(texture.__name__ for texture in TEXTURES)
"""The habitual context of each class, in the order of the classes."""
