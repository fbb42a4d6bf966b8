"""Reduce predictions to outcomes, and add those up: totals of fixed size that merge over shards.

Every accumulator has `add(batch)` and `merge(other)`. Rows in memory are one batch.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from sfumato._core.statistics import bin_index, edge_slack
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    file_numbers,
    file_of,
)
from sfumato.metrics.detection import KINDS, detection_cells, errors_of_cells
from sfumato.metrics.evaluate import (
    CellCounts,
    Comparison,
    Draws,
    blocks_of,
    compare_draws,
    confidence_cells,
    intervals_of,
    measure_resamples,
    metrics_of_groups,
    normal_interval,
)
from sfumato.metrics.groups import (
    Groups,
    Samples,
    add_samples,
    cell_edges,
    cell_index,
    cells_per_unit,
    counts_of_sums,
    empty_sums,
    group_by_value,
    groups_of_sums,
    resample_groups,
    score,
)
from sfumato.predictions.decisions import (
    THRESHOLDS,
    ImageSteps,
    evidence_bounds,
    image_steps,
    mixed_numbers,
    name_code,
)

NUM_BINS = 15


class Outcomes(NamedTuple):
    """One entry for each prediction that counts; None for what the file doesn't tell."""

    confidence: Tensor  # probability of the predicted class
    correct: Tensor
    log_likelihood: Tensor | None  # of the label
    squared_error: Tensor | None  # distance from the one-hot label
    predicted: Tensor | None
    label: Tensor | None
    unit: Tensor | None  # the image, where several predictions are of one and so not independent
    row: Tensor  # position in the file
    place: Tensor | None = None  # position of the label map that a pixel is of

    def samples(self) -> Samples:
        """Samples as the metrics take them; a likelihood that is unknown is 0."""
        likelihood = self.log_likelihood
        if likelihood is None:
            likelihood = torch.zeros_like(self.confidence)
        return Samples(self.confidence, self.correct, likelihood)


def outcomes(file: AnyPredictions) -> Outcomes:
    """Outcomes of all predictions of a file that was read, and so is valid."""
    if isinstance(file, PredictionFile):
        return _of_distributions(file)
    unit = None
    # Of predictions without labels nothing is known that images could share.
    if file.images is not None and file.is_labelled:
        codes = {name: number for number, name in enumerate(dict.fromkeys(file.images))}
        if len(codes) < len(file):
            unit = torch.tensor([codes[name] for name in file.images])
    return Outcomes(
        file.confidence, file.correct, None, None, file.predicted, None, unit, file.positions
    )


def _of_distributions(file: PredictionFile) -> Outcomes:
    values, labels = file.predictions, file.labels
    rows, place = file.positions, None
    if values.ndim == 2 and values.stride(0) == 1 and len(values) > 1:
        # A plane for each class, as tables are read: seen as one image of N pixels.
        values, labels = values.T.unsqueeze(0), labels.unsqueeze(0)
    elif values.ndim > 2:
        place = torch.arange(len(labels)).view(-1, *[1] * (labels.ndim - 1)).expand_as(labels)
    from_logits = file.logits is not None
    found = score(values, labels, from_logits=from_logits, ignore_index=file.void, validate=False)
    probs = values.softmax(1) if from_logits else values
    counts = labels != file.void
    chosen = slice(None) if bool(counts.all()) else counts.flatten()
    label = labels.flatten()[chosen]
    place = None if place is None else place.flatten()[chosen]
    squares = probs.square().sum(1).flatten()[chosen]
    return Outcomes(
        confidence=found.confidence.clamp(max=1),  # sums may be off by a rounding
        correct=found.correct,
        log_likelihood=found.log_likelihood,
        squared_error=squares.sub_(found.log_likelihood.exp(), alpha=2).add_(1),
        predicted=_predicted(values, label, found.correct, chosen),
        label=label,
        unit=place,
        row=rows if place is None else rows[place],
        place=place,
    )


def _predicted(values: Tensor, label: Tensor, correct: Tensor, chosen: slice | Tensor) -> Tensor:
    """The first class with the largest value, of each entry that counts, (M,).

    Where a prediction is right that is the label, so only the wrong ones are looked at again.
    """
    wrong = (~correct).nonzero().flatten()
    rows = values.movedim(1, 0).flatten(1)  # (C, entries)
    rows = rows[:, wrong] if isinstance(chosen, slice) else rows[:, chosen][:, wrong]
    top = rows.amax(0)
    first = torch.zeros_like(wrong)
    for number in range(len(rows) - 1, -1, -1):  # passes: `argmax` over this axis is far slower
        first.masked_fill_(rows[number] == top, number)
    return label.index_put((wrong,), first)


def evaluate_confidences(
    samples: Samples, *, resamples: int, generator: torch.Generator, unit: Tensor | None = None
) -> dict[str, Any]:
    """The metrics that need confidence and correctness only, with their intervals.

    `unit` is the number of the image of each sample, (N,): images are then drawn, not samples.
    """
    values = _measure(samples)
    if not resamples:
        return dict(values)
    draws = _resample(samples, resamples, unit, generator)
    units = len(samples.confidence) if unit is None else int(unit.max()) + 1
    return {**values, **intervals_of(values, draws, units=units, one_each=unit is None)}


def compare_confidences(
    first: Samples,
    second: Samples,
    *,
    resamples: int,
    generator: torch.Generator,
    unit: Tensor | None = None,
) -> dict[str, Comparison]:
    """Two models on the same samples; see `compare_predictions`, and `evaluate_confidences`."""
    return compare_draws(
        (_measure(first), _measure(second)),
        [partial(_resample, each, resamples, unit) for each in (first, second)],
        generator,
    )


def _measure(samples: Samples) -> dict[str, float]:
    found = metrics_of_groups(group_by_value(samples), NUM_BINS)
    return {name: float(value) for name, value in found.items()}


def blocks_of_units(samples: int, unit: Tensor | None) -> tuple[Tensor, int]:
    """Number the block of each sample, (N,), and count the blocks; units stay whole."""
    block, blocks = blocks_of(samples if unit is None else int(unit.max()) + 1)
    return (block if unit is None else block[unit]), blocks


