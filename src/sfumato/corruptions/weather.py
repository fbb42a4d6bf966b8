"""Corruptions of weather: snow, fog, frost and spatter."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.corruptions.camera import luma
from sfumato.corruptions.filters import (
    clipped_zoom,
    correlate,
    gaussian_filter,
    line_blur,
    whole_levels,
)
from sfumato.corruptions.random_numbers import Streams


def snow(
    levels: Tensor,
    streams: Streams,
    *,
    loc: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    blend: float,
) -> Tensor:
    """Flakes blurred along their fall, over a whitened image."""
    flakes = snow_flakes(levels, streams, loc=loc, scale=scale, zoom=zoom, threshold=threshold)
    degrees = streams.uniform(low=-135.0, high=-45.0)
    return fallen_snow(levels, flakes, radius=radius, sigma=sigma, degrees=degrees, blend=blend)


def snow_flakes(
    levels: Tensor, streams: Streams, *, loc: float, scale: float, zoom: float, threshold: float
) -> Tensor:
    """(N, 1, H, W) bright spots: zoomed normal noise over a threshold, in whole levels."""
    noise = streams.normal(1, *levels.shape[-2:], mean=loc, std=scale)
    noise = clipped_zoom(noise, zoom)
    noise = torch.where(noise < threshold, 0.0, noise)
    return noise.clamp_(0.0, 1.0).mul_(255.0).floor_()


def fallen_snow(
    levels: Tensor, flakes: Tensor, *, radius: float, sigma: float, degrees: Tensor, blend: float
) -> Tensor:
    """The image whitened, plus the flakes blurred along `degrees`, plus the same upside down."""
    layer = line_blur(flakes, radius=radius, sigma=sigma, degrees=degrees).floor_()
    layer = layer + layer.rot90(2, (2, 3))
    whitened = torch.maximum(levels, luma(levels) * 1.5 + 127.5)
    return torch.lerp(whitened, levels, blend).add_(layer)


def fog(levels: Tensor, streams: Streams, *, strength: float, decay: float) -> Tensor:
    """(x + strength * map) * m / (m + strength), m the image's largest value."""
    height, width = levels.shape[-2:]
    start = levels.new_zeros(len(levels), 1, 1)
    plasma = _plasma(start, streams, max(height, width), decay)[:, None, :height, :width]
    brightest = levels.amax(dim=(1, 2, 3), keepdim=True)
    haze = 255.0 * strength
    return (levels + haze * plasma) * (brightest / (brightest + haze))


def _plasma(points: Tensor, streams: Streams, side: int, decay: float) -> Tensor:
    """(N, S, S) diamond-square noise on a torus in [0, 1], S the next power of two."""
    amplitude = 1.0
    while points.shape[-1] < side:
        points = _refine(points, streams, amplitude)
        amplitude /= decay * decay
    points -= points.amin(dim=(1, 2), keepdim=True)
    return points / points.amax(dim=(1, 2), keepdim=True)


def _refine(corners: Tensor, streams: Streams, amplitude: float) -> Tensor:
    """Twice as many points each way: centres from corners, then edges from both."""
    count = corners.shape[-1]
    shift = streams.uniform(3, count, count, low=-amplitude, high=amplitude)
    below = corners + corners.roll(-1, 1)
    right = corners + corners.roll(-1, 2)
    centres = (below + below.roll(-1, 2)) / 4.0 + shift[:, 0]
    fine = corners.new_empty(len(corners), 2 * count, 2 * count)
    fine[:, ::2, ::2] = corners
    fine[:, 1::2, 1::2] = centres
    fine[:, ::2, 1::2] = (right + centres + centres.roll(1, 1)) / 4.0 + shift[:, 1]
    fine[:, 1::2, ::2] = (below + centres + centres.roll(1, 2)) / 4.0 + shift[:, 2]
    return fine


# Four kinds: teal foil, white rime, blue-grey needles, dark needles. Measured on windows of 32, 64
# and 224 pixels of the photographs: mean colour, spread of the window's mean, contrast of each
# channel inside a window, slope of the power spectrum on a log-log scale.
_SHARES = (0.2, 0.4, 0.2, 0.2)

_COLOUR = {
    32: ((75.7, 148.0, 165.0), (198.3, 202.8, 212.1), (142.7, 157.5, 170.1), (103.1, 114.4, 126.2)),
    64: ((76.4, 147.7, 164.4), (198.0, 202.3, 211.6), (143.9, 158.7, 171.5), (101.5, 112.9, 124.8)),
    224: ((79.2, 149.2, 165.3), (197.5, 201.8, 211.0), (142.2, 157.1, 169.8), (98.7, 110.2, 122.2)),
}

_MEAN_SPREAD = {32: (10.5, 8.7, 10.2, 16.1), 64: (9.6, 6.3, 7.1, 12.4), 224: (9.1, 5.8, 7.3, 10.0)}

_CONTRAST = {
    32: ((21.0, 12.9, 12.0), (17.5, 18.1, 18.5), (25.7, 25.7, 26.8), (34.8, 33.9, 32.6)),
    64: ((21.2, 13.0, 12.2), (17.8, 18.4, 18.9), (23.3, 23.3, 24.6), (32.9, 32.0, 30.7)),
    224: ((23.5, 14.4, 13.4), (19.4, 20.1, 20.5), (26.4, 26.4, 27.6), (35.1, 34.2, 32.9)),
}

