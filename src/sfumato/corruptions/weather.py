"""Weather: snow and fog.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.corruptions.colour import luma
from sfumato.corruptions.filters import clipped_zoom, line_blur
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
