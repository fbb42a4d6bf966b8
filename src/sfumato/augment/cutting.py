"""Parts cut from images that are still files, instead of from the smaller copies of a data set."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from sfumato.augment.crop_window import CropWindow
from sfumato.augment.moving import sample_at
from sfumato.augment.protocol import Originals

_CORNERS_X = torch.tensor([-0.5, 0.5, 0.5, -0.5])
_CORNERS_Y = torch.tensor([-0.5, -0.5, 0.5, 0.5])


def on_whole_pixels(window: CropWindow, images: Originals) -> CropWindow:
    """The windows with edges on whole pixels of the file, but for files of the stored size.

    Cutting whole pixels is what decoders and scalers do fast; boxes and masks follow the same
    edges, so that labels are those of the part that is shown.
    """
    first = (window.centre - window.size / 2).round()
    last = torch.maximum((window.centre + window.size / 2).round(), first + 1).minimum(window.frame)
    first = torch.minimum(first, last - 1)
    stays = images.is_stored_size[:, None]
    return dataclasses.replace(
        window,
        centre=torch.where(stays, window.centre, (first + last) / 2),
        size=torch.where(stays, window.size, last - first),
    )


def cut_windows(
    images: Originals, window: CropWindow, *, padding: Literal["zeros", "border"]
) -> Tensor:
    """What the windows show, (N, C, H, W) in uint8.

    A window that isn't turned is the part itself. A turned one is sampled from the part around
    it, and a file of the stored size is sampled as a whole, as if it were in memory.
    """
    count, channels, height, width = images.shape
    shown = torch.empty(count, height, width, channels, dtype=torch.uint8).permute(0, 3, 1, 2)
    regions = _regions(window, images.is_stored_size)
    is_part = (window.angle == 0) & ~images.is_stored_size
    for row, region in enumerate(regions.tolist()):
        part = images.part(row, tuple(region))
        shown[row] = part.flip(-1) if is_part[row] and window.flip[row] else part
    sampled = (~is_part).nonzero()[:, 0]
    if len(sampled):
        grid = _grid_in_regions(window, regions, height, width)[sampled]
        pixels = sample_at(shown[sampled], grid, mode="bilinear", padding=padding)
        shown[sampled] = pixels
    return shown


def _regions(window: CropWindow, whole: Tensor) -> Tensor:
    """(N, 4) whole pixels around each window, inside of its image; all of it where `whole`."""
    x, y = window.to_source(_CORNERS_X, _CORNERS_Y)
    # A part's edges are whole numbers up to rounding in the last digits.
    low = torch.stack((x.amin(1), y.amin(1)), 1).add(1e-3).floor().clamp(min=0)
    high = torch.stack((x.amax(1), y.amax(1)), 1).sub(1e-3).ceil().minimum(window.frame)
    low = low.minimum(high - 1)
    around = torch.cat((low, high), 1)
    everything = torch.cat((torch.zeros_like(window.frame), window.frame), 1)
    return torch.where(whole[:, None], everything, around).long()


def _grid_in_regions(window: CropWindow, regions: Tensor, height: int, width: int) -> Tensor:
    """The windows' grids, from -1 to 1 over the regions."""
    grid = window.grid(height, width)
    low, sides = regions[:, :2], regions[:, 2:] - regions[:, :2]
    if bool((sides == window.frame).all()):
        return grid
    pixels = (grid + 1) / 2 * window.frame[:, None, None]
    inside = (pixels - low[:, None, None]) / sides[:, None, None] * 2 - 1
    is_whole = (sides == window.frame).all(1)
    return torch.where(is_whole[:, None, None, None], grid, inside)
