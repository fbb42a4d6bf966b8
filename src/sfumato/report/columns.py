"""What a metric is called, whether it is a share, and which direction is good."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["higher", "lower"]
Range = Literal["share", "nonnegative", "any"]


@dataclass(frozen=True)
class Column:
    """One metric of one split; `better` is None where no direction is good as such."""

    key: str
    title: str
    better: Better | None
    percent: bool
    split: str = "test"

    @property
    def id(self) -> str:
        """Where the metric stands in `metrics.json`, such as `corrupted.error`."""
        return f"{self.split}.{self.key}" if self.split else self.key

    @property
    def heading(self) -> str:
        """Title with unit and the direction in which it improves."""
        arrow = {"higher": " ↑", "lower": " ↓", None: ""}[self.better]
        return f"{self.title}{' %' if self.percent else ''}{arrow}"

    @property
    def range(self) -> Range:
        """Between which bounds its values lie: 0 and 1, 0 and infinity, or none that are known."""
        if self.percent:
            return "share"
        by_class = self.split.rpartition(".")[2]
        name = by_class.removeprefix(_BY_CLASS) if by_class.startswith(_BY_CLASS) else self.key
        return "nonnegative" if _is_known(name) else "any"

    @property
    def is_main(self) -> bool:
        """Whether it is shown at first, before a reader asks for every metric."""
        if self.id == "context.average_confidence":
            return True
        by_class = self.split.rpartition(".")[2].startswith(_BY_CLASS)
        return not (by_class or self.key in _SECONDARY or self.id in _SECONDARY_IDS)

    def number(self, value: float, *, sign: bool = False) -> str:
        """As shown in tables: `83.1` for the share 0.831, three decimals for other metrics."""
        scaled, digits = (100 * value, 1) if self.percent else (value, 3)
        text = f"{scaled:+.{digits}f}" if sign else f"{scaled:.{digits}f}"
        return text.replace("-", "\u2212")

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """This metric in a run's metrics, or None where it is missing or not a finite number."""
        found = self._find(metrics, self.key)
        return float(found) if _is_number(found) else None

    def floor(self, metrics: Mapping[str, Any]) -> float | None:
        """What a perfectly calibrated network would show of it, where the run says so."""
        found = self._find(metrics, f"{self.key}{_FLOOR}")
        return float(found) if _is_number(found) else None

    def interval(self, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Its bootstrap interval over the test images, where the run has one."""
        found = self._find(metrics, f"{self.key}_interval")
        if not isinstance(found, list) or len(found) != 2 or not all(map(_is_number, found)):
            return None
        return float(found[0]), float(found[1])

    def _find(self, metrics: Mapping[str, Any], key: str) -> Any:
        place: Any = metrics
        for part in self.split.split(".") if self.split else ():
            place = place.get(part) if isinstance(place, Mapping) else None
        return place.get(key) if isinstance(place, Mapping) else None


# key: title, direction, whether it is a share of 1
KNOWN: dict[str, tuple[str, Better | None, bool]] = {
    "accuracy": ("accuracy", "higher", True),
    "iou": ("IoU", "higher", True),
    "miou": ("mIoU", "higher", True),
    "mean_iou": ("mIoU", "higher", True),
    "ap": ("AP", "higher", True),
    "ap50": ("AP50", "higher", True),
    "ap75": ("AP75", "higher", True),
    "ar": ("AR", "higher", True),
    **{
        f"{key}_{size}": (f"{key.upper()} {size}", "higher", True)
        for key in ("ap", "ar")
        for size in ("small", "medium", "large")
    },
    "error": ("error", "lower", True),
    "nll": ("NLL", "lower", False),
    "brier": ("Brier", "lower", False),
    "ece": ("ECE", "lower", True),
    "ece_foreground": ("ECE foreground", "lower", True),
    "foreground_ece": ("ECE foreground", "lower", True),
    "aece": ("AECE", "lower", True),
    "mce": ("MCE", "lower", True),
    "classwise_ece": ("classwise ECE", "lower", True),
    "rmsce": ("RMS calibration error", "lower", True),
    "detection_ece": ("detection ECE", "lower", True),
    "d_ece": ("D-ECE", "lower", True),
    "overconfidence": ("overconfidence", "lower", True),
    "underconfidence": ("underconfidence", "lower", True),
    "average_confidence": ("mean confidence", None, True),
    "aurc": ("AURC", "lower", True),
    "excess_aurc": ("excess AURC", "lower", True),
    "accuracy_at_80": ("accuracy at 80 % coverage", "higher", True),
    "confidence_auroc": ("confidence AUROC", "higher", True),
    "label_consistency": ("consistency of the labels", None, True),
    "consistency": ("consistency", "higher", True),
    "flip_probability": ("flip probability", "lower", True),
    "flip_rate": ("flip rate", "lower", True),
    "cec": ("CEC", "lower", False),
    "true_calibration_error": ("true calibration error", "lower", True),
    "true_ece": ("true ECE", "lower", True),
    "mean_objectness": ("mean objectness", None, True),
    "mean_objectness_deviation": ("objectness deviation", "lower", True),
    "temperature": ("temperature", None, False),
}

# Where a metric means something else than elsewhere: without its object an image can't be known,
# and a right answer was read off the background.
IN_SPLIT: dict[tuple[str, str], tuple[str, Better | None, bool]] = {
    ("context", "accuracy"): ("accuracy without object", "lower", True),
    ("context", "average_confidence"): ("confidence without object", "lower", True),
    ("context", "overconfidence"): ("overconfidence without object", "lower", True),
    ("context", "underconfidence"): ("underconfidence without object", "higher", True),
}

# Of a metric that is not known: the first word in its name that tells the direction.
_HIGHER = ("accuracy", "iou", "auroc", "precision", "recall", "consistency", "coverage", "ap")
_LOWER = ("error", "nll", "ece", "loss", "brier", "deviation", "aurc", "mce", "mae", "rmse")

_SECONDARY = {
    *("flip_rate", "cec", "temperature"),
    *("ar_1", "ar_10", "ar_small", "ar_medium", "ar_large"),
    *("brier", "mce", "classwise_ece", "overconfidence", "underconfidence"),
    *("average_confidence", "mean_objectness", "label_consistency"),
}
_SECONDARY_IDS = {
    *("corrupted.nll", "scaled.corrupted.nll"),
    *("scaled.aurc", "scaled.accuracy_at_80"),  # a temperature hardly changes the ranking,
    "scaled.corrupted.error",  # and never the predicted classes
    *("corrupted.ece", "scaled.corrupted.ece"),  # of few images: mostly the scatter of bins
    *("test.true_ece", "scaled.true_ece"),
}
_BY_CLASS = "class_"
_FLOOR = "_floor"
_NOT_METRICS = {"samples", "images", "pixels", "units", "boxes", "objects", "seconds"}
_NOT_SPLITS = {"validation", "reliability", "cells", "per_class", "by_class", "classes"}


def column(key: str, split: str = "test") -> Column:
    """The column of any metric: from the table of known ones, or guessed from its name."""
    if (split, key) in IN_SPLIT:
        return Column(key, *IN_SPLIT[split, key], split)
    parent, _, last = split.rpartition(".")
    if last.startswith(_BY_CLASS):  # `class_iou` holds one number for each class
        whole = column(last.removeprefix(_BY_CLASS), parent)
        return Column(key, f"{whole.title} {key}", whole.better, whole.percent, split)
    where = split.replace(".", " ").replace("_", " ").removeprefix("test").strip()
    title, better, percent = _described(key)
    title = title if title.startswith(where) else f"{where} {title}"
    return Column(key, title, better, percent, split)


def _is_known(key: str) -> bool:
    name, _, setting = key.rpartition("_")
    return key in KNOWN or (setting.isdigit() and name in KNOWN)


def _described(key: str) -> tuple[str, Better | None, bool]:
    """Title, direction, share; `ece_100`, a known metric with a setting, is known as well."""
    name, _, setting = key.rpartition("_")
    if key in KNOWN:
        return KNOWN[key]
    if setting.isdigit() and name in KNOWN:
        title, better, percent = KNOWN[name]
        return f"{title} {setting}", better, percent
    return key.replace("_", " "), _direction(key), False


COLUMNS = (
    column("accuracy"),
    column("nll"),
    column("ece"),
    column("true_calibration_error"),
    column("foreground_ece"),
    column("mean_iou"),
    column("consistency"),
    column("aece"),
    column("aurc"),
    column("accuracy_at_80"),
    column("error", "corrupted"),
    column("rmsce", "corrupted"),
    column("ece", "corrupted"),
)


def columns_of(runs: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Every scalar metric that any run has: the usual ones first, then in the order found."""
    found: dict[tuple[str, str], None] = {}
    for metrics in runs:
        found.update(dict.fromkeys(_scalars(metrics, "")))
    usual = [each for each in COLUMNS if (each.split, each.key) in found]
    known = {each.id for each in usual}
    rest = [column(key, split) for split, key in found]
    return usual + [each for each in rest if each.id not in known]


def _scalars(metrics: Mapping[str, Any], split: str) -> Iterator[tuple[str, str]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            if key not in _NOT_SPLITS:
                yield from _scalars(value, f"{split}.{key}" if split else key)
        elif _is_number(value) and key not in _NOT_METRICS and not key.endswith(_FLOOR):
            yield split, key


def _direction(key: str) -> Better | None:
    words = key.lower().replace("-", "_").split("_")
    for word in words:
        if word.rstrip("0123456789") in _HIGHER:
            return "higher"
        if word in _LOWER:
            return "lower"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
