"""Every source of detection data behind one call."""

from __future__ import annotations

from collections.abc import Callable

from sfumato._core.data_root import placed
from sfumato._core.spec import Spec, resolve
from sfumato.data.coco import load_coco
from sfumato.data.detection import DetectionSplits
from sfumato.data.scenes.objects import load_objects

DETECTION_SOURCES: dict[str, Callable[..., DetectionSplits]] = {
    "scene_objects": load_objects,
    "coco": load_coco,
}


def load_detection_data(spec: Spec) -> DetectionSplits:
    """Train, validation and test sets of a detection source, as `load_data` for labels.

    Example:
        >>> spec = {"name": "scene_objects", "train": 8, "validation": 4, "test": 4, "size": 32}
        >>> len(load_detection_data(spec).train)
        8
    """
    source = resolve(spec, DETECTION_SOURCES, "detection data")
    splits: DetectionSplits = source.build(**placed(source))
    return splits
