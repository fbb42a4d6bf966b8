"""Metrics, whole and in batches, against plain loops over exact numbers.

Probabilities are multiples of 2^-10, so that their sums are exact in every precision and a metric
has one right value, ties and bin edges included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from unittest import mock

import torch
from torch import Tensor

import sfumato.metrics as sm
from sfumato.ops import library
from tools.endurance.trials import Drawn

UNIT = 1024
Rows = list[list[Fraction]]


@dataclass(frozen=True)
class MetricCase:
    """Predictions that `number` draws, and the metric that is asked about them."""

    metric: str
    number: int
    samples: int = 4
    classes: int = 3
    shape: tuple[int, ...] = ()
    concentration: float = 1.0
    ignored: float = 0.0
    dtype: str = "float64"
    bins: int = 15
    kernels: bool = True
    batches: int = 1


def accuracy(rows: Rows, labels: list[int], bins: int) -> float:
    return _mean([Fraction(_top(row) == label) for row, label in zip(rows, labels, strict=True)])


def average_confidence(rows: Rows, labels: list[int], bins: int) -> float:
    return _mean([max(row) for row in rows])


def overconfidence(rows: Rows, labels: list[int], bins: int) -> float:
    wrong = [max(row) for row, label in zip(rows, labels, strict=True) if _top(row) != label]
    return _mean(wrong) if wrong else 0.0


def underconfidence(rows: Rows, labels: list[int], bins: int) -> float:
    right = [1 - max(row) for row, label in zip(rows, labels, strict=True) if _top(row) == label]
    return _mean(right) if right else 0.0


def brier(rows: Rows, labels: list[int], bins: int) -> float:
    return _mean(
        [
            sum(((p - (k == label)) ** 2 for k, p in enumerate(row)), Fraction(0))
            for row, label in zip(rows, labels, strict=True)
        ]
    )


def nll(rows: Rows, labels: list[int], bins: int) -> float:
    own = [row[label] for row, label in zip(rows, labels, strict=True)]
    if any(p == 0 for p in own):
        return math.inf
    return -math.fsum(math.log(p) for p in own) / len(own)


def ece(rows: Rows, labels: list[int], bins: int) -> float:
    gaps = [Fraction(0)] * bins
    for row, label in zip(rows, labels, strict=True):
        gaps[_bin(max(row), bins)] += max(row) - (_top(row) == label)
    return float(sum(map(abs, gaps)) / len(rows))


def mce(rows: Rows, labels: list[int], bins: int) -> float:
    gaps: dict[int, list[Fraction]] = {}
    for row, label in zip(rows, labels, strict=True):
        gaps.setdefault(_bin(max(row), bins), []).append(max(row) - (_top(row) == label))
    return float(max(abs(sum(each, Fraction(0))) / len(each) for each in gaps.values()))


def classwise(rows: Rows, labels: list[int], bins: int) -> float:
    total = Fraction(0)
    for k in range(len(rows[0])):
        gaps = [Fraction(0)] * bins
        for row, label in zip(rows, labels, strict=True):
            gaps[_bin(row[k], bins)] += row[k] - (label == k)
        total += sum(map(abs, gaps))
    return float(total / len(rows) / len(rows[0]))


def auroc(rows: Rows, labels: list[int], bins: int) -> float:
    right, wrong = [], []
    for row, label in zip(rows, labels, strict=True):
        (right if _top(row) == label else wrong).append(max(row))
    if not right or not wrong:
        return math.nan
    wins = sum(Fraction(a > b) + Fraction(a == b) / 2 for a in right for b in wrong)
    return float(wins / len(right) / len(wrong))


def _top(row: list[Fraction]) -> int:
    return row.index(max(row))


def _bin(p: Fraction, bins: int) -> int:
    return max(0, math.ceil(p * bins) - 1)


def _mean(values: list[Fraction]) -> float:
    return float(sum(values, Fraction(0)) / len(values))


Reference = Callable[[Rows, list[int], int], float]
Ours = Callable[[Tensor, Tensor, int], Tensor]
# The reference, the function, and the class that streams it.
METRICS: dict[str, tuple[Reference, Ours, Callable[[int], object] | None]] = {
    "accuracy": (accuracy, lambda p, y, b: sm.accuracy(p, y), None),
    "average_confidence": (
        average_confidence,
        lambda p, y, b: sm.average_confidence(p, y),
        lambda b: sm.AverageConfidence(),
    ),
    "overconfidence": (
        overconfidence,
        lambda p, y, b: sm.overconfidence(p, y),
        lambda b: sm.Overconfidence(),
    ),
    "underconfidence": (
        underconfidence,
        lambda p, y, b: sm.underconfidence(p, y),
        lambda b: sm.Underconfidence(),
    ),
    "brier": (brier, lambda p, y, b: sm.brier_score(p, y), lambda b: sm.BrierScore()),
    "nll": (
        nll,
        lambda p, y, b: sm.negative_log_likelihood(p, y),
        lambda b: sm.NegativeLogLikelihood(),
    ),
    "ece": (
        ece,
        lambda p, y, b: sm.calibration_error(p, y, num_bins=b),
        lambda b: sm.CalibrationError(num_bins=b),
    ),
    "mce": (
        mce,
        lambda p, y, b: sm.calibration_error(p, y, num_bins=b, norm="max"),
        lambda b: sm.CalibrationError(num_bins=b, norm="max"),
    ),
    "classwise": (
        classwise,
        lambda p, y, b: sm.classwise_calibration_error(p, y, num_bins=b),
        None,
    ),
    "auroc": (auroc, lambda p, y, b: sm.confidence_auroc(p, y), None),
}


def draw(number: int) -> MetricCase:
    dice = random.Random(number)
    return MetricCase(
        dice.choice(sorted(METRICS)),
        number,
        samples=dice.choice([1, 2, 5, 16, 40]),
        classes=dice.choice([2, 3, 7, 10]),
        shape=dice.choice([(), (), (3,), (2, 2)]),
        concentration=dice.choice([0.02, 0.3, 1.0, 10.0]),
        ignored=dice.choice([0.0, 0.0, 0.4]),
        dtype=dice.choice(["float32", "float64"]),
        bins=dice.choice([1, 2, 8, 10, 15, 16, 100]),
        kernels=dice.random() < 0.6,
        batches=dice.choice([1, 1, 2, 3]),
    )


def smaller(case: MetricCase) -> Iterator[MetricCase]:
    plain = MetricCase(case.metric, case.number)
    for name in ("shape", "ignored", "batches", "kernels", "dtype", "bins", "concentration"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    if case.samples > 1:
        yield replace(case, samples=case.samples // 2)
    if case.classes > 2:
        yield replace(case, classes=case.classes - 1)


def check(case: MetricCase) -> bool:
    """Raise where function or stream differ from the loop by more than a rounding."""
    probs, target = _predictions(case)
    kept = target != -100
    if not bool(kept.any()):
        return False
    rows = [[Fraction(p) for p in row] for row in probs.double().movedim(1, -1)[kept].tolist()]
    reference, function, stream = METRICS[case.metric]
    expected = reference(rows, target[kept].tolist(), case.bins)
    kernels = library.library if case.kernels else lambda: None
    with mock.patch.object(library, "library", kernels):
        found = {"function": float(function(probs, target, case.bins))}
        if stream is not None:
            state = stream(case.bins)
            for part, label in zip(
                probs.chunk(case.batches), target.chunk(case.batches), strict=True
            ):
                state.update(part, label)
            found["stream"] = float(state.compute())
    # A logarithm is rounded to the precision of the probabilities; all else is exact in float64.
    allowed = 1e-6 if (case.metric, case.dtype) == ("nll", "float32") else 1e-9
    for name, value in found.items():
        is_same = value == expected or (math.isnan(value) and math.isnan(expected))
        if not is_same and not abs(value - expected) <= allowed:
            raise AssertionError(f"{name} gives {value!r}, the loop {expected!r}")
    return True


def _predictions(case: MetricCase) -> tuple[Tensor, Tensor]:
    """Probabilities in units of 1/1024 that sum to 1 exactly, and labels."""
    random_numbers = torch.Generator().manual_seed(case.number)
    entries = (case.samples, *case.shape)
    spread = torch.randn((*entries, case.classes), generator=random_numbers, dtype=torch.float64)
    shares = (spread / case.concentration).softmax(-1)
    units = (shares * UNIT).floor()
    units.scatter_add_(-1, units.argmax(-1, keepdim=True), UNIT - units.sum(-1, keepdim=True))
    probs = (units / UNIT).movedim(-1, 1).to(getattr(torch, case.dtype))
    label = torch.randint(0, case.classes, entries, generator=random_numbers)
    is_ignored = torch.rand(entries, generator=random_numbers) < case.ignored
    return probs, label.masked_fill(is_ignored, -100)


SCORES = Drawn("metrics", draw, check, smaller, lambda case: case.metric)
