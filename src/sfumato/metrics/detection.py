"""Calibration of detections: by confidence alone, or by confidence, position and size.

Multivariate Confidence Calibration for Object Detection, Kueppers et al., CVPR workshops 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._core.arrays import to_outcomes, to_scores, to_tensor
from sfumato._core.checks import check_integer
from sfumato._core.confidence_bins import bin_index

MOST_CELLS = 10_000_000


def detection_calibration_error(
    confidence: Any,
    matched: Any,
    *,
    boxes: Any = None,
    bins: int | Sequence[int] = 20,
    least: int = 1,
) -> Tensor:
    """D-ECE: how far the confidence of detections is from the share that finds an object.

    D-ECE = sum_b n_b / N |precision(b) - confidence(b)|. Recall has no part in it: what was missed
    has no confidence. With boxes a bin is a cell of confidence, position and size, so that a
    detector that is too sure of small objects at the border and too modest about large ones is
    seen; cells are then many, and few detections in each make the number large by chance alone.

    Args:
        confidence: score of each detection, in [0, 1]; (N,).
        matched: whether it found an object of its class (a true positive); (N,).
        boxes: corners (x1, y1, x2, y2) as shares of the image's width and height, (N, 4); None
            takes bins of confidence alone.
        bins: of equal width, on each axis; or five numbers, for confidence, centre across, centre
            down, width and height. 20 suits confidence alone; with boxes 5 to 8.
        least: cells with fewer detections count for nothing; the paper takes 8 with boxes.

    Returns:
        Scalar, float64; NaN where no cell counts.

    Raises:
        ValueError: other lengths, values outside [0, 1], corners in the wrong order.

    Example:
        >>> detection_calibration_error([0.9, 0.9, 0.9, 0.4], [1, 1, 0, 0])
        tensor(0.2750, dtype=torch.float64)

    Reference: Kueppers et al. 2020, Eq. (6), with every cell counted unless `least` says otherwise.
    """
    check_integer("least", least, low=1)
    sizes = check_bins(bins, with_boxes=boxes is not None)
    sums = detection_sums(confidence, matched, boxes, sizes)
    return error_of_cells(sums, least)


def detection_sums(confidence: Any, matched: Any, boxes: Any, sizes: Sequence[int]) -> Tensor:
    """Count, matched and summed confidence of every cell, (K, 3)."""
    cell, rows = detection_cells(confidence, matched, boxes, sizes)
    sums = rows.new_zeros(math.prod(sizes), 3)
    return sums.index_add_(0, cell, rows)


def detection_cells(
    confidence: Any, matched: Any, boxes: Any, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Number of the cell of each detection, (N,), and 1, matched, confidence of it, (N, 3)."""
    scores = to_scores("confidence", confidence)
    hits = to_outcomes("matched", matched, len(scores)).to(scores)
    given = to_tensor("confidence", confidence)
    # Edges are judged in the precision that the confidences came in.
    axes = [given if given.is_floating_point() else scores]
    if boxes is not None:
        axes += list(_box_features(boxes, len(scores)).to(scores.device).unbind(1))
    cell = torch.zeros_like(scores, dtype=torch.int64)
    for values, size in zip(axes, sizes, strict=True):
        cell = cell * size + bin_index(values, size)
    return cell, torch.stack([torch.ones_like(scores), hits, scores], 1)


def error_of_cells(sums: Tensor, least: int = 1) -> Tensor:
    """D-ECE of sums (..., K, 3)."""
    count, hits, total = sums.unbind(-1)
    counted = count.where(count >= least, 0.0)
    gap = (hits - total).abs().where(count >= least, 0.0)
    return gap.sum(-1) / counted.sum(-1)


def check_bins(bins: int | Sequence[int], *, with_boxes: bool) -> tuple[int, ...]:
    """Bins of each axis."""
    axes = 5 if with_boxes else 1
    sizes = (bins,) * axes if isinstance(bins, int) else tuple(bins)
    for size in sizes:
        check_integer("bins", size, low=1)
    if len(sizes) != axes:
        raise ValueError(f"bins must be one number or {axes} numbers here, got {len(sizes)}")
    if math.prod(sizes) > MOST_CELLS:
        raise ValueError(
            f"bins give {math.prod(sizes):,} cells, more than {MOST_CELLS:,}: with boxes take 5 "
            "to 8 on each axis"
        )
    return sizes


def _box_features(boxes: Any, count: int) -> Tensor:
    """Centre and size of each box, (N, 4), float64."""
    corners = to_tensor("boxes", boxes).double()
    if tuple(corners.shape) != (count, 4):
        raise ValueError(f"boxes must be ({count}, 4), got {tuple(corners.shape)}")
    # Boxes are cut to the image in single precision: a rounding may stick out.
    if not bool(((corners >= -1e-6) & (corners <= 1 + 1e-6)).all()):
        raise ValueError(
            "boxes must be shares of the image, in [0, 1]: divide pixels by its width and height"
        )
    start, end = corners[:, :2], corners[:, 2:]
    if bool((end < start).any()):
        raise ValueError("boxes must be (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2")
    return torch.cat([(start + end) / 2, end - start], 1).clamp(0, 1)