_SLOPE = {
    32: (-1.54, -0.88, -0.45, -1.19),
    64: (-1.91, -1.26, -0.93, -1.55),
    224: (-1.85, -1.62, -1.23, -1.75),
}

# The channels of one kind share their texture, except in the teal one: correlation .82 and .93 with
# green is an angle between textures.
_HUE_ANGLE = ((-0.606, 0.0, 0.368), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
# At 32 pixels the published layers are grain; needles show from 64 on, never in the foil.
_DIRECTIONS = {32: 1, 64: 4, 224: 4}
_FLATTENING = 0.35  # of the slope, by taking the brightest of the directions
_NEEDLES = (math.inf, 0.12, 0.12, 0.12)
_NEEDLE_WIDTH = {32: (math.inf,) * 4, 64: _NEEDLES, 224: _NEEDLES}


def frost(
    levels: Tensor, streams: Streams, *, image_weight: float, frost_weight: float, detail: int
) -> Tensor:
    """image_weight * x + frost_weight * layer.

    Differs: the published sets cut the layer from five photographs. This one is noise with their
    colour, contrast and spectrum, drawn out into needles from 64 pixels on.
    """
    layer = frost_layer(streams, *levels.shape[-2:], detail=detail)
    if levels.shape[1] == 1:
        layer = luma(layer)
    return levels * image_weight + layer.mul_(frost_weight)


def frost_layer(streams: Streams, height: int, width: int, *, detail: int) -> Tensor:
    """(N, 3, H, W) levels of frost, each image of its own kind."""
    chance = streams.uniform()
    shares = chance.new_tensor(_SHARES)
    kind = torch.bucketize(chance, shares.cumsum(0)[:-1], right=True)

    def pick(table: tuple[float, ...] | tuple[tuple[float, ...], ...]) -> Tensor:
        """(N, 1 or 3, 1, 1) the entry of each image's kind."""
        return chance.new_tensor(table)[kind].view(len(kind), -1, 1, 1)

    mean = pick(_COLOUR[detail]) + pick(_MEAN_SPREAD[detail]) * streams.normal(1, 1, 1)
    amplitude = _amplitudes(height, width, detail).to(chance.device)[kind]
    common, other = _textures(streams, amplitude, pick(_NEEDLE_WIDTH[detail]), _DIRECTIONS[detail])
    angle = pick(_HUE_ANGLE)
    texture = common * angle.cos() + other * angle.sin()
    return (mean + pick(_CONTRAST[detail]) * texture).clamp_(0.0, 255.0)


@lru_cache(maxsize=8)
def _amplitudes(height: int, width: int, detail: int) -> Tensor:
    """(4, 1, H, W) root of the power spectrum of each kind, without the mean."""
    radius = torch.hypot(*_frequencies(height, width))
    radius[0, 0] = math.inf
    slope = torch.tensor(_SLOPE[detail]) - (_FLATTENING if _DIRECTIONS[detail] > 1 else 0.0)
    return radius ** (0.5 * slope.view(-1, 1, 1, 1))


def _frequencies(height: int, width: int) -> tuple[Tensor, Tensor]:
    y, x = torch.meshgrid(torch.fft.fftfreq(height), torch.fft.fftfreq(width), indexing="ij")
    return y, x


def _textures(
    streams: Streams, amplitude: Tensor, needle_width: Tensor, directions: int
) -> tuple[Tensor, Tensor]:
    """Two (N, 1, H, W) textures of mean 0, variance 1 and the given amplitude spectrum.

    Each direction is noise whose spectrum is confined to a narrow fan, that is, streaks; the
    brightest streak wins at each pixel. The spectrum is even, so one transform of complex noise
    gives two independent textures.
    """
    height, width = amplitude.shape[-2:]
    turns = torch.arange(directions, device=amplitude.device) / directions
    turns = turns + streams.uniform(1) + streams.uniform(directions, high=0.15)
    bearing = torch.atan2(*_frequencies(height, width)).to(amplitude.device)
    bearing = bearing - (math.pi * turns)[..., None, None]
    fan = (-0.5 * (bearing.sin_() / needle_width).square()).exp_()
    noise = streams.normal(directions, height, width, 2)
    streaks = torch.fft.ifft2(torch.view_as_complex(noise.mul_((amplitude * fan)[..., None])))
    common, other = (
        _standardise(_standardise(part).amax(dim=1, keepdim=True))
        for part in (streaks.real, streaks.imag)
    )
    return common, other


def _standardise(maps: Tensor) -> Tensor:
    std, mean = torch.std_mean(maps, dim=(-2, -1), keepdim=True)
    return (maps - mean) / std


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

    def at(y: int, x: int) -> Tensor:
        return F.pad(size, (-x, x, -y, y))  # the neighbour so far away; zeros outside

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
    far = 2.0 * _FAR
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
    below = counts.gather(1, level.amin(dim=1, keepdim=True))
    ranks = (counts.cumsum(1) - below) / (level.shape[1] - below).clamp_min(1.0)
    return (255.0 * ranks).round_().gather(1, level).view_as(relief)
