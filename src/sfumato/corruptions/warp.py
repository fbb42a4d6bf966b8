"""Plane maps: sampling images at given positions, and the homographies of the sequences."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def pixel_grid(images: Tensor) -> Tensor:
    """(H, W, 2) the x and y of each pixel."""
    height, width = images.shape[-2:]
    y = torch.arange(height, dtype=torch.float32, device=images.device)
    x = torch.arange(width, dtype=torch.float32, device=images.device)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def sample(
    images: Tensor, positions: Tensor, *, border: Literal["mirror", "mirror_edge", "black"]
) -> Tensor:
    """Bilinear samples of (N, C, H, W) at (N, H, W, 2) pixel positions (x, y).

    `mirror` reflects at the centre of the last pixel, `mirror_edge` at its outer edge.
    """
    aligned = border == "mirror"
    size = images.new_tensor(images.shape[:-3:-1])
    if aligned:
        grid = positions * (2.0 / (size - 1.0)) - 1.0
    else:
        grid = (2.0 * positions + 1.0) / size - 1.0
    padding = "zeros" if border == "black" else "reflection"
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=aligned)


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
    about_x = torch.tensor([[1.0, 0, 0], [0, cos, -sin], [0, sin, cos]], dtype=torch.float64)
    about_y = torch.tensor([[cos, 0, -sin], [0, 1.0, 0], [sin, 0, cos]], dtype=torch.float64)
    centred = torch.tensor(
        [[1.0, 0, -width / 2], [0, 1.0, -height / 2], [0, 0, 1.0]], dtype=torch.float64
    )
    space = about_x @ about_y @ centred
    space[2, 2] += focal
    camera = torch.tensor(
        [[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]], dtype=torch.float64
    )
    return camera @ space
