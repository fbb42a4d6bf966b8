"""Average precision and calibration of detections, with bootstrap intervals."""

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
from sfumato.engine.evaluation.splits import Replicates
from sfumato.metrics.detection import errors_of_detections
from sfumato.metrics.evaluate import centred_interval, draw_weights

Detection = dict[str, Tensor]
OVERLAP = 0.5
RESAMPLES = 1000


def detection_calibration(dataset: DetectionDataset, found: Sequence[Detection]) -> dict[str, Any]:
    """`d_ece` by confidence (20 bins, overlap 0.5) and `d_ece_by_place`, with their intervals.

    The second has 5 bins of confidence, of each coordinate of the centre and of each side, and
    leaves out cells of fewer than 8 detections. None: there is nothing to measure. Whole images
    are resampled: detections of one image are not independent.
    """
    judged = [match_detections(each, dataset.objects[n]) for n, each in enumerate(found)]
    counts = [len(scores) for scores, _, _ in judged]
    if not sum(counts):
        return {"d_ece": None, "d_ece_by_place": None}
    scores, matched, boxes = (torch.cat(parts) for parts in zip(*judged, strict=True))
    image = torch.arange(len(found)).repeat_interleave(torch.tensor(counts))
    # Corners as shares of the sides of their images.
    sizes = torch.ones(len(dataset), 2, dtype=torch.float64)
    for number in image.unique().tolist():
        height, width = dataset.images[number].shape[-2:]
        sizes[number] = torch.tensor([width, height])
    boxes = (boxes.double() / sizes[image].repeat(1, 2)).clamp(0, 1)
    return errors_of_detections(scores, matched, boxes, image, len(found), RESAMPLES)


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


RECALLS = torch.linspace(0, 1, 101).double()  # in single precision, as torchmetrics has them
_HALF, _THREE_QUARTERS = 0, 5  # of the overlaps 0.5, 0.55, ... 0.95
_AT_ONCE = 4_000_000  # weights of detections in memory
_WORK = 2_000_000_000  # weights of all resamples together
_FEWEST = 100


@dataclass(frozen=True)
class _ClassMatches:
    """The detections of one class in all images, the surest first."""

    # Of each detection (D,); hits and misses by overlap (T, D); objects of each image (U,).
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


