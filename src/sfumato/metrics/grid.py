"""Where a confidence falls: the bins of the definitions, and the fine cells of the streams."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_CELLS = 15_000
_ZOOM = 1000


def bin_edges(num_bins: int, like: Tensor) -> Tensor:
    """Upper edges 1/B, 2/B, ..., 1 of equal-width bins, float64."""
    steps = torch.arange(1, num_bins + 1, dtype=torch.float64, device=like.device)
    return steps / num_bins


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Number of the right-closed bin (lo, hi]; confidence 0 is in the first, 1 in the last.

    floor(p B (1 - e)), with e two roundings of the dtype of `confidence`: 0.2 in float32 is a
    little above 0.2, and is to be in (0.1, 0.2] as it is written. NaN is in the first bin: the
    sums of that become NaN, where no bin at all would leave a plausible number.
    """
    scale = num_bins * (1 - _slack(confidence.dtype))
    place = (confidence.double() * scale).nan_to_num_(nan=0.0)
    return place.long().clamp_(max=num_bins - 1)


def cells_per_unit(num_bins: int) -> int:
    """Uniform cells on [0, 1] such that the edges of `num_bins` bins are edges of cells.

    15,000 serves 10, 12, 15, 20, 25, 30, 50, 100 ... bins at once; other counts get the next
    multiple of their own.
    """
    return num_bins * -(-_CELLS // num_bins)


def num_cells(cells: int) -> int:
    """Number of cells of the whole grid: `cells` - 1 uniform ones and the division of the last."""
    return cells - 1 + _ZOOM


@lru_cache(maxsize=16)
def cell_edges(cells: int, device: torch.device) -> Tensor:
    """Lower edge of every cell, and 1: `cells` uniform cells, the last divided again in 1,000.

    Trained networks put most of their confidences just below 1; the division resolves
    them to the precision of float32.
    """
    steps = torch.arange(cells, dtype=torch.float64, device=device)
    zoom = torch.arange(1, _ZOOM + 1, dtype=torch.float64, device=device)
    zoom = ((cells - 1) * _ZOOM + zoom) / (cells * _ZOOM)
    return torch.cat([steps / cells, zoom])


def cell_index(confidence: Tensor, cells: int, *, dtype: torch.dtype) -> Tensor:
    """Number of the right-closed cell of each confidence, by the rule of `bin_index`.

    The line through the uniform cells and the steeper one through the divided cell cross where
    the division begins, so the larger value is the right one.

    Args:
        confidence: float64, (M,).
        cells: as given by `cells_per_unit`.
        dtype: what the confidences were computed in.
    """
    slope, start = _lines(cells, dtype, confidence.device)
    cell = torch.addcmul(start, slope, confidence).amax(0).long()
    return cell.clamp_(max=num_cells(cells) - 1)


class CellLines(NamedTuple):
    """Slopes and starts of the line through the uniform cells and of that through the divided."""

    slope: tuple[float, float]
    start: tuple[float, float]


def cell_lines(cells: int, dtype: torch.dtype) -> CellLines:
    """The lines of `cell_index`: the number of a cell is the larger of start + slope p."""
    keep = 1 - _slack(dtype)
    start = float((1 - cells) * (_ZOOM - 1))
    return CellLines((cells * keep, cells * _ZOOM * keep), (0.0, start))


@lru_cache(maxsize=64)
def _lines(cells: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Slope and start, (2, 1) each."""
    slope, start = (
        torch.tensor(ends, dtype=torch.float64, device=device).unsqueeze(1)
        for ends in cell_lines(cells, dtype)
    )
    return slope, start


def _slack(dtype: torch.dtype) -> float:
    """Two roundings of `dtype`."""
    return 2.0**-51 if dtype == torch.float64 else 2.0**-23
