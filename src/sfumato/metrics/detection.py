"""Calibration of detections: by confidence alone, or by confidence, position and size.

Multivariate Confidence Calibration for Object Detection, Kueppers et al., CVPR workshops 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import by_convention, check_integer, to_outcomes, to_scores, to_tensor
from sfumato._core.seeds import fold_seed
from sfumato._core.statistics import bin_index
from sfumato.metrics.evaluate import centred_interval, draw_in_parts, sparse

MOST_CELLS = 10_000_000
BINS = 20
PLACE_BINS, LEAST = 5, 8


class Kind(NamedTuple):
    """Bins of an error of detections, and how many a cell needs to count."""

    by_place: bool
    sizes: tuple[int, ...]
    least: int


KINDS = {
    "d_ece": Kind(False, (BINS,), 1),
    "d_ece_by_place": Kind(True, (PLACE_BINS,) * 5, LEAST),
}


@by_convention
def detection_calibration_error(
    confidence: Any,
    correct: Any,
    *,
    boxes: Any = None,
    num_bins: int | Sequence[int] = 20,
    least: int = 1,
) -> Tensor:
    """D-ECE: how far the confidence of detections is from the share that finds an object.

    D-ECE = sum_b n_b / N |precision(b) - confidence(b)|. Recall has no part in it: what was missed
    has no confidence. With boxes a bin is a cell of confidence, position and size, which tells
    small objects at the border from large ones; few detections in each of many cells make the
    number large by chance alone.

    Args:
        confidence: score of each detection, in [0, 1]; (N,).
        correct: whether it found an object of its class (a true positive); (N,).
        boxes: corners (x1, y1, x2, y2) as shares of the image's width and height, (N, 4); None
            takes bins of confidence alone.
        num_bins: of equal width, on each axis; or five numbers, for confidence, centre across,
            centre down, width and height. 20 suits confidence alone; with boxes 5 to 8.
        least: cells with fewer detections count for nothing; the paper takes 8 with boxes.

    Example:
        >>> detection_calibration_error([0.9, 0.9, 0.9, 0.4], [1, 1, 0, 0])
        tensor(0.2750, dtype=torch.float64)

    Reference: Kueppers et al. 2020, Eq. (6), with every cell counted unless `least` says otherwise.
    """
    check_integer("least", least, low=1)
    sizes = check_bins(num_bins, with_boxes=boxes is not None)
    sums = detection_sums(confidence, correct, boxes, sizes)
    return error_of_cells(sums, least)


def detection_sums(confidence: Any, correct: Any, boxes: Any, sizes: Sequence[int]) -> Tensor:
    """Count, matched and summed confidence of every cell, (K, 3)."""
    cell, rows = detection_cells(confidence, correct, boxes, sizes)
    sums = rows.new_zeros(math.prod(sizes), 3)
    return sums.index_add_(0, cell, rows)


def detection_cells(
    confidence: Any, correct: Any, boxes: Any, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Number of the cell of each detection, (N,), and 1, matched, confidence of it, (N, 3)."""
    scores = to_scores("confidence", confidence)
    hits = to_outcomes("correct", correct, len(scores)).to(scores)
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


def check_bins(num_bins: int | Sequence[int], *, with_boxes: bool) -> tuple[int, ...]:
    """Bins of each axis."""
    axes = 5 if with_boxes else 1
    sizes = (num_bins,) * axes if isinstance(num_bins, int) else tuple(num_bins)
    for size in sizes:
        check_integer("num_bins", size, low=1)
    if len(sizes) != axes:
        raise ValueError(f"num_bins must be one number or {axes} numbers here, got {len(sizes)}")
    if math.prod(sizes) > MOST_CELLS:
        raise ValueError(
            f"num_bins give {math.prod(sizes):,} cells, more than {MOST_CELLS:,}: with boxes take "
            "5 to 8 on each axis"
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


def errors_of_detections(
    scores: Tensor, correct: Tensor, boxes: Tensor, unit: Tensor, units: int, resamples: int
) -> dict[str, Any]:
    """`d_ece` and `d_ece_by_place` of detections, with intervals where units can be resampled.

    Args:
        scores: confidence of each detection, (N,).
        correct: whether it found an object, (N,).
        boxes: corners as shares of the image, (N, 4).
        unit: what is drawn together, such as the image; (N,).
        units: number of units.
        resamples: of the units; 0 for no intervals.
    """
    values: dict[str, Any] = {}
    for name, kind in KINDS.items():
        cell, rows = detection_cells(scores, correct, boxes if kind.by_place else None, kind.sizes)
        values |= errors_of_cells(name, cell, unit, rows, units, resamples)
    return values


def errors_of_cells(
    name: str, cell: Tensor, unit: Tensor, rows: Tensor, units: int, resamples: int
) -> dict[str, Any]:
    """The error of one of `KINDS`, with its interval where units can be resampled."""
    least = KINDS[name].least
    # Of up to ten million cells few are ever filled.
    seen, cell = cell.unique(return_inverse=True)
    whole = rows.new_zeros(len(seen), 3).index_add_(0, cell, rows)
    value = float(error_of_cells(whole, least))
    # JSON has no NaN.
    if math.isnan(value):
        return {name: None}
    if units < 2 or not resamples:
        return {name: value}
    columns = [sparse(cell, unit, each, (len(seen), units)) for each in rows.unbind(1)]
    draws = _resampled(columns, least, resamples)
    return {name: value, f"{name}_interval": list(centred_interval(draws, value, level=0.95))}


def _resampled(columns: Sequence[Tensor], least: int, resamples: int) -> Tensor:
    """D-ECE of every resample, (R,), of count, matched and confidence by cell and unit, (K, U)."""
    units = columns[0].shape[1]
    generator = torch.Generator().manual_seed(fold_seed(0, "replicates", units, resamples))
    parts = []
    for weights in draw_in_parts(units, resamples, generator=generator):
        drawn = weights.T.contiguous()
        sums = [torch.sparse.mm(each, drawn).T for each in columns]
        parts.append(error_of_cells(torch.stack(sums, -1), least))
    return torch.cat(parts)
