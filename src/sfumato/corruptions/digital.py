"""Digital damage: elastic warping, pixelation, JPEG.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato.corruptions.filters import gaussian_filter
from sfumato.corruptions.random_numbers import Streams
from sfumato.corruptions.warp import pixel_grid, sample


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
    height, width = levels.shape[-2:]
    down, rows = _box_sums(height, int(height * scale))
    across, columns = _box_sums(width, int(width * scale))
    across, down = across.to(levels.device), down.to(levels.device)
    small = _round(levels.round() @ across.T / across.sum(1))
    small = _round(down @ small / down.sum(1, keepdim=True))
    wide = small.index_select(3, columns.to(levels.device))
    return wide.index_select(2, rows.to(levels.device))


def _box_sums(size: int, small: int) -> tuple[Tensor, Tensor]:
    """(small, size) which pixels make up each box, and (size,) the box that each pixel shows."""
    ratio = size / small
    centres = torch.arange(size, dtype=torch.float64) + 0.5
    edges = torch.arange(small + 1, dtype=torch.float64)[:, None] * ratio
    inside = (centres > edges[:-1]) & (centres <= edges[1:])
    return inside.float(), (centres / ratio).long().clamp_max(small - 1)


def _round(levels: Tensor) -> Tensor:
    return levels.add_(0.5).floor_()


def elastic_transform(
    levels: Tensor, streams: Streams, *, alpha: float, sigma: float, affine: float, unit: float
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
    corners = torch.tensor(
        [[cx + third, cy + third], [cx + third, cy - third], [cx - third, cy - third]],
        dtype=torch.float32,
        device=levels.device,
    )
    moved = corners + streams.uniform(3, 2, low=-reach, high=reach)
    ones = torch.ones_like(moved[..., :1])
    matrix = torch.linalg.solve(torch.cat([moved, ones], dim=-1), corners.expand_as(moved))
    positions = pixel_grid(levels).flatten(0, 1) @ matrix[:, :2] + matrix[:, 2:]
    return (
        positions.mul_(32.0).round_().div_(32.0).view(-1, height, width, 2)
    )  # the original's grid
