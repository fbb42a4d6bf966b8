"""Intervals of average precision: COCO's matching once, its curves for every resample of images.

Which detection finds which object is decided within an image, so a resample needs no new matching:
only the precision-recall curves are summed up anew, with how often each image was drawn as weights.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.data import DetectionDataset
from sfumato.metrics.intervals import draw_weights

RECALLS = torch.linspace(0, 1, 101).double()  # in single precision, as torchmetrics has them
_HALF, _THREE_QUARTERS = 0, 5  # of the overlaps 0.5, 0.55, ... 0.95
_PER_IMAGE = 100  # detections that count, the surest
_AT_ONCE = 4_000_000  # weights of detections in memory
_WORK = 2_000_000_000  # weights of all resamples together
_FEWEST = 100


@dataclass(frozen=True)
class _ClassMatches:
    """The detections of one class in all images, the surest first.

    Args:
        image: of each detection, (D,).
        hits: whether it finds an object, by overlap; (T, D).
        misses: whether it counts and finds none; (T, D).
        objects: to be found in each image, (U,).
    """

    image: Tensor
    hits: Tensor
    misses: Tensor
    objects: Tensor

    def precision(self, weights: Tensor) -> Tensor:
        """AP of each overlap for weights of the images (R, U); (T, R), NaN without objects."""
        total = weights @ self.objects  # (R,)
        drawn = weights[:, self.image]  # (R, D)
        rows = zip(self.hits, self.misses, strict=True)
        found = [self._average(drawn, total, *each) for each in rows]
        return torch.stack(found).where(total > 0, torch.nan)

    def _average(self, drawn: Tensor, total: Tensor, hits: Tensor, misses: Tensor) -> Tensor:
        if not len(hits):
            return torch.zeros_like(total)
        right, wrong = (drawn * hits).cumsum(1), (drawn * misses).cumsum(1)
        recall = right / total.clamp_min(1e-12)[:, None]
        precision = right / (right + wrong).clamp_min(torch.finfo(torch.float64).eps)
        best = precision.flip(1).cummax(1).values.flip(1)  # at this recall or a higher one
        place = torch.searchsorted(recall, RECALLS.expand(len(recall), -1).contiguous())
        reached = place < recall.shape[1]
        return best.gather(1, place.clamp_max(recall.shape[1] - 1)).where(reached, 0.0).mean(1)


def resample_precision(
    dataset: DetectionDataset,
    found: Sequence[dict[str, Tensor]],
    *,
    resamples: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """`ap`, `ap50` and `ap75` of resamples of the images, (R,) each.

    Args:
        dataset: images with their true objects.
        found: for each image `boxes`, `scores` and `labels`, as `detection_metrics` takes them.
        resamples: R; fewer, but at least 100, where so many would take minutes.
        generator: of the draws.
    """
    matches, units = match_classes(dataset, found), len(dataset)
    size = max(1, 10 * sum(len(each.image) for each in matches))
    count = min(resamples, max(_FEWEST, _WORK // size))
    weights = draw_weights(units, count, generator=generator, device=torch.device("cpu"))
    at_once = max(1, _AT_ONCE // max([1, *(len(each.image) for each in matches)]))
    parts = [average_precision(matches, part) for part in weights.split(at_once)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def average_precision(matches: Sequence[_ClassMatches], weights: Tensor) -> dict[str, Tensor]:
    """`ap`, `ap50` and `ap75`, means over the classes that have objects, for weights (R, U)."""
    by_class = torch.stack([each.precision(weights) for each in matches])  # (C, T, R)
    by_overlap = by_class.nanmean(0)
    return {
        "ap": by_overlap.mean(0),
        "ap50": by_overlap[_HALF],
        "ap75": by_overlap[_THREE_QUARTERS],
    }


def match_classes(
    dataset: DetectionDataset, found: Sequence[dict[str, Tensor]]
) -> list[_ClassMatches]:
    """COCO's matching of detections and objects, class by class."""
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it says what it does
        judge = COCOeval(_as_coco(dataset, None), _as_coco(dataset, found), "bbox")
        judge.params.maxDets = [_PER_IMAGE]
        judge.params.areaRng, judge.params.areaRngLbl = judge.params.areaRng[:1], ["all"]
        judge.evaluate()
    images = len(dataset)
    rows = [
        judge.evalImgs[start : start + images] for start in range(0, len(judge.evalImgs), images)
    ]
    return [_class_matches(row, images) for row in rows]


def _class_matches(images: Sequence[dict[str, Any] | None], count: int) -> _ClassMatches:
    objects = torch.zeros(count, dtype=torch.float64)
    scores, numbers, hits, misses = [], [], [], []
    for number, each in enumerate(images):
        if each is None:  # neither detections nor objects
            continue
        objects[number] = int((np.asarray(each["gtIgnore"]) == 0).sum())
        counts = ~np.asarray(each["dtIgnore"], dtype=bool)  # (T, D)
        matched = np.asarray(each["dtMatches"]) > 0
        scores.append(np.asarray(each["dtScores"], dtype=np.float64))
        numbers.append(np.full(len(each["dtScores"]), number))
        hits.append(matched & counts)
        misses.append(~matched & counts)
    if not scores:
        none = torch.zeros(10, 0)
        return _ClassMatches(torch.zeros(0, dtype=torch.long), none, none, objects)
    order = np.argsort(-np.concatenate(scores), kind="mergesort")
    parts = (np.concatenate(each, axis=-1)[..., order] for each in (numbers, hits, misses))
    image, right, wrong = (torch.from_numpy(each) for each in parts)
    return _ClassMatches(image.long(), right.double(), wrong.double(), objects)


def _as_coco(dataset: DetectionDataset, found: Sequence[dict[str, Tensor]] | None) -> Any:
    """True objects, or detections, in pixels of the original images."""
    from pycocotools.coco import COCO

    entries: list[dict[str, Any]] = []
    for number in range(len(dataset)):
        truth, scale = dataset.objects[number], dataset.scales[number]
        each = {"boxes": truth.boxes, "labels": truth.labels} if found is None else found[number]
        corners = (each["boxes"] * scale).double()
        boxes = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)
        for place, (box, label) in enumerate(
            zip(boxes.tolist(), each["labels"].tolist(), strict=True)
        ):
            entry = {"id": len(entries) + 1, "image_id": number, "category_id": label, "bbox": box}
            if found is None:
                crowd, area = int(truth.crowd[place]), float(truth.areas[place])
                entries.append({**entry, "area": area, "iscrowd": crowd})
            else:
                score = float(each["scores"][place])
                entries.append({**entry, "area": box[2] * box[3], "iscrowd": 0, "score": score})
    made = COCO()
    made.dataset = {
        "images": [{"id": number} for number in range(len(dataset))],
        "annotations": entries,
        "categories": [{"id": number} for number in range(len(dataset.classes))],
    }
    made.createIndex()
    return made