def _resample(
    samples: Samples, resamples: int, unit: Tensor | None, generator: torch.Generator
) -> Draws:
    """Every metric of every resample, (R,) each."""
    block, blocks = blocks_of_units(len(samples.confidence), unit)
    cells = confidence_cells(samples.confidence, NUM_BINS)
    counts = CellCounts(samples, *cells, block, blocks, is_dense=True)
    measure = partial(counts.measure, num_bins=NUM_BINS)
    return measure_resamples(measure, blocks, resamples, generator=generator)


class Batch:
    """Predictions on their way into totals: a shard, or all rows that are in memory."""

    def __init__(self, file: AnyPredictions, number: int = 0) -> None:
        self.file, self.number, self.found = file, number, outcomes(file)
        self.classes: list[str] = []  # that can be predicted, by name or else by number
        if self.found.predicted is not None:
            self.classes = file.classes or []
            if file.classes is None and isinstance(file, PredictionFile):
                self.classes = [str(number) for number in range(file.predictions.shape[1])]

    @cached_property
    def numbers(self) -> Tensor:
        """A number below 2^63 for each row that is as good as random, (N,), int64."""
        return mixed_numbers(self.places)

    @cached_property
    def places(self) -> Tensor:
        """Names of the rows in any order of shards, (N,)."""
        file = self.file
        if isinstance(file, ConfidenceFile) and file.images is not None:
            codes = {name: name_code(name) for name in set(file.images)}
            return torch.tensor([codes[name] for name in file.images])
        if file.index is not None:
            return file.index
        numbers = file_numbers(file) if file.origins else self.number
        return file.positions + numbers * _ROWS_PER_FILE

    def of_entries(self, values: Tensor) -> Tensor:
        """Values of rows for each entry, of which a segmentation mask has one a pixel."""
        return values if self.found.place is None else values[self.found.place]


def _add_to(parts: dict[Any, Tensor], key: Any, sums: Tensor) -> None:
    """A copy of the first: what is added later must not change the shard's own."""
    parts[key] = parts[key] + sums if key in parts else sums.clone()


PERIODS = 96
_ROWS_PER_FILE = 2**40  # so that no two rows of a model's files have the same place
_DAY = 86400
_SECONDS = (1, 60, 600, 3600, 21600, _DAY)

# Of dates: the longest time between the first and the last, in seconds; then the periods.
_CALENDAR = (
    (60, "second", "s", 1),
    (3600, "minute", "m", 60),
    (8 * 3600, "10 minutes", "m", 600),
    (2 * _DAY, "hour", "m", 3600),
    (7 * _DAY, "6 hours", "m", 21600),
    (60 * _DAY, "day", "D", _DAY),
    (366 * _DAY, "week", "D", _DAY),
    (5 * 366 * _DAY, "month", "M", _DAY),
    (math.inf, "year", "Y", _DAY),
)


def sums_of_units(count: Tensor, hits: Tensor, mass: Tensor, expected: Tensor) -> Tensor:
    """Sums that a gap and its interval need of each unit, (U, 8): these add up over units.

    Predictions, right ones, confidence; then with n predictions and an excess of confidence e:
    e^2, e n, n^2, and 1; last the variance c (1 - c) that outcomes have where each c is true.
    """
    excess, units = mass - hits, torch.ones_like(count)
    columns = (count, hits, mass, excess**2, excess * count, count**2, units, expected)
    return torch.stack(columns, 1)


def part_sums(
    part: Tensor, parts: int, confidence: Tensor, correct: Tensor, unit: Tensor | None
) -> Tensor:
    """`sums_of_units` of each part, (P, 8), of predictions with their parts' numbers, (M,).

    `unit` is the image of each prediction, where those of one image are not independent.
    """
    sure, right = confidence.double(), correct.double()
    if unit is None:
        weighted = (None, right, sure, (sure - right).square(), sure * (1 - sure))
        count, hits, mass, squares, expected = (_sums(part, each, parts) for each in weighted)
        return torch.stack([count, hits, mass, squares, mass - hits, count, count, expected], 1)
    # Only pairs of image and part that occur: all pairs of many images and classes fill memory.
    pairs, pair = (unit * parts + part).unique(return_inverse=True)
    by_pair = (None, right, sure, sure * (1 - sure))
    over = sums_of_units(*(_sums(pair, each, len(pairs)) for each in by_pair))
    return over.new_zeros(parts, over.shape[1]).index_add_(0, pairs % parts, over)


def whole_sums(confidence: Tensor, correct: Tensor, unit: Tensor | None) -> Tensor:
    """`part_sums` of everything as one part, (8,)."""
    if unit is not None:
        return part_sums(torch.zeros_like(unit), 1, confidence, correct, unit)[0]
    sure = confidence.double()
    excess = sure - correct.double()
    count, hits, gap = float(len(excess)), float(correct.sum()), float(excess.sum())
    squares, expected = float(excess.dot(excess)), hits + gap - float(sure.dot(sure))
    sums = [count, hits, hits + gap, squares, gap, count, count, expected]
    return torch.tensor(sums, dtype=torch.float64)


def _sums(part: Tensor, weights: Tensor | None, parts: int) -> Tensor:
    return torch.bincount(part, weights=weights, minlength=parts).double()


Direction = Literal["overconfident", "underconfident", "inconclusive"]


class Gap(TypedDict):
    """Mean confidence minus accuracy of a part, with its interval."""

    name: str
    count: int
    accuracy: float
    confidence: float
    gap: float
    interval: list[float]
    direction: Direction


