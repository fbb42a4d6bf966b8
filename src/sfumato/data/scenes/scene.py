"""What a scene is made of, as numbers: one row per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

Rows = TypeVar("Rows", bound=tuple[Any, ...])


class Background(NamedTuple):
    """A texture between two colours, rotated about its origin (x, y)."""

    texture: Tensor
    x: Tensor
    y: Tensor
    cosine: Tensor
    sine: Tensor
    frequency: Tensor  # periods per image side
    tone: Tensor
    low: Tensor  # (N, 3)
    high: Tensor  # (N, 3)


class Distractors(NamedTuple):
    """Short thick lines behind the figures, K per image; one without length is a blob."""

    x: Tensor  # (N, K), as all but the colour
    y: Tensor
    cosine: Tensor
    sine: Tensor
    half_length: Tensor
    radius: Tensor  # negative where absent
    colour: Tensor  # (N, K, 3)


class Figure(NamedTuple):
    """A silhouette of class `first`, or its morph towards `second` where `weight` is above 0."""

    first: Tensor
    second: Tensor
    weight: Tensor
    x: Tensor
    y: Tensor
    cosine: Tensor
    sine: Tensor
    scale: Tensor  # square root of the area
    stretch: Tensor  # width over height, as a square root
    colour: Tensor  # (N, 3)


class Light(NamedTuple):
    """The slope of the brightness over the image."""

    x: Tensor
    y: Tensor


class Scene(NamedTuple):
    """All that is seen, back to front. Lengths count in image sides, from the middle, y up."""

    background: Background
    distractors: Distractors
    figures: tuple[Figure, ...]
    light: Light


def apply(rows: Rows, function: Callable[[Tensor], Tensor]) -> Rows:
    """The same parameters with `function` applied to every tensor."""
    parts = [apply(p, function) if isinstance(p, tuple) else function(p) for p in rows]
    return cast(Rows, tuple(parts) if type(rows) is tuple else type(rows)(*parts))


def take(rows: Rows, chosen: slice | int | Tensor | tuple[Tensor, int]) -> Rows:
    """The same parameters for the `chosen` rows only."""
    return apply(rows, lambda values: values[chosen])
