"""Linear filters and plane maps of batches of images."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato._core.checks import to_float64

Border = Literal["edge", "mirror", "mirror_edge"]


def whole_levels(levels: Tensor) -> Tensor:
    """Round down to whole levels; a thousandth below a level counts as that level.

    Flat areas would otherwise lose a level, or not, by the last bit of a sum.

    Example:
        >>> whole_levels(torch.tensor([7.9, 7.9995]))
        tensor([7., 8.])
    """
    return levels.add(1e-3).floor_()


def fold_index(index: Tensor, size: int, border: Border) -> Tensor:
    """Bring positions outside [0, size) back inside.

    `edge` repeats the last pixel (c | c c), `mirror_edge` mirrors with it (c | c b), `mirror`
    without it (c | b a).

    Example:
        >>> fold_index(torch.tensor([-2, -1, 3, 4]), 3, "mirror").tolist()
        [2, 1, 1, 0]
    """
    if border == "edge":
        return index.clamp(0, size - 1)
    shared = 1 if border == "mirror" else 0  # the last pixel belongs to both directions
    folded = index.remainder(2 * (size - shared))
    return torch.where(folded < size, folded, 2 * size - 1 - shared - folded)


def filter_matrix(weights: Tensor, size: int, border: Border) -> Tensor:
    """The (size, size) matrix that correlates a line of pixels with an odd number of weights."""
    radius = len(weights) // 2
    rows = torch.arange(size)[:, None]
    columns = fold_index(rows + torch.arange(-radius, radius + 1), size, border)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, columns, weights.double().expand(size, -1)).float()


@lru_cache(maxsize=64)
def _gaussian_matrix(size: int, sigma: float, border: Border, truncate: float) -> Tensor:
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = (-0.5 * (offsets / sigma) ** 2).exp()
    return filter_matrix(weights / weights.sum(), size, border)


def gaussian_filter(
    images: Tensor, sigma: float, *, border: Border = "edge", truncate: float = 4.0
) -> Tensor:
    """Gaussian blur of the last two axes; a sigma whose kernel has no neighbour changes nothing."""
    if int(truncate * sigma + 0.5) == 0:
        return images
    height, width = images.shape[-2:]
    down = _gaussian_matrix(height, sigma, border, truncate).to(images.device)
    across = _gaussian_matrix(width, sigma, border, truncate).to(images.device)
    return down @ images @ across.T


def correlate(images: Tensor, kernel: Tensor, *, border: Border) -> Tensor:
    """Correlate the last two axes with an odd-sized kernel, as a sum of few separable filters."""
    height, width = images.shape[-2:]
    # A kernel of rank r is r separable filters: matrix products in place of a 2-D convolution.
    left, strengths, right = torch.linalg.svd(kernel.double())
    output = torch.zeros_like(images)
    for rank in range(int((strengths > 1e-9 * strengths[0]).sum())):
        down = filter_matrix(left[:, rank] * strengths[rank], height, border)
        across = filter_matrix(right[rank], width, border)
        output += down.to(images.device) @ images @ across.T.to(images.device)
    return output


def line_blur(images: Tensor, *, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """One-sided blur along a line, each image with its own direction.

    out(p) = sum_i w_i in(p + d_i), i = 0, ..., 2 ceil(radius), w_i proportional to
    exp(-i^2 / (2 sigma^2)), d_i = (ceil(i cos a - 1/2), ceil(i sin a - 1/2)): whole pixels, y
    downwards, edge border.
    """
    channels, height, width = images.shape[1:]
    taps = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * math.ceil(radius) + 1)]
    total = sum(taps)
    # What is cut off would not move a value by a thousandth of a level.
    weights = [tap / total for tap in taps if tap > 1e-7 * total]
    reach = len(weights) - 1
    rows = F.pad(images, (reach, reach, 0, 0), mode="replicate").contiguous()
    # Overlapping windows over the flat memory: a shift along x is then another first row.
    windows = rows.as_strided((max(rows.numel() - width + 1, 0), width), (1, 1))
    y = torch.arange(height, device=images.device)
    plane = torch.arange(len(images) * channels, device=images.device).view(-1, channels, 1)
    radians = torch.deg2rad(to_float64(degrees))
    output = images * weights[0]
    for step in range(1, reach + 1):
        dx, dy = (
            (step * part - 0.5).ceil().long().view(-1, 1, 1).to(images.device)
            for part in (radians.cos(), radians.sin())
        )
        line = plane * height + fold_index(y + dy, height, "edge")
        start = line * (width + 2 * reach) + reach + dx
        tap = windows.index_select(0, start.flatten()).view_as(output)
        output.add_(tap, alpha=weights[step])
    return output


def zoom_geometry(size: int, factor: float) -> tuple[int, int, int, int]:
    """(crop, start, zoomed, trim): take crop pixels from start, enlarge to zoomed, cut at trim."""
    crop = math.ceil(size / factor)
    zoomed = round(crop * factor)
    return crop, (size - crop) // 2, zoomed, (zoomed - size) // 2


def clipped_zoom(images: Tensor, factor: float) -> Tensor:
    """Enlarge the centre to the full size, bilinearly with aligned corners."""
    height, width = images.shape[-2:]
    crop_y, top, zoomed_y, trim_y = zoom_geometry(height, factor)
    crop_x, left, zoomed_x, trim_x = zoom_geometry(width, factor)
    if (crop_y, crop_x) == (zoomed_y, zoomed_x) == (height, width):
        return images
    centre = images[..., top : top + crop_y, left : left + crop_x]
    zoomed = F.interpolate(centre, size=(zoomed_y, zoomed_x), mode="bilinear", align_corners=True)
    return zoomed[..., trim_y : trim_y + height, trim_x : trim_x + width]


def pixel_grid(images: Tensor) -> Tensor:
    """(H, W, 2) the x and y of each pixel."""
    options: dict[str, Any] = {"dtype": torch.float32, "device": images.device}
    y, x = (torch.arange(size, **options) for size in images.shape[-2:])
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def sample(
    images: Tensor, positions: Tensor, *, border: Literal["mirror", "mirror_edge", "black"]
) -> Tensor:
    """Bilinear samples of (N, C, H, W) at (N, H, W, 2) pixel positions (x, y).

    `mirror` reflects at the centre of the last pixel, `mirror_edge` at its outer edge.
    """
    aligned = border == "mirror"
    size = images.new_tensor(images.shape[:-3:-1])
    grid = positions * (2.0 / (size - 1.0)) if aligned else (2.0 * positions + 1.0) / size
    padding = "zeros" if border == "black" else "reflection"
    return F.grid_sample(images, grid - 1.0, padding_mode=padding, align_corners=aligned)


def warp(images: Tensor, homography: Tensor) -> Tensor:
    """Move every image by one (3, 3) map from source to target pixels; outside is black."""
    inverse = torch.linalg.inv(homography).to(images)
    source = F.pad(pixel_grid(images), (0, 1), value=1.0) @ inverse.T
    source = source[..., :2] / source[..., 2:]
    stacked = images.flatten(0, 1).unsqueeze(0)  # one grid serves all images as channels
    return sample(stacked, source.unsqueeze(0), border="black").view_as(images)


def _about(cx: float, cy: float, linear: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """The map p -> c + A (p - c) in homogeneous coordinates."""
    (a, b), (c, d) = linear
    rows = [[a, b, cx - a * cx - b * cy], [c, d, cy - c * cx - d * cy], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64)


def homography_scale(images: Tensor, factor: float) -> Tensor:
    """Enlarge about the centre of the image."""
    height, width = images.shape[-2:]
    return _about((width - 1) / 2, (height - 1) / 2, ((factor, 0.0), (0.0, factor)))


def homography_rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate clockwise about the centre of the image."""
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _about((width - 1) / 2, (height - 1) / 2, ((cos, -sin), (sin, cos)))


def homography_tilt(images: Tensor, degrees: float) -> Tensor:
    """Turn the picture plane by one angle about both its axes, seen from the diagonal's length.

    The plane lies one unit in front of the pivot, as published, so that no tilt shrinks by a hair.
    """
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    focal = math.hypot(width, height)
    about_x, about_y, centred, camera = torch.tensor(
        [
            [[1.0, 0, 0], [0, cos, -sin], [0, sin, cos]],
            [[cos, 0, -sin], [0, 1.0, 0], [sin, 0, cos]],
            [[1.0, 0, -width / 2], [0, 1.0, -height / 2], [0, 0, 1.0]],
            [[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]],
        ],
        dtype=torch.float64,
    )
    space = about_x @ about_y @ centred
    space[2, 2] += focal
    return camera @ space
