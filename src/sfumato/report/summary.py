"""A method's numbers over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.report.read import MethodResults


@dataclass(frozen=True)
class Value:
    """Mean over seeds, with the interval that sampling the test set leaves (95 %)."""

    mean: float
    low: float | None = None
    high: float | None = None

    def text(self, percent: bool) -> str:
        """As shown in tables: `83.1 [81.9, 84.2]`, or `83.1` where no interval is known."""
        scale, digits = (100, 1) if percent else (1, 3)
        if self.low is None or self.high is None:
            return f"{scale * self.mean:.{digits}f}"
        mean, low, high = (
            f"{scale * each:.{digits}f}" for each in (self.mean, self.low, self.high)
        )
        return f"{mean} [{low}, {high}]"


@dataclass(frozen=True)
class DiagramBins:
    """A reliability diagram's bins, all seeds together."""

    counts: list[int]
    confidence: list[float]
    accuracy: list[float]


def summarise(method: MethodResults, key: str, split: str = "test") -> Value | None:
    """Mean of one metric over a method's finished seeds, or None where there is none.

    All seeds are tested on the same images, so the bootstrap intervals of the runs share their
    noise: their bounds are averaged, not narrowed.
    """
    found = [r.metrics[split] for r in method.runs if key in r.metrics.get(split, ())]
    if not found:
        return None
    mean = _mean([each[key] for each in found])
    intervals = [each.get(f"{key}_interval") for each in found]
    if None in intervals:
        return Value(mean)
    return Value(mean, *(_mean(bounds) for bounds in zip(*intervals, strict=True)))


def pooled_bins(method: MethodResults, split: str = "test") -> DiagramBins | None:
    """The reliability bins of all seeds, weighted by their counts."""
    splits = [run.metrics.get(split) or {} for run in method.runs]
    tables = [part["reliability"] for part in splits if "reliability" in part]
    if not tables:
        return None
    counts = [sum(column) for column in zip(*(t["counts"] for t in tables), strict=True)]
    pooled: dict[str, list[float]] = {}
    for key in ("confidence", "accuracy"):
        pooled[key] = [
            sum(t["counts"][i] * (t[key][i] or 0.0) for t in tables) / count if count else 0.0
            for i, count in enumerate(counts)
        ]
    return DiagramBins(counts, pooled["confidence"], pooled["accuracy"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