def gap_of(name: str, sums: Tensor, tests: int = 1) -> Gap:
    """Mean of confidence minus correctness, with Student's interval that allows for `tests`.

    A normal one would call a model wrong on the evidence of two predictions. The variance is that
    of the outcomes, and at least what true confidences expect: of 300 predictions at 99 %, a lucky
    299 are right, which would leave next to no variance. Where all were right, or all wrong, one
    more unit of the other kind is assumed.
    """
    from scipy.special import stdtrit

    count, hits, mass, squares, products, sizes, units, expected = sums.tolist()
    gap = (mass - hits) / count if count else math.nan
    low = high = math.nan
    if units > 1:
        spread = max(squares - 2 * gap * products + gap**2 * sizes, expected, 0.0)
        spread += (count / units) ** 2 if hits in (0, count) else 0.0
        error = math.sqrt(spread * units / (units - 1)) / count
        width = float(stdtrit(units - 1, 1 - 0.025 / tests)) * error
        low, high = max(gap - width, -1.0), min(gap + width, 1.0)
    direction: Direction = "inconclusive"
    if low > 0 or high < 0:
        direction = "overconfident" if low > 0 else "underconfident"
    return {
        "name": name,
        "count": int(count),
        "accuracy": hits / count if count else math.nan,
        "confidence": mass / count if count else math.nan,
        "gap": gap,
        "interval": [low, high],
        "direction": direction,
    }


def design_effect(sums: Tensor) -> float:
    """Ratio of the gap's variance over images to that over independent predictions.

    Reference: Rao and Scott, The Analysis of Categorical Data from Complex Sample Surveys, Journal
    of the American Statistical Association 1981.
    """
    count, hits, mass, squares, products, sizes, units, expected = sums.tolist()
    gap = (mass - hits) / count
    spread = squares - 2 * gap * products + gap**2 * sizes
    return max(spread / expected, 1.0) if units < count and expected > 0 else 1.0


def gaps_of(parts: Mapping[str, Tensor]) -> list[Gap]:
    """Every part, largest significant gap first; intervals hold for all together (95 %)."""
    filled = {name: sums for name, sums in parts.items() if sums[0] > 0}
    rows = [gap_of(name, sums, len(filled)) for name, sums in filled.items()]
    return sorted(rows, key=lambda row: (row["direction"] == "inconclusive", -abs(row["gap"])))


class _ByName:
    """Base of sums that are known by name."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def merge(self, other: _ByName) -> None:
        for name, sums in other.parts.items():
            _add_to(self.parts, name, sums)


class NamedSums(_ByName):
    """Sums by predicted class or by group."""

    def __init__(self, by: Literal["class", "group"]) -> None:
        super().__init__()
        self.by = by

    def add(self, batch: Batch) -> None:
        found, names, part = batch.found, batch.classes, batch.found.predicted
        if self.by == "group":
            groups = batch.file.groups or []
            names = sorted(set(groups))
            places = {name: place for place, name in enumerate(names)}
            of_rows = torch.tensor([places[name] for name in groups])
            part = batch.of_entries(of_rows) if names else None
        if part is None:
            return
        sums = part_sums(part, len(names), found.confidence, found.correct, found.unit)
        for place in sums[:, 0].nonzero().flatten().tolist():
            _add_to(self.parts, names[place], sums[place])


By = Literal["day", "week", "month"]


class Period(NamedTuple):
    """Predictions of one span of time; dates as text, other times as numbers."""

    name: str
    start: str | float
    end: str | float
    sums: Tensor


class TimeSums:
    """Sums of successive periods, whatever the times turn out to be.

    Dates fall into hours, days, weeks, months ... of the calendar (UTC), chosen by the time between
    the first and the last; other numbers into at most 96 equal periods, 2^k long, with the least k.
    What is summed up depends on the first and the last time alone, so that parts merge into the
    same periods in any order. The first period begins with the first prediction.
    """

    def __init__(self) -> None:
        self.by: By | None = None  # the unit of periods; None for one that suits the span
        self.is_dated = False
        self.power = -1074  # of the smallest number that there is; of dates, place in `_SECONDS`
        self.periods: dict[int, Tensor] = {}
        self.low, self.high = math.inf, -math.inf

    def add(self, batch: Batch) -> None:
        file, found = batch.file, batch.found
        if file.times is None:
            return
        times = batch.of_entries(file.times)
        self._agree(file.is_dated)
        self._widen(float(times.min()), float(times.max()))
        start = self._period(self.low)
        if file.is_dated:
            part = times.floor().long().div(_SECONDS[self.power], rounding_mode="floor") - start
        else:
            part = (times / 2.0**self.power).floor().long() - start
        seen, part = part.unique(return_inverse=True)  # days of a century, of which few are filled
        sums = part_sums(part, len(seen), found.confidence, found.correct, found.unit)
        for place, each in zip(seen.tolist(), sums, strict=True):
            _add_to(self.periods, start + place, each)

    def merge(self, other: TimeSums) -> None:
        if not other.periods:
            return
        self._agree(other.is_dated)
        self._widen(other.low, other.high)
        for period, sums in other.periods.items():
            _add_to(self.periods, period // self._ratio(other.power), sums)

    @property
    def unit(self) -> str | None:
        """Name of the periods of dates, such as "day"; None of other numbers."""
        if not self.is_dated or not self.periods:
            return None
        return self.by or _calendar(self.high - self.low)[0]

    def named(self) -> list[Period]:
        """The periods that hold predictions, in their order."""
        if self.by is not None and not self.is_dated:
            raise PredictionFileError(
                f"periods of a {self.by} need a column time of dates, such as 2026-01-31; here are "
                f"{'other numbers' if self.periods else 'none'}: leave --by out"
            )
        if not self.is_dated:
            length = 2.0**self.power
            spans_of = {n: (n * length, (n + 1) * length) for n in sorted(self.periods)}
            return [self._plain(*span, self.periods[n]) for n, span in spans_of.items()]
        unit, code, _ = _calendar(self.high - self.low)
        if self.by is not None:
            unit, code = self.by, "M" if self.by == "month" else "D"
        spans: dict[tuple[int, int], Tensor] = {}
        for number in sorted(self.periods):
            span = _span(number * _SECONDS[self.power], unit, _SECONDS[self.power])
            _add_to(spans, span, self.periods[number])
        return [self._dated(start, end, code, sums) for (start, end), sums in spans.items()]

    def _plain(self, start: float, end: float, sums: Tensor) -> Period:
        start, end = max(start, self.low), min(end, self.high)
        return Period(f"{start:.10g}", start, end, sums)

    def _dated(self, start: int, end: int, code: str, sums: Tensor) -> Period:
        first, last = max(start, self.low), min(end, self.high)
        name = str(np.datetime64(math.floor(first), "s").astype(f"datetime64[{code}]"))
        return Period(name.replace("T", " "), date_text(first), date_text(last), sums)

    def _agree(self, is_dated: bool) -> None:
        if not self.periods:
            self.is_dated, self.power = is_dated, 0 if is_dated else self.power
        elif self.is_dated != is_dated:
            raise PredictionFileError(
                "some predictions have dates, others numbers as time: parts of one model have "
                "the same"
            )

    def _widen(self, low: float, high: float) -> None:
        before = self.power
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.is_dated:
            self.power = _SECONDS.index(_calendar(self.high - self.low)[2])
        else:
            size = max(abs(self.low), abs(self.high), 2.0**-900)
            # Below this, periods could not be told apart in double precision.
            self.power = max(self.power, math.frexp(size)[1] - 52)
            while self._period(self.high) - self._period(self.low) >= PERIODS:
                self.power += 1
        old, self.periods = self.periods, {}
        for period, sums in old.items():
            _add_to(self.periods, period // self._ratio(before), sums)

    def _ratio(self, before: int) -> int:
        """Number of periods of the length that `before` stands for in one of now."""
        if self.is_dated:
            return _SECONDS[self.power] // _SECONDS[before]
        return 1 << (self.power - before)

    def _period(self, time: float) -> int:
        if self.is_dated:
            return math.floor(time) // _SECONDS[self.power]
        return math.floor(time / 2.0**self.power)


def date_text(time: float) -> str:
    """Seconds since 1970 as a date of UTC, such as 2026-01-31T11:00:00Z."""
    return f"{np.datetime64(math.floor(time), 's')}Z"


def _calendar(span: float) -> tuple[str, str, int]:
    """Name of the periods, NumPy's unit of their names, and their length in seconds."""
    return next(found for longest, *found in _CALENDAR if span <= longest)  # type: ignore[return-value]


