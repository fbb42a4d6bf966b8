"""Average precision and recall of detections, as COCO defines them, and their calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.data import DetectionDataset
from sfumato.engine.evaluation.detection_bootstrap import resample_precision
from sfumato.engine.evaluation.detection_calibration import RESAMPLES, detection_calibration
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.metrics.intervals import centred_interval

Detection = dict[str, Tensor]

_NAMES = {
    "ap": "map",
    "ap50": "map_50",
    "ap75": "map_75",
    "ap_small": "map_small",
    "ap_medium": "map_medium",
    "ap_large": "map_large",
    "ar_1": "mar_1",
    "ar_10": "mar_10",
    "ar": "mar_100",
    "ar_small": "mar_small",
    "ar_medium": "mar_medium",
    "ar_large": "mar_large",
}


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
        Lin et al., Microsoft COCO, ECCV 2014; computed by torchmetrics' MeanAveragePrecision.
    """
    from torchmetrics.detection import MeanAveragePrecision

    if len(found) != len(dataset):
        raise ValueError(f"found has {len(found)} entries for {len(dataset)} images")
    metric = MeanAveragePrecision(backend="pycocotools", class_metrics=True)
    for number, each in enumerate(found):
        truth, scale = dataset.objects[number], dataset.scales[number]
        metric.update(
            [{**each, "boxes": each["boxes"] * scale}],
            [
                {
                    "boxes": truth.boxes * scale,
                    "labels": truth.labels,
                    "area": truth.areas,
                    "iscrowd": truth.crowd.int(),
                }
            ],
        )
    values = metric.compute()
    metrics: dict[str, Any] = {name: _value(values[key]) for name, key in _NAMES.items()}
    metrics |= _intervals(dataset, found, metrics)
    metrics |= detection_calibration(dataset, found)
    by_class = zip(
        values["classes"].reshape(-1).tolist(), values["map_per_class"].reshape(-1), strict=True
    )
    metrics["by_class"] = {dataset.classes[c]: _value(value) for c, value in by_class}
    return {**metrics, "samples": len(dataset), "objects": dataset.num_objects}


def _intervals(
    dataset: DetectionDataset, found: Sequence[Detection], metrics: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Of AP, where there are images to draw from and anything to find."""
    if len(dataset) < 2 or metrics["ap"] is None:
        return {}
    draws = resample_precision(
        dataset,
        found,
        resamples=RESAMPLES,
        generator=Replicates(RESAMPLES).generator(len(dataset)),
    )
    return {
        f"{name}_interval": list(
            centred_interval(drawn[~drawn.isnan()], metrics[name], level=0.95, bounds=(0.0, 1.0))
        )
        for name, drawn in draws.items()
    }


def detection_arrays(found: Sequence[Detection]) -> dict[str, Any]:
    """All detections of a set as arrays, with the position of the image of each."""
    index = [torch.full((len(each["scores"]),), n) for n, each in enumerate(found)]
    return {
        "index": torch.cat(index).numpy(),
        **{
            key: torch.cat([each[key] for each in found]).numpy()
            for key in ("boxes", "scores", "labels")
        },
    }


def _value(number: Tensor) -> float | None:
    """torchmetrics writes -1 where there is nothing to measure."""
    return None if float(number) < 0 else float(number)
