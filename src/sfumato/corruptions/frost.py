"""Frost without photographs: a procedural layer with the statistics of the published ones.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from sfumato.corruptions.colour import luma
from sfumato.corruptions.random_numbers import Streams

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

    Args:
        levels: (N, C, H, W).
        streams: the images' randomness.
        image_weight: weight of the image.
        frost_weight: weight of the layer.
        detail: 32, 64 or 224, the window size at which the photographs were measured.
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
    common, other = (_standardise(part) for part in (streaks.real, streaks.imag))
    return _brightest(common), _brightest(other)


def _brightest(streaks: Tensor) -> Tensor:
    return _standardise(streaks.amax(dim=1, keepdim=True))


def _standardise(maps: Tensor) -> Tensor:
    std, mean = torch.std_mean(maps, dim=(-2, -1), keepdim=True)
    return (maps - mean) / std
