"""Columns of all tables: one metric of one split each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._core.metric_descriptions import (
    IN_SPLIT,
    OWN_SPLITS,
    Better,
    Description,
    Range,
    describe_metric,
)
from sfumato.report.read import MethodResults


@dataclass(frozen=True)
class Column:
    """One metric of one split; `better` is None where no direction is good as such."""

    key: str
    title: str
    better: Better | None
    range: Range
    split: str = "test"

    @property
    def id(self) -> str:
        """Path of the metric in `metrics.json`, such as `corrupted.error`."""
        return f"{self.split}.{self.key}" if self.split else self.key

    @property
    def heading(self) -> str:
        """Title with unit and the direction in which it improves."""
        arrow = {"higher": " ↑", "lower": " ↓", None: ""}[self.better]
        return f"{self.title}{' %' if self.percent else ''}{arrow}"

    @property
    def percent(self) -> bool:
        """True if it is shown in percent."""
        return self.range == "share"

    @property
    def is_main(self) -> bool:
        """True if it is shown at first, before a reader asks for every metric."""
        if self.id == "context.average_confidence":
            return True
        if self.is_of_other_set:
            return self.key in _OF_OTHER_SETS
        last = self.split.rpartition(".")[2]
        if self.unscaled_split.startswith(_STRANGE):
            return self.key == "auroc" and last in _SCORES_SHOWN and self.split.startswith(_STRANGE)
        if self.split.startswith(_CHANGED):
            return self.key in ("error", "success_rate")
        aside = last.startswith(_BY_CLASS) or last in _SECONDARY_SPLITS
        return not (aside or self.key in _SECONDARY or self.id in _SECONDARY_IDS)

    @property
    def is_of_other_set(self) -> bool:
        """True if it is of a further test set of `evaluate.also`, plain or scaled."""
        first = self.unscaled_split.partition(".")[0]
        return bool(first) and first not in OWN_SPLITS

    @property
    def unscaled_split(self) -> str:
        """The split without the mark of a temperature."""
        return self.split.removeprefix("scaled.").removeprefix("scaled_by_ece.")

    def number(self, value: float, *, sign: bool = False) -> str:
        """Format for tables: `83.1` for the share 0.831, three decimals for other metrics."""
        scaled, digits = (100 * value, 1) if self.percent else (value, 3)
        return f"{scaled:{'+' if sign else ''}.{digits}f}".replace("-", "\u2212")

    def with_interval(
        self, mean: float, low: float | None, high: float | None, *, sign: bool = False
    ) -> str:
        """`83.1 [81.9, 84.2]`, or `83.1` where no interval is known."""
        shown = self.number(mean, sign=sign)
        if low is None or high is None:
            return shown
        return f"{shown} [{self.number(low, sign=sign)}, {self.number(high, sign=sign)}]"

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """This metric in a run's metrics, or None where it is missing or not a finite number."""
        return _number(self._find(metrics, ""))

    def floor(self, metrics: Mapping[str, Any]) -> float | None:
        """Return its value for a perfectly calibrated network, where the run says so."""
        return _number(self._find(metrics, _FLOOR))

    def interval(self, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Its bootstrap interval over the test images, where the run has one."""
        found = self._find(metrics, "_interval")
        if not isinstance(found, list) or len(found) != 2 or not all(map(_is_number, found)):
            return None
        return float(found[0]), float(found[1])

    def _find(self, metrics: Mapping[str, Any], suffix: str) -> Any:
        place: Any = metrics
        parts = self.split.split(".") if self.split else []
        for part in (*parts, f"{self.key}{suffix}"):
            place = place.get(part) if isinstance(place, Mapping) else None
        return place


_SECONDARY = {
    *("flip_rate", "consistency_to_previous", "cec", "cec_released", "temperature", "order"),
    *("shrinkage", "ar_1", "ar_10", "ar_small", "ar_medium", "ar_large"),
    *("brier", "mce", "classwise_ece", "augrc", "overconfidence", "underconfidence"),
    *("classwise_ace", "nll_calibration", "nll_refinement"),
    *("brier_calibration", "brier_refinement"),
    *("average_confidence", "relative_confidence", "mean_objectness", "label_consistency"),
}
_OF_OTHER_SETS = {"accuracy", "nll", "ece", "expected_accuracy"}
_SECONDARY_IDS = {
    *("corrupted.nll", "scaled.corrupted.nll"),
    *("scaled.aurc", "scaled.accuracy_at_80"),  # a temperature hardly changes the ranking,
    "scaled.corrupted.error",  # and never the predicted classes
    *("corrupted.ece", "scaled.corrupted.ece"),  # of few images: mostly the scatter of bins
    *("test.true_ece", "scaled.true_ece"),
}
_SECONDARY_SPLITS = {"relative_to_baseline", "train"}
_BY_CLASS = "class_"
_CHANGED = ("attacked.", "frequency.")  # how often it errs comes first, of images made for that
_STRANGE = "ood."
_SCORES_SHOWN = ("max_probability", "energy", "nearest_neighbours")
_FLOOR = "_floor"
_OWN = "own"
_NOT_METRICS = {"samples", "pixels", "units", "objects", "skipped_images"}
_NOT_SPLITS = {"validation", "reliability", "cells", "by_class"}


def column(key: str, split: str = "test") -> Column:
    """The column of any metric, with its title and direction from `metric_descriptions`."""
    return Column(key, *_description(key, split), split)


def _description(key: str, split: str) -> Description:
    """Describe it, with a title that says of what it is measured unless of the test set."""
    if (split, key) in IN_SPLIT:
        return IN_SPLIT[split, key]
    parent, _, last = split.rpartition(".")
    if parent == _OWN:  # whatever a user calls a number: its direction is not for us to guess
        return Description(f"{last} {key}".removesuffix(" value").replace("_", " "))
    if last.startswith(_BY_CLASS):  # `class_iou` holds one number for each class
        whole = _description(last.removeprefix(_BY_CLASS), parent)
        return whole._replace(title=f"{whole.title} {key}")
    where = split.replace(".", " ").replace("_", " ").removeprefix("test").strip()
    found = describe_metric(key)
    told = found.title.startswith(where)
    return found if told else found._replace(title=f"{where} {found.title}")


COLUMNS = (
    *map(column, ("accuracy", "nll", "ece", "true_calibration_error")),
    *map(column, ("foreground_ece", "foreground_aece", "mean_iou", "consistency")),
    *map(column, ("aece", "aurc", "accuracy_at_80")),
    *(column(key, "corrupted") for key in ("error", "rmsce", "ece")),
)


def columns_of(runs: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Every scalar metric that any run has: the usual ones first, then in the order found."""
    places = dict.fromkeys(place for metrics in runs for place in _scalars(metrics, ""))
    found = [column(key, split) for split, key in places]
    return list(dict.fromkeys([*(each for each in COLUMNS if each in found), *found]))


def _scalars(metrics: Mapping[str, Any], split: str) -> Iterator[tuple[str, str]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            if key not in _NOT_SPLITS:
                yield from _scalars(value, f"{split}.{key}" if split else key)
        elif _is_number(value):
            is_metric = key not in _NOT_METRICS and not key.endswith(_FLOOR)
            if is_metric or split.startswith(f"{_OWN}."):
                yield split, key


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def pooled_bins(method: MethodResults) -> dict[str, list[float]] | None:
    """Pool the bins of the reliability diagram over all seeds, weighted by their counts."""
    splits = [run.metrics.get("test") or {} for run in method.runs]
    tables = [each["reliability"] for each in splits if "reliability" in each]
    if not tables:
        return None
    counts = [sum(column) for column in zip(*(t["counts"] for t in tables), strict=True)]
    pooled: dict[str, list[float]] = {"counts": counts}
    for key in ("confidence", "accuracy"):
        pooled[key] = [
            # An empty bin holds null in the file; its count of 0 makes it weigh nothing.
            sum(t["counts"][i] * (t[key][i] or 0.0) for t in tables) / count if count else 0.0
            for i, count in enumerate(counts)
        ]
    return pooled
