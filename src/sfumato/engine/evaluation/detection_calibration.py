"""Calibration of detections: which of them found an object, and D-ECE with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato.data import DetectionDataset
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.metrics.detection import detection_cells, error_of_cells
from sfumato.metrics.intervals import centred_interval, draw_in_parts
from sfumato.metrics.resampling import sparse

BINS = 20
PLACE_BINS, LEAST = 5, 8
OVERLAP = 0.5
RESAMPLES = 1000


class Kind(NamedTuple):
    """Bins of an error of detections, and how many a cell needs to count."""

    by_place: bool
    sizes: tuple[int, ...]
    least: int


KINDS = {
    "d_ece": Kind(False, (BINS,), 1),
    "d_ece_by_place": Kind(True, (PLACE_BINS,) * 5, LEAST),
}


def detection_calibration(
    dataset: DetectionDataset, found: Sequence[dict[str, Tensor]]
) -> dict[str, Any]:
    """`d_ece` by confidence (20 bins, overlap 0.5) and `d_ece_by_place`, with their intervals.

    The second has 5 bins of confidence, of each coordinate of the centre and of each side, and
    leaves out cells of fewer than 8 detections. Both are None where there is nothing to measure.

    Whole images are resampled: detections of one image are not independent.

    Args:
        dataset: images with their true objects.
        found: for each image `boxes`, `scores` and `labels`, as `detection_metrics` takes them.
    """
    judged = [match_detections(each, dataset.objects[n]) for n, each in enumerate(found)]
    counts = [len(scores) for scores, _, _ in judged]
    if not sum(counts):
        return {"d_ece": None, "d_ece_by_place": None}
    scores, matched, boxes = (torch.cat(parts) for parts in zip(*judged, strict=True))
    image = torch.arange(len(found)).repeat_interleave(torch.tensor(counts))
    boxes = _shares(dataset, boxes, image)
    return errors_of_detections(scores, matched, boxes, image, len(found), RESAMPLES)


def errors_of_detections(
    scores: Tensor, matched: Tensor, boxes: Tensor, unit: Tensor, units: int, resamples: int
) -> dict[str, Any]:
    """`d_ece` and `d_ece_by_place` of detections, with intervals where units can be resampled.

    Args:
        scores: confidence of each detection, (N,).
        matched: whether it found an object, (N,).
        boxes: corners as shares of the image, (N, 4).
        unit: what is drawn together, such as the image; (N,).
        units: number of units.
        resamples: of the units; 0 for no intervals.
    """
    values: dict[str, Any] = {}
    for name, kind in KINDS.items():
        cell, rows = detection_cells(scores, matched, boxes if kind.by_place else None, kind.sizes)
        values |= errors_of_cells(name, cell, unit, rows, units, resamples)
    return values


def errors_of_cells(
    name: str, cell: Tensor, unit: Tensor, rows: Tensor, units: int, resamples: int
) -> dict[str, Any]:
    """The error of one of `KINDS`, with its interval where units can be resampled.

    Args:
        name: of the kind.
        cell: number of the cell of each entry, (E,).
        unit: what it is drawn with, (E,).
        rows: detections, matched ones and summed confidence of it, (E, 3).
        units: number of units.
        resamples: of the units; 0 for no interval.
    """
    least = KINDS[name].least
    seen, cell = cell.unique(return_inverse=True)
    whole = rows.new_zeros(len(seen), 3).index_add_(0, cell, rows)
    value = float(error_of_cells(whole, least))
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
    generator = Replicates(resamples).generator(units)
    parts = []
    for weights in draw_in_parts(units, resamples, generator=generator):
        drawn = weights.T.contiguous()
        sums = [torch.sparse.mm(each, drawn).T for each in columns]
        parts.append(error_of_cells(torch.stack(sums, -1), least))
    return torch.cat(parts)


def _shares(dataset: DetectionDataset, boxes: Tensor, image: Tensor) -> Tensor:
    """Corners as shares of the sides of their images."""
    sizes = torch.ones(len(dataset), 2, dtype=torch.float64)
    for number in image.unique().tolist():
        height, width = dataset.images[number].shape[-2:]
        sizes[number] = torch.tensor([width, height])
    return (boxes.double() / sizes[image].repeat(1, 2)).clamp(0, 1)


def match_detections(found: dict[str, Tensor], truth: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, whether an object of the class was found, and boxes; the surest first.

    As COCO counts: an object is found once, by the surest detection that overlaps it by half; one
    inside a crowd is neither right nor wrong and left out.
    """
    from torchvision.ops import box_iou

    order = found["scores"].argsort(descending=True, stable=True)
    scores, labels = found["scores"][order], found["labels"][order]
    overlap = box_iou(found["boxes"][order].double(), truth.boxes.double())  # (D, B)
    overlap = overlap.where(labels[:, None] == truth.labels, 0.0)
    matched = torch.zeros(len(scores), dtype=torch.bool)
    counts = torch.ones(len(scores), dtype=torch.bool)
    free = ~truth.crowd
    for place, row in enumerate(overlap):
        best = row.where(free, -1.0)
        if len(best) and float(best.max()) >= OVERLAP:
            matched[place] = True
            free[best.argmax()] = False
        elif bool(((row >= OVERLAP) & truth.crowd).any()):
            counts[place] = False
    return scores[counts], matched[counts], found["boxes"][order][counts]
