"""Everything an audit says of predictions, as sums of a fixed size that add up over parts.

A file is read in batches, each batch is added, and files that different processes have read are
merged: counts are the same in whatever parts the data came, sums agree to rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.confidence_bins import edge_slack
from sfumato.engine.evaluation.audit_blocks import BlockSums
from sfumato.engine.evaluation.audit_class_counts import ClassCounts
from sfumato.engine.evaluation.audit_detections import DetectionSums
from sfumato.engine.evaluation.audit_images import ImageSample
from sfumato.engine.evaluation.audit_mistakes import Mistake, mistakes_of, surest
from sfumato.engine.evaluation.audit_outcomes import Outcomes, outcomes
from sfumato.engine.evaluation.audit_sample import RowSample, row_numbers
from sfumato.engine.evaluation.audit_sums import (
    WIDTH,
    NamedSums,
    TimeSums,
    part_sums,
    whole_sums,
)
from sfumato.engine.runs.prediction_rows import AnyPredictions, ConfidenceFile, PredictionFileError
from sfumato.metrics.confidence_sums import (
    add_samples,
    counts_of_sums,
    empty_sums,
    groups_of_sums,
    resample_groups,
)
from sfumato.metrics.fine_cells import cell_edges, cells_per_unit
from sfumato.metrics.histogram import Groups
from sfumato.metrics.intervals import intervals_of
from sfumato.metrics.resampling import metrics_of_groups

NUM_BINS = 15
_CHUNK = 1_000_000


class Wanted(NamedTuple):
    """What is summed up beside the rest, because it takes time.

    Args:
        sample: a sample of the rows, for what can't be summed up.
        per_class: counts for a threshold of each class.
        blocks: sums over blocks of rows, for a comparison with another model.
        all_images: every image whose rows are known, instead of a sample of them.
    """

    sample: bool = False
    per_class: bool = False
    blocks: bool = False
    all_images: bool = False


NOTHING_MORE = Wanted()


class Tallies:
    """Sums over predictions; constant in size, but for the names of classes and groups.

    Args:
        wanted: what is summed up beside the rest.
    """

    def __init__(self, wanted: Wanted = NOTHING_MORE) -> None:
        self.wanted = wanted
        self.sample, self.class_counts = RowSample(), ClassCounts()
        self.blocks = BlockSums() if wanted.blocks else None
        self.images = ImageSample(is_limited=not wanted.all_images, by_class=wanted.per_class)
        self.detections = DetectionSums()
        self.batches = 0  # among which the rows of an image may be divided
        self.cells = cells_per_unit(NUM_BINS)
        self.sums = empty_sums(self.cells)
        self.slack = 0.0  # share by which a confidence exceeds an edge and still is the edge
        self.overall = torch.zeros(WIDTH, dtype=torch.float64)
        self.squared = torch.zeros(2, dtype=torch.float64)  # squared errors, and their squares
        self.by_class, self.by_group, self.by_time = NamedSums(), NamedSums(), TimeSums()
        self.mistakes: list[Mistake] = []
        self.has_scores = True  # whether likelihood and squared error are known of all
        self.is_dated = False
        self.num_classes: int | None = None
        self.zeros = 0  # labels of probability 0
        self.skipped: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return int(self.overall[0])

    def add(self, file: AnyPredictions, number: int = 0) -> None:
        """Add a file, the one with this `number` of its model, or a part of one."""
        found = outcomes(file)
        self.skipped.update(file.skipped)
        if not len(found.confidence):
            return
        add_samples(self.sums, found.samples(), self.cells)
        self.slack = max(self.slack, edge_slack(found.confidence.dtype))
        self._add_scores(found)
        self.batches += 1
        self.overall += whole_sums(found.confidence, found.correct, found.unit)
        if not isinstance(file, ConfidenceFile):
            self._agree(file.predictions.shape[1])
        classes = _class_names(file, found)
        if found.predicted is not None:
            self.by_class.add(classes, self._parts(found.predicted, len(classes), found))
            if self.wanted.per_class:
                self.class_counts.add(classes, found.predicted, found.confidence, found.correct)
        self._add_by_number(file, found, number, classes)
        if file.groups is not None:
            names = sorted(set(file.groups))
            places = {name: place for place, name in enumerate(names)}
            part = torch.tensor([places[name] for name in file.groups])
            part = part if found.place is None else part[found.place]
            self.by_group.add(names, self._parts(part, len(names), found))
        if file.times is not None:
            times = file.times if found.place is None else file.times[found.place]
            self.by_time.add(times, found.confidence, found.correct, found.unit)
            self.is_dated = file.is_dated
        self.mistakes = surest(self.mistakes + mistakes_of(file, found, self.mistakes))

    def merge(self, other: Tallies) -> Tallies:
        """Add what another has summed up; this one, for chaining."""
        self._agree(other.num_classes)
        self.sums += other.sums
        self.slack = max(self.slack, other.slack)
        self.overall += other.overall
        self.squared += other.squared
        self.by_class.merge(other.by_class)
        self.by_group.merge(other.by_group)
        self.by_time.merge(other.by_time)
        self.mistakes = surest(self.mistakes + other.mistakes)
        self.sample.merge(other.sample)
        self.class_counts.merge(other.class_counts)
        self.images.merge(other.images)
        self.detections.merge(other.detections)
        self.batches += other.batches
        if other.blocks is not None:
            self.blocks = self.blocks or BlockSums()
            self.blocks.merge(other.blocks)
        self.has_scores = self.has_scores and other.has_scores
        self.is_dated = self.is_dated or other.is_dated
        self.zeros += other.zeros
        self.skipped += other.skipped
        return self

    @property
    def is_clustered(self) -> bool:
        """Whether predictions come in images of several, all of them known by blocks."""
        in_blocks = self.blocks is not None and self.blocks.count == self.count
        return in_blocks and self.images.is_clustered and self.images.size > 1

    def whole(self) -> Tensor:
        """Sums of everything as one part, (7,): over images, or where several batches may hold
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
            draws = self.blocks.resample(NUM_BINS, resamples, generator)
            return dict(intervals_of(self.measure(), draws))
        groups, values = self.groups(), self.measure()
        step = max(1, _CHUNK // len(groups.upper))
        drawn = [
            metrics_of_groups(
                resample_groups(groups, min(step, resamples - at), generator), NUM_BINS
            )
            for at in range(0, resamples, step)
        ]
        draws = {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]}
        found: dict[str, Any] = dict(intervals_of(values, draws))
        if self.has_scores:
            for name, (total, square) in (("nll", self.sums[-1]), ("brier", self.squared)):
                found[f"{name}_interval"] = self._normal(abs(float(total)), float(square))
        return found

    def _agree(self, num_classes: int | None) -> None:
        if None not in (self.num_classes, num_classes) and self.num_classes != num_classes:
            raise PredictionFileError(
                f"some predictions have {self.num_classes} classes, others {num_classes}: parts of "
                "one model have the same"
            )
        self.num_classes = num_classes if num_classes is not None else self.num_classes

    def _normal(self, total: float, square: float) -> tuple[float, float]:
        mean = total / self.count
        if not math.isfinite(mean):
            return mean, mean
        error = math.sqrt(max(square / self.count - mean**2, 0.0) / self.count)
        half = NormalDist().inv_cdf(0.975) * error
        return mean - half, mean + half

    def _parts(self, part: Tensor, parts: int, found: Outcomes) -> Tensor:
        return part_sums(part, parts, found.confidence, found.correct, found.unit)

    def _add_by_number(
        self, file: AnyPredictions, found: Outcomes, number: int, classes: Sequence[str]
    ) -> None:
        """To what is kept by the numbers that the places of the rows have.

        Blocks are kept without being wanted where rows belong to images, for honest intervals.
        """
        by_image = isinstance(file, ConfidenceFile) and file.images is not None
        by_image |= found.place is not None
        boxes = file.boxes if isinstance(file, ConfidenceFile) else None
        if not (self.wanted.sample or self.wanted.blocks or by_image or boxes is not None):
            return
        numbers = row_numbers(file, number)
        if by_image:
            self.blocks = self.blocks or BlockSums()
            self.images.add(file, found, numbers, classes)
        if boxes is not None:
            self.detections.add(found, boxes, numbers)
        if self.wanted.sample:
            self.sample.add(file, numbers, number)
        if self.blocks is not None:
            self.blocks.add(file, found, numbers)

    def _add_scores(self, found: Outcomes) -> None:
        if found.log_likelihood is None or found.squared_error is None:
            self.has_scores = False
            return
        errors = found.squared_error.double()
        self.squared += torch.stack([errors.sum(), errors.dot(errors)])
        self.zeros += int(found.log_likelihood.isneginf().sum())


class Summed(NamedTuple):
    """A model that is known by the sums over its predictions."""

    name: str
    tallies: Tallies


def _class_names(file: AnyPredictions, found: Outcomes) -> list[str]:
    """Names of the classes that can be predicted, or their numbers."""
    if found.predicted is None or file.classes is not None:
        return file.classes or []
    if isinstance(file, ConfidenceFile):
        raise ValueError("a file of confidences names the classes that it predicts")
    return [str(number) for number in range(file.predictions.shape[1])]
