"""Blur: defocus, frosted glass, motion, zoom, and the plain Gaussian one.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.corruptions.filters import (
    clipped_zoom,
    correlate,
    gaussian_filter,
    line_blur,
    whole_levels,
    zoom_geometry,
)
from sfumato.corruptions.random_numbers import Streams


@lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_blur: float) -> Tensor:
    """A disk of whole pixels, its rim softened by a small Gaussian; without the empty margin.

    Example:
        >>> disk_kernel(1.5, 0.1)
        tensor([[0.1111, 0.1111, 0.1111],
                [0.1111, 0.1111, 0.1111],
                [0.1111, 0.1111, 0.1111]])
    """
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    axis = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).double()
    offsets = torch.arange(-soft, soft + 1, dtype=torch.float64)
    rim = (-0.5 * (offsets / alias_blur) ** 2).exp()
    rim /= rim.sum()
    padded = F.pad((disk / disk.sum())[None, None], (soft,) * 4, mode="reflect")
    kernel = F.conv2d(padded, (rim[:, None] * rim)[None, None])[0, 0].float()
    filled = int((kernel.sum(0) > 1e-9).nonzero()[0])
    return kernel[filled : len(kernel) - filled, filled : len(kernel) - filled]


def defocus_blur(levels: Tensor, *, radius: float, alias_blur: float) -> Tensor:
    """Every point becomes a soft disk."""
    return correlate(levels, disk_kernel(radius, alias_blur), border="mirror")


def gaussian_blur(levels: Tensor, *, sigma: float) -> Tensor:
    return gaussian_filter(levels, sigma)


def glass_blur(
    levels: Tensor, streams: Streams, *, sigma: float, max_delta: int, iterations: int
) -> Tensor:
    """Blur, let every pixel take the value of a near one, blur again.

    As published, the offsets leave out +max_delta (the picture drifts down and to the right),
    values are copied and not swapped, and the first max_delta + 1 rows and columns stay.
    """
    channels, height, width = levels.shape[1:]
    softened = whole_levels(gaussian_filter(levels, sigma))
    source = _copied_from(streams, height, width, max_delta)
    for _ in range(iterations - 1):
        source = source.gather(1, _copied_from(streams, height, width, max_delta))
    index = source[:, None].expand(-1, channels, -1)
    shuffled = softened.flatten(2).gather(2, index).view_as(levels)
    return gaussian_filter(shuffled, sigma)


def _copied_from(streams: Streams, height: int, width: int, max_delta: int) -> Tensor:
    """(N, H * W) position whose value each pixel holds after one scan.

    The scan runs from the last pixel to the first, so a pixel that copies from a later one gets
    what that one has already copied: its chain of sources is followed by doubling.
    """
    rows, columns = height - 2 * max_delta, width - 2 * max_delta
    moves = streams.integers(2, rows, columns, low=-max_delta, high=max_delta)
    place = torch.arange(height * width, device=moves.device).view(height, width)
    touched = torch.zeros_like(place, dtype=torch.bool)
    inner = (
        slice(max_delta + 1, max_delta + 1 + rows),
        slice(max_delta + 1, max_delta + 1 + columns),
    )
    touched[inner] = True
    source = place.expand(len(moves), -1, -1).clone()
    source[:, inner[0], inner[1]] += moves[:, 0] * width + moves[:, 1]
    source = source.flatten(1)
    pending = touched.flatten()[source] & (source > place.flatten())
    while bool(pending.any()):
        source, pending = (
            torch.where(pending, source.gather(1, source), source),
            pending & pending.gather(1, source),
        )
    return source


def motion_blur(levels: Tensor, streams: Streams, *, radius: float, sigma: float) -> Tensor:
    """One-sided blur along a line within 45 degrees of the horizontal."""
    degrees = streams.uniform(low=-45.0, high=45.0)
    return line_blur(levels, radius=radius, sigma=sigma, degrees=degrees)


def zoom_blur(levels: Tensor, *, count: int, step: float) -> Tensor:
    """Mean of the image and of its zooms by 1, 1 + step, ..., 1 + (count - 1) step."""
    height, width = levels.shape[-2:]
    increment = (1.0 + step) - 1.0  # rounded like the published list of factors
    factors = [1.0 + i * increment for i in range(count)]
    shapes = [(zoom_geometry(height, f), zoom_geometry(width, f)) for f in factors]
    times = Counter(shapes)
    total = levels.clone()
    for shape, factor in dict(zip(shapes, factors, strict=True)).items():
        total.add_(clipped_zoom(levels, factor), alpha=times[shape])
    return total.div_(count + 1)