def _span(time: int, unit: str, seconds: int) -> tuple[int, int]:
    """Begin and end of the period in which these seconds since 1970 lie."""
    day = np.datetime64(time, "s").astype("datetime64[D]")
    if unit == "day":
        first, last = day, day + 1
    elif unit == "week":  # 1970 began on a Thursday
        first = np.datetime64((int(day.astype(int)) + 3) // 7 * 7 - 3, "D")
        last = first + 7
    elif unit in ("month", "year"):
        first = day.astype(f"datetime64[{unit[0].upper()}]")
        last = first + 1
    else:
        return time, time + seconds
    start, end = (each.astype("datetime64[s]").astype(int) for each in (first, last))
    return int(start), int(end)


_PLACES = len(THRESHOLDS) + 1


class ClassCounts(_ByName):
    """Right and wrong predictions of each class between two thresholds, 34 kB for each class."""

    def add(self, batch: Batch) -> None:
        found, classes = batch.found, batch.classes
        if found.predicted is None:
            return
        grid = torch.tensor(THRESHOLDS, dtype=torch.float64).flip(0)
        reached = torch.searchsorted(grid, found.confidence.double(), right=True)  # thresholds
        place = (found.predicted * _PLACES + reached) * 2 + ~found.correct
        counts = torch.bincount(place, minlength=len(classes) * _PLACES * 2)
        for name, each in zip(classes, counts.view(len(classes), _PLACES, 2), strict=True):
            _add_to(self.parts, name, each)

    def kept(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Count how many of each predicted class reach each threshold, and how many err there."""
        found = {}
        for name, counts in self.parts.items():
            if int(counts.sum()):
                above = counts.flip(0).cumsum(0)[:-1]  # from the highest threshold down
                found[name] = (above.sum(1), above[:, 1])
        return found


MISTAKES = 20


class Mistake(NamedTuple):
    """A wrong prediction, most confident first."""

    confidence: float
    file: str
    row: int
    label: str
    predicted: str


def surest(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The 20 most confident ones, in their order."""
    return heapq.nsmallest(MISTAKES, mistakes, key=lambda m: (-m.confidence, m.file, m.row))


def mistakes_of(batch: Batch, known: Sequence[Mistake]) -> list[Mistake]:
    """Mistakes of a batch that may be among the most confident ones, with the known ones."""
    file, found = batch.file, batch.found
    if found.place is not None:  # pixels are no rows that one could look up
        return []
    sure = found.confidence.double()
    least = known[-1].confidence if len(known) == MISTAKES else 0.0
    places = ((sure >= least) & ~found.correct).nonzero().flatten()
    # Of equally sure ones the first, so that the order of batches doesn't matter.
    places = places[sure[places].argsort(descending=True, stable=True)][:MISTAKES]

    def name(code: Tensor | None, place: int) -> str:
        if code is None:
            return ""
        number = int(code[place])
        return file.classes[number] if file.classes else str(number)

    truth = file.truth if isinstance(file, ConfidenceFile) else None
    return [
        Mistake(
            float(sure[at]),
            file_of(file, at),
            int(found.row[at]),
            name(found.label, at) if truth is None else truth[at],
            name(found.predicted, at),
        )
        for at in places.tolist()
    ]


ROWS = 20_000
_ENTRIES = 4_000_000  # that the sample holds at most
_FEWEST = 200


def _with(parts: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Columns with further rows."""
    return [torch.cat(pair) for pair in zip(parts, more, strict=True)] if parts else more


class RowSample:
    """Up to 20,000 rows with the probabilities or logits of all classes, at most 4 million numbers.

    Segmentation masks and files of confidences have none.
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []  # numbers, places, labels, predictions of the sampled rows
        self.are_logits = False
        self.classes: list[str] | None = None

    def add(self, batch: Batch) -> None:
        file = batch.file
        if not isinstance(file, PredictionFile) or file.predictions.ndim != 2:
            return
        size = _size(file.predictions.shape[1])
        # A full sample takes no row whose number is above all of its own.
        full = bool(self.parts) and len(self.parts[0]) == size
        limit = int(self.parts[0].max()) if full else 2**63 - 1
        numbers = batch.numbers
        chosen = (numbers < limit).nonzero().flatten()
        if len(chosen) > size:
            chosen = chosen[numbers[chosen].topk(size, largest=False).indices]
        self.are_logits, self.classes = file.logits is not None, file.classes
        columns = (numbers, batch.places, file.labels, file.predictions)
        self._put([column[chosen] for column in columns])

    def merge(self, other: RowSample) -> None:
        if other.parts:
            self.are_logits, self.classes = other.are_logits, other.classes
            self._put(other.parts)

    def rows(self, name: str) -> PredictionFile | None:
        """The sampled rows in the order of the file; None where there are none."""
        if not self.parts:
            return None
        _, places, labels, predictions = (part[self.parts[1].argsort()] for part in self.parts)
        scores = {"logits" if self.are_logits else "probs": predictions}
        return PredictionFile(name, labels, index=places, classes=self.classes, **scores)  # type: ignore[arg-type]

    def _put(self, parts: list[Tensor]) -> None:
        self.parts = _with(self.parts, parts)
        size = _size(parts[-1].shape[1])
        if len(self.parts[0]) > size:
            kept = self.parts[0].topk(size, largest=False).indices
            self.parts = [part[kept] for part in self.parts]


def _size(classes: int) -> int:
    return max(_FEWEST, min(ROWS, _ENTRIES // classes))


BLOCKS = 500
CELLS = 960  # edges of 15 bins are edges of cells
_IMPOSSIBLE = -1e300


class BlockSums:
    """Histograms of confidence and sums of both scores of each block, 8 MB; parts add up."""

    def __init__(self) -> None:
        self.counts = torch.zeros(BLOCKS * CELLS * 2, dtype=torch.int64)  # wrong and right ones
        self.mass = torch.zeros(CELLS, dtype=torch.float64)
        self.scores = torch.zeros(BLOCKS, 2, dtype=torch.float64)  # likelihood, squared error
        # Checksums of the labels, by the numbers of their classes and by the names.
        self.labels = torch.zeros(2, BLOCKS, dtype=torch.int64)
        self.knows_labels = [True, True]
        self.classes: frozenset[str] | None = frozenset()  # None where they have no names
        self.has_scores = True

    def add(self, batch: Batch) -> None:
        file, found, numbers = batch.file, batch.found, batch.of_entries(batch.numbers)
        block = numbers % BLOCKS
        cell = bin_index(found.confidence, CELLS)
        place = (block * CELLS + cell) * 2 + found.correct
        self.counts += torch.bincount(place, minlength=len(self.counts))
        self.mass += torch.bincount(cell, weights=found.confidence.double(), minlength=CELLS)
        if found.log_likelihood is None or found.squared_error is None:
            self.has_scores = False
        else:
            likelihood = found.log_likelihood.double().clamp(min=_IMPOSSIBLE)
            for column, each in enumerate((likelihood, found.squared_error.double())):
                sums = torch.bincount(block, weights=each, minlength=BLOCKS)
                self.scores[:, column] += sums
        for spelling, codes in enumerate(_label_codes(file, found)):
            if codes is None:
                self.knows_labels[spelling] = False
            else:
                self.labels[spelling].index_add_(0, block, numbers * codes)
        named = isinstance(file, PredictionFile) and file.classes is not None
        self.classes = _union(self.classes, frozenset(file.classes or ()) if named else None)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def merge(self, other: BlockSums) -> None:
        for name in ("counts", "mass", "scores", "labels"):
            getattr(self, name).add_(getattr(other, name))
        self.has_scores = self.has_scores and other.has_scores
        both = zip(self.knows_labels, other.knows_labels, strict=True)
        self.knows_labels = [ours and theirs for ours, theirs in both]
        self.classes = _union(self.classes, other.classes)

    def agrees_with(self, other: BlockSums) -> bool:
        """True if both are totals of the same rows, with the same labels where known.

        Labels are those of the same names where both know the same classes, in whatever order; else
        the same numbers or the same names will do.
        """
        ours, theirs = (each.counts.view(BLOCKS, -1).sum(1) for each in (self, other))
        spellings = (1,) if self.classes and self.classes == other.classes else (0, 1)
        same = [
            torch.equal(self.labels[spelling], other.labels[spelling])
            for spelling in spellings
            if self.knows_labels[spelling] and other.knows_labels[spelling]
        ]
        return torch.equal(ours, theirs) and (not same or any(same))

    def whole(self) -> Tensor:
        """`whole_sums` with blocks as units, (8,)."""
        wrong, right = self.counts.view(BLOCKS, CELLS, 2).double().unbind(2)
        means = self.mass / (wrong + right).sum(0).clamp(min=1)
        both = wrong + right
        count, mass, expected = both.sum(1), both @ means, both @ (means * (1 - means))
        return sums_of_units(count, right.sum(1), mass, expected)[count > 0].sum(0)

    def resample(self, resamples: int, generator: torch.Generator) -> Draws:
        """Every metric of every resample, (R,) each."""
        counts = self.counts.view(BLOCKS, CELLS, 2).double()
        means = self.mass / counts.sum((0, 2)).clamp(min=1)
        upper = (torch.arange(CELLS, dtype=torch.float64) + 1) / CELLS

        def measure(weights: Tensor) -> Draws:
            wrong, right = (weights @ counts.flatten(1)).view(-1, CELLS, 2).unbind(2)
            count = wrong + right
            groups = Groups(count, right, count * means, right * means, upper)
            found = metrics_of_groups(groups, NUM_BINS)
            if self.has_scores:
                likelihood, squares = (weights @ self.scores / count.sum(1, True)).unbind(1)
                found["nll"] = (-likelihood).where(likelihood > _IMPOSSIBLE / 1e30, torch.inf)
                found["brier"] = squares
            return found

        return measure_resamples(measure, BLOCKS, resamples, generator=generator)


def _label_codes(file: AnyPredictions, found: Outcomes) -> tuple[Tensor | None, Tensor | None]:
    """A number for each true class, from the text of its number and from its name.

    A file of confidences holds one of the two as text, which stands for either.
    """
    if isinstance(file, ConfidenceFile):
        if file.truth is None:
            return None, None
        codes = {name: name_code(name) for name in set(file.truth)}
        of_rows = torch.tensor([codes[name] for name in file.truth])
        return of_rows, of_rows
    if found.label is None:
        return None, None
    numbers = [name_code(str(number)) for number in range(file.predictions.shape[1])]
    by_number = torch.tensor(numbers)[found.label]
    if file.classes is None:
        return by_number, None
    return by_number, torch.tensor([name_code(name) for name in file.classes])[found.label]


def _union(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    return None if first is None or second is None else first | second


IMAGES = 20_000
MAPS = 1_000  # whose pixels fill thousands of cells each
_FOR_CURVE = 200_000  # entries; bounds of a curve are looked up at many risks


class ImageSample:
    """Predictions of up to 20,000 images, or of 1,000 masks; all of them where not limited."""

    def __init__(self, *, is_limited: bool = True, by_class: bool = False) -> None:
        self.is_limited, self.by_class = is_limited, by_class
        # Of each entry: number of its image, confidence, whether wrong, how many, place of class.
        self.parts: list[Tensor] = []
        self.classes: list[str] = []
        self.limit: int | None = None  # the largest number that is kept, once some are left out
        self.pixels = 0  # of a label map

    def add(self, batch: Batch) -> None:
        file, found, numbers = batch.file, batch.found, batch.numbers
        predicted = found.predicted
        if predicted is None:
            predicted = torch.zeros(len(found.confidence), dtype=torch.int64)
        wrong = ~found.correct
        if found.place is not None:
            self.pixels = max(self.pixels, int(file.labels[0].numel()))  # type: ignore[union-attr]
            entries = _cells(found, wrong, predicted * self.by_class, numbers)
        else:
            confidence = found.confidence.double()
            entries = [numbers, confidence, wrong, torch.ones_like(numbers), predicted]
        self._put_named(entries, batch.classes)

    def add_counts(self, confidence: Tensor, counts: Tensor, wrong: Tensor) -> None:
        """Add images of which predictions were counted at confidences (B,), (U, B) each."""
        images = torch.arange(len(counts))[:, None].expand_as(counts)
        self.pixels = max(self.pixels, int(counts.sum(1).max()))
        for kind, number in ((True, wrong), (False, counts - wrong)):
            seen = number > 0
            size = number[seen].round().long()
            is_wrong = torch.full_like(size, kind, dtype=torch.bool)
            values = confidence.expand_as(counts)[seen].double()
            self._put([images[seen], values, is_wrong, size, torch.zeros_like(size)])

    def merge(self, other: ImageSample) -> None:
        self.pixels = max(self.pixels, other.pixels)
        if other.limit is not None:
            self.limit = min(other.limit, self.limit or other.limit)
        if other.parts:
            self._put_named(other.parts, other.classes)

    @property
    def is_whole(self) -> bool:
        """True if every image is in the sample."""
        return self.limit is None

    @property
    def size(self) -> int:
        """Number of images in it."""
        return len(self.parts[0].unique()) if self.parts else 0

    @property
    def images(self) -> int:
        """Number of images of all rows; told from how dense the smallest numbers lie if limited."""
        if self.limit is None:
            return self.size
        return round((self.size - 1) * (2**63 / int(self.parts[0].max())))

    @property
    def is_clustered(self) -> bool:
        """True if an image has several predictions."""
        return bool(self.parts) and int(self.parts[3].sum()) > self.size

    def steps(self, predicted: int | None = None) -> tuple[ImageSteps, int]:
        """Count accepted predictions at falling thresholds, of one class where named; and all."""
        entries = self.parts
        if predicted is not None:
            entries = [part[self.parts[4] == predicted] for part in self.parts]
        image, confidence, wrong, count, _ = entries
        grid = torch.tensor(THRESHOLDS, dtype=torch.float64)
        return image_steps(image, confidence, wrong, grid, count), int(count.sum())

    def bounds(self, thresholds: Tensor, level: float, most: int) -> Tensor:
        """Bounds on the error at ascending thresholds, each chosen beforehand, (T,)."""
        image, confidence, wrong, count, _ = self.parts
        if len(image) > _FOR_CURVE:
            chosen = image <= image.sort().values[_FOR_CURVE]
            image, confidence, wrong, count = (part[chosen] for part in self.parts[:4])
        steps = image_steps(image, confidence, wrong, thresholds.flip(0), count)
        return evidence_bounds(steps, len(thresholds), level, self.most(most)).flip(0)

    def most(self, most_per_image: int) -> int:
        """Largest number of accepted predictions that count per image: all pixels of a mask."""
        return self.pixels or most_per_image

    def _put_named(self, entries: list[Tensor], names: Sequence[str]) -> None:
        """Add entries whose classes have places among these names."""
        known = set(self.classes)
        self.classes += [name for name in names if name not in known]
        places = {name: place for place, name in enumerate(self.classes)}
        *others, predicted = entries
        codes = torch.tensor([places[name] for name in names])
        self._put([*others, codes[predicted] if names else predicted])

    def _put(self, parts: list[Tensor]) -> None:
        parts = _with(self.parts, parts)
        if self.limit is not None:
            parts = [part[parts[0] <= self.limit] for part in parts]
        most = MAPS if self.pixels else IMAGES
        is_full = self.is_limited and len(parts[0]) > most
        numbers = parts[0].unique() if is_full else parts[0]
        if is_full and len(numbers) > most:
            self.limit = int(numbers[most - 1])
            parts = [part[parts[0] <= self.limit] for part in parts]
        self.parts = parts


def _cells(found: Outcomes, wrong: Tensor, predicted: Tensor, numbers: Tensor) -> list[Tensor]:
    """Pixels of each map, counted by class and by the largest threshold that they reach."""
    assert found.place is not None
    grid = torch.tensor(THRESHOLDS, dtype=torch.float64).flip(0)
    reached = torch.searchsorted(grid, found.confidence.double(), right=True) - 1
    classes = int(predicted.max()) + 1
    key = ((found.place * classes + predicted) * len(grid) + reached) * 2 + wrong
    key, count = key.unique(return_counts=True)
    rest, is_wrong = key // 2, key % 2 == 1
    rest, reached = rest // len(grid), rest % len(grid)
    return [numbers[rest // classes], grid[reached], is_wrong, count, rest % classes]


class DetectionSums:
    """Detections, matched ones and summed confidence of each cell that occurs in a block.

    At most 500 blocks of 20 and of 3,125 cells: 50 MB where every one is filled.
    """

    def __init__(self) -> None:
        self.parts: dict[str, tuple[Tensor, Tensor]] = {}  # block and cell as one number; sums

    def add(self, batch: Batch) -> None:
        file, found = batch.file, batch.found
        if not isinstance(file, ConfidenceFile) or file.boxes is None:
            return
        for name, kind in KINDS.items():
            places = file.boxes if kind.by_place else None
            cell, rows = detection_cells(found.confidence, found.correct, places, kind.sizes)
            self._put(name, cell * BLOCKS + batch.numbers % BLOCKS, rows)

    def merge(self, other: DetectionSums) -> None:
        for name, part in other.parts.items():
            self._put(name, *part)

    def errors(self, resamples: int) -> dict[str, Any]:
        """`d_ece` and `d_ece_by_place` with their intervals; those that are not known left out."""
        found: dict[str, Any] = {}
        for name, (keys, sums) in self.parts.items():
            found |= errors_of_cells(name, keys // BLOCKS, keys % BLOCKS, sums, BLOCKS, resamples)
        return {name: value for name, value in found.items() if value is not None}

    def _put(self, name: str, keys: Tensor, rows: Tensor) -> None:
        keys, rows = _with([*self.parts.get(name, ())], [keys, rows])
        keys, place = keys.unique(return_inverse=True)
        self.parts[name] = (keys, rows.new_zeros(len(keys), 3).index_add_(0, place, rows))


class Wanted(NamedTuple):
    """Totals that are accumulated on request, because they take time."""

    sample: bool = False  # of the rows, for what can't be accumulated
    per_class: bool = False  # counts for a threshold of each class
    blocks: bool = False  # of rows, for a comparison with another model
    all_images: bool = False  # whose rows are known, instead of a sample of them
    rows: bool = False  # keep the outcomes of the one batch, for exact numbers


NOTHING_MORE = Wanted()


class Tallies:
    """Totals over predictions; constant in size, but for the names of classes and groups."""

    def __init__(self, wanted: Wanted = NOTHING_MORE) -> None:
        self.wanted = wanted
        self.rows: Outcomes | None = None
        self.sample, self.class_counts = RowSample(), ClassCounts()
        self.blocks = BlockSums() if wanted.blocks else None
        self.images = ImageSample(is_limited=not wanted.all_images, by_class=wanted.per_class)
        self.detections = DetectionSums()
        self.batches = 0  # among which the rows of an image may be divided
        self.cells = cells_per_unit(NUM_BINS)
        self.sums = empty_sums(self.cells)
        self.slack = 0.0  # share by which a confidence exceeds an edge and still is the edge
        self.overall = torch.zeros(8, dtype=torch.float64)
        self.squared = torch.zeros(2, dtype=torch.float64)  # squared errors, and their squares
        self.by_class, self.by_group = NamedSums("class"), NamedSums("group")
        self.by_time = TimeSums()
        self.mistakes: list[Mistake] = []
        self.has_scores = True  # whether likelihood and squared error are known of all
        self.num_classes: int | None = None
        self.zeros = 0  # labels of probability 0
        self.skipped: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return int(self.overall[0])

    def add(self, file: AnyPredictions, number: int = 0) -> None:
        """Add the file with this `number` of its model, or a shard of it."""
        if file.strange is not None and not self.wanted.rows:
            raise PredictionFileError(
                f"{file.name}: has 'in_distribution', whose scores are ranked in memory, and is "
                "read as running totals: leave --workers and --ray out, or audit a sample of it"
            )
        batch = Batch(file, number)
        found = batch.found
        self.rows = found if self.wanted.rows else None
        self.skipped.update(file.skipped)
        if not len(found.confidence):
            return
        add_samples(self.sums, found.samples(), self.cells)
        self.slack = max(self.slack, edge_slack(found.confidence.dtype))
        if found.log_likelihood is None or found.squared_error is None:
            self.has_scores = False
        else:
            errors = found.squared_error.double()
            self.squared += torch.stack([errors.sum(), errors.dot(errors)])
            self.zeros += int(found.log_likelihood.isneginf().sum())
        self.batches += 1
        self.overall += whole_sums(found.confidence, found.correct, found.unit)
        if isinstance(file, PredictionFile):
            self._agree(file.predictions.shape[1])
        for each in self._fed_by(batch):
            each.add(batch)
        self.mistakes = surest(self.mistakes + mistakes_of(batch, self.mistakes))

    def merge(self, other: Tallies) -> Tallies:
        """Add what another has accumulated; this one, for chaining."""
        self._agree(other.num_classes)
        for name in ("sums", "overall", "squared", "batches", "zeros", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slack = max(self.slack, other.slack)
        self.mistakes = surest(self.mistakes + other.mistakes)
        self.has_scores = self.has_scores and other.has_scores
        if other.blocks is not None:
            self.blocks = self.blocks or BlockSums()
            self.blocks.merge(other.blocks)
        for name in ("by_class", "by_group", "by_time", "detections", "sample", "images"):
            getattr(self, name).merge(getattr(other, name))
        self.class_counts.merge(other.class_counts)
        return self

    def _fed_by(self, batch: Batch) -> list[Any]:
        """The accumulators that a batch is for.

        Blocks are kept without being wanted where rows belong to images, for honest intervals.
        """
        file, wanted = batch.file, self.wanted
        by_image = batch.found.place is not None
        by_image |= isinstance(file, ConfidenceFile) and file.images is not None
        if by_image:
            self.blocks = self.blocks or BlockSums()
        asked = (
            (self.class_counts, wanted.per_class),
            (self.images, by_image),
            (self.sample, wanted.sample),
            (self.blocks, self.blocks is not None),
        )
        always = (self.by_class, self.by_group, self.by_time, self.detections)
        return [*always, *(each for each, is_fed in asked if is_fed)]

    @property
    def is_clustered(self) -> bool:
        """True if images have several predictions, and blocks hold all of them."""
        in_blocks = self.blocks is not None and self.blocks.count == self.count
        return in_blocks and self.images.is_clustered and self.images.size > 1

    def whole(self) -> Tensor:
        """Sums of everything as one part, (8,): over images, or where several batches may hold
        the rows of one, over blocks of images.
        """
        if self.batches > 1 and self.is_clustered and self.blocks is not None:
            return self.blocks.whole()
        return self.overall

    def groups(self) -> Groups:
        """Predictions by confidence, in fine cells."""
        return groups_of_sums(self.sums, self.cells)

    def lowest(self) -> Tensor:
        """The smallest confidence that falls into each fine cell, and one above all; ascending."""
        return cell_edges(self.cells, self.sums.device) / (1 - self.slack)

    def lowest_of_groups(self) -> Tensor:
        """The smallest confidence that falls into the cell of each of `groups`."""
        wrong, right = counts_of_sums(self.sums)
        return self.lowest()[:-1][wrong + right > 0]

    def measure(self) -> dict[str, float]:
        """Every metric that the sums give."""
        found = {k: float(v) for k, v in metrics_of_groups(self.groups(), NUM_BINS).items()}
        if self.has_scores:
            found["nll"] = -float(self.sums[-1, 0]) / self.count
            found["brier"] = float(self.squared[0]) / self.count
        return found

    def intervals(self, resamples: int, generator: torch.Generator) -> dict[str, Any]:
        """`<metric>_interval` of each, from histograms drawn anew.

        As if rows were independent; where several are of one image, by blocks of images.
        """
        if self.is_clustered and self.blocks is not None:
            draws = self.blocks.resample(resamples, generator)
            images = self.images.images
            return dict(intervals_of(self.measure(), draws, units=images, one_each=False))
        groups, values = self.groups(), self.measure()
        parts = resample_groups(groups, resamples, generator)
        drawn = [metrics_of_groups(part, NUM_BINS) for part in parts]
        joined = {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]}
        found: dict[str, Any] = dict(intervals_of(values, joined, units=self.count))
        if self.has_scores:
            for name, (total, square) in (("nll", self.sums[-1]), ("brier", self.squared)):
                found[f"{name}_interval"] = normal_interval(
                    abs(float(total)), float(square), self.count
                )
        return found

    def _agree(self, num_classes: int | None) -> None:
        if None not in (self.num_classes, num_classes) and self.num_classes != num_classes:
            raise PredictionFileError(
                f"some predictions have {self.num_classes} classes, others {num_classes}: parts of "
                "one model have the same"
            )
        self.num_classes = num_classes if num_classes is not None else self.num_classes


class Model(NamedTuple):
    """A model that is audited: its totals, and its rows where they are in memory."""

    name: str
    tallies: Tallies
    file: AnyPredictions | None = None


def model_in_memory(file: AnyPredictions, *, per_class: bool = False) -> Model:
    """A file as one batch, of which the outcomes are kept for exact numbers."""
    tallies = Tallies(Wanted(per_class=per_class, all_images=True, rows=True))
    tallies.add(file)
    return Model(file.name, tallies, file)


def tallies_of_histogram(
    where: str, counts: Tensor, correct: Tensor, confidence: Tensor
) -> Tallies:
    """Tallies of counts, right ones and summed confidences, (B,) or (U, B) each."""
    counts, correct, confidence = (torch.atleast_2d(each) for each in (counts, correct, confidence))
    _check_histogram(where, counts, correct, confidence)
    found = Tallies()
    found.has_scores, found.slack = False, edge_slack(torch.float32)
    total, hits, mass = (each.sum(0) for each in (counts, correct, confidence))
    filled = total > 0
    total, hits, mass = total[filled], hits[filled], mass[filled]
    mean = (mass / total).clamp(0, 1)
    place = 2 * cell_index(mean, found.cells, dtype=torch.float32)
    for offset, count in ((0, total - hits), (1, hits)):
        found.sums.index_add_(0, place + offset, torch.stack([count, count * mean], 1))
    if len(counts) > 1:  # a bin counts as a whole where its mean confidence falls
        overall_mean = confidence.sum(0) / counts.sum(0).clamp(min=1)
        found.images.add_counts(overall_mean.clamp(0, 1), counts, counts - correct)
    # Over images, whose bins lie in rows; of one image alone no interval can be told.
    seen = counts.sum(1) > 0
    counts, correct, confidence = counts[seen], correct[seen], confidence[seen]
    expected = (confidence - confidence**2 / counts.clamp(min=1)).sum(1)
    units = sums_of_units(counts.sum(1), correct.sum(1), confidence.sum(1), expected)
    found.overall += units.sum(0)
    return found


_MOST_COUNTED = 2**53  # of whole numbers that double precision tells apart


def _check_histogram(where: str, counts: Tensor, correct: Tensor, confidence: Tensor) -> None:
    if not counts.shape == correct.shape == confidence.shape or counts.ndim != 2:
        shapes = ", ".join(str(tuple(each.shape)) for each in (counts, correct, confidence))
        raise PredictionFileError(
            f"{where}: 'counts', 'correct' and 'confidence' of a histogram must be (B,) or (U, B) "
            f"of one shape, got {shapes}"
        )
    slack = 1e-6 * counts + 1e-6
    bad = (correct < 0) | (correct > counts) | (confidence < 0) | (confidence > counts + slack)
    if bool((bad | confidence.isnan()).any()):
        row, column = (bad | confidence.isnan()).nonzero()[0].tolist()
        raise PredictionFileError(
            f"{where}, row {row}, bin {column}: 'correct' must not exceed 'counts', nor "
            "'confidence', the sum over the bin"
        )
    total = float(counts.sum())
    if not 0 < total <= _MOST_COUNTED:
        found = f"{total:.3g} predictions, more than can be counted" if total else "no prediction"
        raise PredictionFileError(f"{where}: holds {found}")
