"""Areas of unions of boxes, in batches and without rendering a mask.

The edges of K boxes cut the plane into (2K - 1) x (2K - 1) cells, each of which is either covered
or free; the area of the union is the sum over the covered cells, so overlaps count once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """The cells between the sorted edges of each image's boxes; E = 2K edges."""

    x: Tensor  # (N, E)
    y: Tensor  # (N, E)
    covered: Tensor  # (N, E - 1 along y, E - 1 along x), bool


def cells_of(boxes: Tensor) -> Cells:
    """Cut the plane at the edges of the boxes (N, K, 4); empty and reversed boxes cover nothing."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    x = torch.cat((x1, x2), 1).sort(1).values
    y = torch.cat((y1, y2), 1).sort(1).values
    across = (x[:, None, :-1] >= x1[..., None]) & (x[:, None, 1:] <= x2[..., None])  # (N, K, E - 1)
    down = (y[:, None, :-1] >= y1[..., None]) & (y[:, None, 1:] <= y2[..., None])
    # A reversed box holds no cell of positive width; a box reversed both ways holds none either.
    covered = down.to(boxes.dtype).mT @ across.to(boxes.dtype) > 0
    return Cells(x, y, covered)


def union_area(boxes: Tensor) -> Tensor:
    """Area of the union of each image's boxes; (N, K, 4) as x1, y1, x2, y2 gives (N,).

    Example:
        >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 2.0], [2.0, 0.0, 6.0, 2.0]]])  # share 2 x 2
        >>> union_area(boxes)
        tensor([12.])
    """
    if boxes.shape[1] == 1:
        return (boxes[:, 0, 2:] - boxes[:, 0, :2]).clamp_min(0).prod(-1)
    x, y, covered = cells_of(boxes)
    areas = y.diff(dim=1)[:, :, None] * x.diff(dim=1)[:, None, :]
    return torch.where(covered, areas, 0.0).sum((1, 2))


def union_area_inside(boxes: Tensor, corners: Tensor) -> Tensor:
    """Area of the part of the union that lies in a convex quadrilateral.

    Green's theorem: the area that a polygon P shares with the cell [x0, x1] x [y0, y1] is

        | sum over edges of P  int_(x in edge and in [x0, x1]) (clamp(y, y0, y1) - y0) dx |

    whose integrand is piecewise linear, so that the result is exact.

    Args:
        boxes: (N, K, 4) as x1, y1, x2, y2.
        corners: (N, 4, 2) points (x, y), in order around the quadrilateral.

    Returns:
        (N,) areas, float64.

    Example:
        >>> box = torch.tensor([[[0.0, 0.0, 2.0, 2.0]]])
        >>> diamond = torch.tensor([[[1.0, -1.0], [3.0, 1.0], [1.0, 3.0], [-1.0, 1.0]]])
        >>> union_area_inside(box, diamond)  # touches the box at its four corners
        tensor([4.], dtype=torch.float64)
    """
    x, y, covered = cells_of(boxes.double())
    start, end = corners.double(), corners.double().roll(-1, 1)  # (N, 4 edges, 2)
    left, right = x[:, None, :-1], x[:, None, 1:]  # (N, 1, X)
    begin = start[..., 0:1].clamp(left, right)  # (N, 4, X), the edge's part above each column
    finish = end[..., 0:1].clamp(left, right)
    run = end[..., 0:1] - start[..., 0:1]
    slope = (end - start)[..., 1:] / torch.where(run == 0, 1.0, run)
    y_begin = start[..., 1:] + slope * (begin - start[..., 0:1])
    y_finish = start[..., 1:] + slope * (finish - start[..., 0:1])
    height = _mean_clamped(
        y_begin[:, :, None], y_finish[:, :, None], y[:, None, :-1, None], y[:, None, 1:, None]
    )
    shared = (height * (finish - begin)[:, :, None]).sum(1).abs()  # (N, Y, X)
    return torch.where(covered, shared, 0.0).sum((1, 2))


def _mean_clamped(first: Tensor, last: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mean of clamp(y, low, high) - low while y goes evenly from `first` to `last`."""

    def integral(y: Tensor) -> Tensor:
        inside = y.clamp(low, high) - low
        return inside.square() / 2 + (high - low) * (y - high).clamp_min(0)

    way = last - first
    level = way.abs() < 1e-6  # the quotient would lose its digits; the middle is as good there
    middle = ((first + last) / 2).clamp(low, high) - low
    return torch.where(level, middle, (integral(last) - integral(first)) / way.where(~level, 1.0))
