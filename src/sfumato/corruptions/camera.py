"""Corruptions of camera and file: noise, blur, light, and digital artefacts."""

from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from sfumato.corruptions.filters import (
    clipped_zoom,
    correlate,
    gaussian_filter,
    line_blur,
    pixel_grid,
    sample,
    whole_levels,
    zoom_geometry,
)
from sfumato.corruptions.random_numbers import Streams, poisson


def gaussian_noise(levels: Tensor, streams: Streams, *, std: float) -> Tensor:
    """x + std * n, n standard normal."""
    return streams.normal(*levels.shape[1:], std=255.0 * std).add_(levels)


def speckle_noise(levels: Tensor, streams: Streams, *, std: float) -> Tensor:
    """x + x * std * n: noise in proportion to the light."""
    return streams.normal(*levels.shape[1:], mean=1.0, std=std).mul_(levels)


def shot_noise(levels: Tensor, streams: Streams, *, photons: float) -> Tensor:
    """Poisson(x * photons) / photons: the noise of counting light."""
    counts = poisson(levels * (photons / 255.0), streams.normal(*levels.shape[1:]))
    return counts.mul_(255.0 / photons)


def impulse_noise(levels: Tensor, streams: Streams, *, amount: float) -> Tensor:
    """A share `amount` of the values becomes black or white, with equal chance."""
    chance = streams.uniform(*levels.shape[1:])
    extreme = torch.where(chance < 0.5 * amount, 0.0, 255.0)
    return torch.where(chance < amount, extreme, levels)


@lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_blur: float) -> Tensor:
    """A disk of whole pixels, its rim softened by a small Gaussian; without the empty margin."""
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
    y, x = (slice(max_delta + 1, max_delta + 1 + size) for size in (rows, columns))
    touched[y, x] = True
    source = place.expand(len(moves), -1, -1).clone()
    source[:, y, x] += moves[:, 0] * width + moves[:, 1]
    source = source.flatten(1)
    pending = touched.flatten()[source] & (source > place.flatten())
    while bool(pending.any()):
        still = pending & pending.gather(1, source)
        source, pending = torch.where(pending, source.gather(1, source), source), still
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
    total = levels.clone()
    for shape, factor in dict(zip(shapes, factors, strict=True)).items():
        total.add_(clipped_zoom(levels, factor), alpha=shapes.count(shape))
    return total.div_(count + 1)


def luma(levels: Tensor) -> Tensor:
    """(N, 1, H, W) grey value; a grey image is its own."""
    if levels.shape[1] == 1:
        return levels
    red, green, blue = levels.split(1, dim=1)
    return red * 0.299 + green * 0.587 + blue * 0.114


def brightness(levels: Tensor, *, shift: float) -> Tensor:
    """Add `shift` to the value V of hue, saturation, value: the pixel is scaled by V' / V."""
    value = levels.amax(dim=1, keepdim=True)
    raised = (value + 255.0 * shift).clamp_(0.0, 255.0)
    return torch.where(value > 0.0, levels * (raised / value), raised)


def contrast(levels: Tensor, *, factor: float) -> Tensor:
    """Pull every value towards its channel's mean."""
    mean = levels.mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, levels, factor)


def saturate(levels: Tensor, *, factor: float, shift: float) -> Tensor:
    """Saturation S becomes clip(factor * S + shift); a grey image is left as it is.

    A grey pixel of a colour image counts as red with S = 0, as published: a positive shift tints
    it.
    """
    if levels.shape[1] == 1:
        return levels
    value = levels.amax(dim=1, keepdim=True)
    spread = value - levels.amin(dim=1, keepdim=True)
    saturation = torch.where(value > 0.0, spread / value, 0.0)
    wanted = (saturation * factor + shift).clamp_(0.0, 1.0) * value
    coloured = value - (value - levels) * (wanted / spread)
    red = levels.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    return torch.where(spread > 0.0, coloured, value - wanted * red)


def jpeg_compression(levels: Tensor, *, quality: int) -> Tensor:
    """Baseline JPEG with 4:2:0 chroma, there and back."""
    rounded = levels.round().to(torch.uint8).permute(0, 2, 3, 1)
    pixels = rounded.squeeze(3).contiguous().cpu().numpy()
    decoded = np.empty_like(pixels)
    for image, result in zip(pixels, decoded, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        result[...] = Image.open(file)
    restored = torch.from_numpy(decoded).view_as(rounded)
    return restored.permute(0, 3, 1, 2).to(levels).contiguous()


def pixelate(levels: Tensor, *, scale: float) -> Tensor:
    """Shrink by averaging whole pixels, enlarge by repeating them; 8 bits after each pass."""
    (down, rows), (across, columns) = (
        (each.to(levels.device) for each in _box_sums(size, int(size * scale)))
        for size in levels.shape[-2:]
    )
    small = (levels.round() @ across.T / across.sum(1)).add_(0.5).floor_()
    small = (down @ small / down.sum(1, keepdim=True)).add_(0.5).floor_()
    return small.index_select(3, columns).index_select(2, rows)


def _box_sums(size: int, small: int) -> tuple[Tensor, Tensor]:
    """(small, size) which pixels make up each box, and (size,) the box that each pixel shows."""
    ratio = size / small
    centres = torch.arange(size, dtype=torch.float64) + 0.5
    edges = torch.arange(small + 1, dtype=torch.float64)[:, None] * ratio
    inside = (centres > edges[:-1]) & (centres <= edges[1:])
    return inside.float(), (centres / ratio).long().clamp_max(small - 1)


def elastic_transform(
    levels: Tensor, streams: Streams, *, alpha: float, sigma: float, affine: float, unit: float = 1
) -> Tensor:
    """A random affine map, then a smooth displacement; lengths in shares of the shorter side."""
    side = unit * min(levels.shape[-2:])
    moved = sample(levels, _affine_positions(levels, streams, affine * side), border="mirror")
    if alpha == 0.0:
        return moved
    height, width = levels.shape[-2:]
    field = streams.uniform(2, height, width, low=-1.0, high=1.0)
    smooth = gaussian_filter(field, sigma * side, border="mirror_edge", truncate=3.0)
    positions = pixel_grid(levels) + alpha * side * smooth.movedim(1, -1)
    return sample(moved, positions, border="mirror_edge")


def _affine_positions(levels: Tensor, streams: Streams, reach: float) -> Tensor:
    """(N, H, W, 2) where each pixel comes from, after three corners moved by up to `reach`."""
    height, width = levels.shape[-2:]
    third, cx, cy = min(height, width) // 3, width // 2, height // 2
    places = [[cx + third, cy + third], [cx + third, cy - third], [cx - third, cy - third]]
    corners = torch.tensor(places, dtype=torch.float32, device=levels.device)
    moved = corners + streams.uniform(3, 2, low=-reach, high=reach)
    ones = torch.ones_like(moved[..., :1])
    matrix = torch.linalg.solve(torch.cat([moved, ones], dim=-1), corners.expand_as(moved))
    positions = pixel_grid(levels).flatten(0, 1) @ matrix[:, :2] + matrix[:, 2:]
    # The original's grid.
    return positions.mul_(32.0).round_().div_(32.0).view(-1, height, width, 2)
