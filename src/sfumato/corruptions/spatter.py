"""Spatter: drops of water or mud on the lens.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.corruptions.colour import luma
from sfumato.corruptions.filters import correlate, gaussian_filter, whole_levels
from sfumato.corruptions.random_numbers import Streams

_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_RELIEF = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
_MEAN = torch.full((3, 3), 1.0 / 9.0)
_SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
_FAR = 20  # distances are cut here


def spatter(
    levels: Tensor,
    streams: Streams,
    *,
    loc: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    kind: Literal["water", "mud"],
) -> Tensor:
    """Blurred normal noise over a threshold is liquid: water adds light, mud covers."""
    noise = streams.normal(1, *levels.shape[-2:], mean=loc, std=scale)
    liquid = gaussian_filter(noise, sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if kind == "water":
        return levels + strength * _water_mask(liquid) * _colour(levels, _WATER)
    mask = gaussian_filter((liquid > threshold).float(), strength)
    mask = torch.where(mask < 0.8, 0.0, mask)
    return torch.lerp(levels, _colour(levels, _MUD).expand_as(levels), mask)


def _colour(levels: Tensor, rgb: tuple[float, float, float]) -> Tensor:
    colour = levels.new_tensor(rgb).view(1, 3, 1, 1)
    return colour if levels.shape[1] == 3 else luma(colour)


def _water_mask(liquid: Tensor) -> Tensor:
    """(N, 1, H, W) in [0, 1]: the liquid, lit as a relief of the distance from its outlines."""
    drops = (liquid * 255.0).floor_().clamp_max_(255.0)
    distance = _distance(_outlines(drops))
    relief = whole_levels(correlate(distance, _MEAN, border="mirror"))
    relief = correlate(_equalise(relief), _RELIEF, border="mirror").round_().clamp_(0.0, 255.0)
    mask = drops * correlate(relief, _MEAN, border="mirror").round_()
    return mask / mask.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1.0)


def _outlines(drops: Tensor, *, low: float = 50.0, high: float = 150.0) -> Tensor:
    """(N, 1, H, W) true on Canny edges: ridges over `low` that lead to one over `high`."""
    dx = correlate(drops, _SOBEL, border="edge").round_()
    dy = correlate(drops, _SOBEL.T, border="edge").round_()
    size = dx.abs() + dy.abs()
    ridge = _is_ridge(size, dx, dy)
    weak = ridge & (size > low)
    edges = ridge & (size > high)
    while True:
        grown = (F.max_pool2d(edges.float(), 3, stride=1, padding=1) > 0.0) & weak
        if torch.equal(grown, edges):
            return edges
        edges = grown


def _is_ridge(size: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """No smaller than the neighbour behind and larger than the one ahead, across the edge."""
    height, width = size.shape[-2:]
    padded = F.pad(size, (1, 1, 1, 1))

    def at(y: int, x: int) -> Tensor:
        return padded[..., 1 + y : 1 + y + height, 1 + x : 1 + x + width]

    tangent = 0.4142135623730951  # of 22.5 degrees
    flat = dy.abs() < dx.abs() * tangent
    steep = dy.abs() > dx.abs() * (tangent + 2.0)
    along = (dx * dy) >= 0.0
    sideways = (size > at(0, -1)) & (size >= at(0, 1))
    upright = (size > at(-1, 0)) & (size >= at(1, 0))
    falling = (size > at(-1, -1)) & (size > at(1, 1))
    rising = (size > at(-1, 1)) & (size > at(1, -1))
    slanted = torch.where(along, falling, rising)
    return torch.where(flat, sideways, torch.where(steep, upright, slanted))


def _distance(edges: Tensor) -> Tensor:
    """(N, 1, H, W) Euclidean distance to the nearest edge, at most 20 pixels."""
    height, width = edges.shape[-2:]
    far = float(2 * _FAR)
    x = torch.arange(width, dtype=torch.float32, device=edges.device)
    before = torch.where(edges, x, -far).cummax(dim=-1).values
    after = torch.where(edges, x, width + far).flip(-1).cummin(dim=-1).values.flip(-1)
    nearest = torch.minimum(x - before, after - x).clamp_max_(_FAR).square_()
    reach = min(_FAR, height - 1)
    padded = F.pad(nearest, (0, 0, reach, reach), value=far * far)
    best = nearest
    for dy in range(-reach, reach + 1):
        best = torch.minimum(best, padded[..., reach + dy : reach + dy + height, :] + dy * dy)
    return best.sqrt_()


def _equalise(relief: Tensor) -> Tensor:
    """Histogram equalisation of each image, its lowest level becoming black."""
    level = relief.flatten(1).long()
    counts = torch.zeros(len(level), 256, dtype=torch.float32, device=relief.device)
    counts.scatter_add_(1, level, torch.ones_like(level, dtype=torch.float32))
    lowest = level.amin(dim=1, keepdim=True)
    below = counts.gather(1, lowest)
    ranks = (counts.cumsum(1) - below) / (level.shape[1] - below).clamp_min(1.0)
    table = (255.0 * ranks).round_()
    return table.gather(1, level).view_as(relief)