def resample_precision(matches: Sequence[_ClassMatches], units: int) -> dict[str, Tensor]:
    """`ap`, `ap50` and `ap75` of resamples of the images, (R,) each."""
    sizes = [len(each.image) for each in matches]
    # Fewer resamples where so many would take minutes.
    count = min(RESAMPLES, max(_FEWEST, _WORK // max(1, 10 * sum(sizes))))
    generator = Replicates(RESAMPLES).generator(units)
    weights = draw_weights(units, count, generator=generator, device=torch.device("cpu"))
    at_once = max(1, _AT_ONCE // max([1, *sizes]))
    parts = [average_precision(matches, part) for part in weights.split(at_once)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def average_precision(matches: Sequence[_ClassMatches], weights: Tensor) -> dict[str, Tensor]:
    """`ap`, `ap50` and `ap75`, means over the classes that have objects, for weights (R, U)."""
    by_class = torch.stack([each.precision(weights) for each in matches])  # (C, T, R)
    found = by_class.nanmean(0)
    return {"ap": found.mean(0), "ap50": found[_HALF], "ap75": found[_THREE_QUARTERS]}


def judge_detections(dataset: DetectionDataset, found: Sequence[Detection]) -> Any:
    """COCO's matching of detections and objects, with the twelve numbers of its summary."""
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it says what it does
        judge = COCOeval(_as_coco(dataset, None), _as_coco(dataset, found), "bbox")
        judge.params.recThrs = RECALLS.numpy()
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge


def match_classes(judge: Any) -> list[_ClassMatches]:
    """The matches of objects of all sizes, class by class."""
    images, areas = len(judge.params.imgIds), len(judge.params.areaRng)
    starts = range(0, len(judge.evalImgs), areas * images)  # of each class, all sizes first
    return [_class_matches(judge.evalImgs[start : start + images], images) for start in starts]


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


def _as_coco(dataset: DetectionDataset, found: Sequence[Detection] | None) -> Any:
    """True objects, or detections, in pixels of the original images."""
    from pycocotools.coco import COCO

    entries: list[dict[str, Any]] = []
    for number in range(len(dataset)):
        truth, scale = dataset.objects[number], dataset.scales[number]
        each = {"boxes": truth.boxes, "labels": truth.labels} if found is None else found[number]
        corners = (each["boxes"] * scale).double()
        boxes = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
        for place, (box, label) in enumerate(zip(boxes, each["labels"].tolist(), strict=True)):
            entry = {"id": len(entries) + 1, "image_id": number, "category_id": label, "bbox": box}
            entry |= {"area": box[2] * box[3], "iscrowd": 0}
            if found is None:
                entry["iscrowd"] = int(truth.crowd[place])
                entry["area"] = float(truth.areas[place]) or entry["area"]
            else:
                entry["score"] = float(each["scores"][place])
            entries.append(entry)
    made = COCO()
    made.dataset = {
        "images": [{"id": number} for number in range(len(dataset))],
        "annotations": entries,
        "categories": [{"id": number} for number in range(len(dataset.classes))],
    }
    made.createIndex()
    return made


# In the order of COCO's summary.
_NAMES = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar_1", "ar_10", "ar", "ar_small", "ar_medium", "ar_large"),
)


def detection_metrics(dataset: DetectionDataset, found: Sequence[Detection]) -> dict[str, Any]:
    """AP 0.5:0.95, AP at 0.5 and 0.75, AR, both by the size of objects, and D-ECE.

    AP, AP50, AP75 and D-ECE have bootstrap intervals (`ap_interval`), over whole images. Sizes
    count pixels of the original image: small is below 32^2, large from 96^2 on. A number is None
    where the set has no object of that kind.

    Args:
        dataset: images with their true objects.
        found: for each image `boxes` (D, 4) in the pixels of the image as the dataset gives it,
            `scores` (D,) and `labels` (D,), class indices from 0.

    Example:
        >>> from sfumato.data import scenes
        >>> truth = scenes.generate_objects(4)
        >>> perfect = [
        ...     {"boxes": o.boxes, "labels": o.labels, "scores": torch.ones(len(o.labels))}
        ...     for o in truth.objects
        ... ]
        >>> round(detection_metrics(truth, perfect)["ap"], 6)
        1.0

    Reference:
        Lin et al., Microsoft COCO, ECCV 2014; computed by pycocotools.
    """
    if len(found) != len(dataset):
        raise ValueError(f"found has {len(found)} entries for {len(dataset)} images")
    judge = judge_detections(dataset, found)
    # COCO writes -1 where there is nothing to measure.
    values = [None if number < 0 else float(number) for number in judge.stats]
    metrics: dict[str, Any] = dict(zip(_NAMES, values, strict=True))
    if len(dataset) > 1 and metrics["ap"] is not None:
        for name, drawn in resample_precision(match_classes(judge), len(dataset)).items():
            kept = drawn[~drawn.isnan()]
            interval = centred_interval(kept, metrics[name], level=0.95, bounds=(0.0, 1.0))
            metrics[f"{name}_interval"] = list(interval)
    metrics |= detection_calibration(dataset, found)
    by_class = {}
    seen = [each["labels"] for each in found] + [each.labels for each in dataset.objects]
    for label in torch.cat(seen).unique().tolist():
        precision = judge.eval["precision"][:, :, label, 0, -1]
        known = precision[precision > -1]
        by_class[dataset.classes[label]] = float(known.mean()) if known.size else None
    metrics["by_class"] = by_class
    return {**metrics, "samples": len(dataset), "objects": dataset.num_objects}


def detection_arrays(found: Sequence[Detection]) -> dict[str, Any]:
    """All detections of a set as arrays, with the position of the image of each."""
    index = [torch.full((len(each["scores"]),), n) for n, each in enumerate(found)]
    columns = {key: [each[key] for each in found] for key in ("boxes", "scores", "labels")}
    return {key: torch.cat(each).numpy() for key, each in {"index": index, **columns}.items()}
