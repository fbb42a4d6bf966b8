"""Fine cells of confidences, from which the bins of any usual number are sums.

Streams and large bootstraps keep sums over these cells instead of every confidence.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.confidence_bins import edge_slack

_CELLS = 15_000
_ZOOM = 1000


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
    keep = 1 - edge_slack(dtype)
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
