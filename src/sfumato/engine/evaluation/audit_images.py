"""Whole images of files of any size, for what is promised over images: thresholds and bounds.

The images with the smallest numbers (`audit_sample.py`) are kept with all their predictions, so
that the samples of parts merge into that of the whole, in any order and wherever the rows of an
image stand. Pixels are kept as counts between two thresholds, which is all that a threshold needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_outcomes import Outcomes
from sfumato.engine.runs.prediction_rows import AnyPredictions
from sfumato.predictions.image_evidence import ImageSteps, evidence_bounds, image_steps
from sfumato.predictions.risk_threshold import THRESHOLDS

IMAGES = 20_000
MAPS = 1_000  # whose pixels fill thousands of cells each
_FOR_CURVE = 200_000  # entries; bounds of a curve are looked up at many risks
_LARGEST = 2**63


class ImageSample:
    """Predictions of up to 20,000 images, or of 1,000 label maps; all of them where not limited.

    Args:
        is_limited: False keeps every image.
        by_class: keep pixels apart by predicted class.
    """

    def __init__(self, *, is_limited: bool = True, by_class: bool = False) -> None:
        self.is_limited, self.by_class = is_limited, by_class
        # Of each entry: number of its image, confidence, whether wrong, how many, place of class.
        self.parts: list[Tensor] = []
        self.classes: list[str] = []
        self.limit: int | None = None  # the largest number that is kept, once some are left out
        self.pixels = 0  # of a label map

    def add(
        self, file: AnyPredictions, found: Outcomes, numbers: Tensor, classes: Sequence[str]
    ) -> None:
        """Add predictions whose rows have these numbers."""
        predicted = torch.zeros(len(found.confidence), dtype=torch.int64)
        if found.predicted is not None:
            predicted = found.predicted
        wrong = ~found.correct
        if found.place is not None:
            self.pixels = max(self.pixels, int(file.labels[0].numel()))  # type: ignore[union-attr]
            entries = _cells(found, wrong, predicted * self.by_class, numbers)
        else:
            confidence = found.confidence.double()
            entries = [numbers, confidence, wrong, torch.ones_like(numbers), predicted]
        entries[4] = self._codes(classes)[entries[4]] if classes else entries[4]
        self._put(entries)

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
        """Add the images of other rows."""
        self.pixels = max(self.pixels, other.pixels)
        if other.limit is not None:
            self.limit = min(other.limit, self.limit or other.limit)
        if other.parts:
            codes = self._codes(other.classes) if other.classes else None
            *entries, predicted = other.parts
            self._put([*entries, predicted if codes is None else codes[predicted]])

    @property
    def is_whole(self) -> bool:
        """Whether every image is in it."""
        return self.limit is None

    @property
    def size(self) -> int:
        """Number of images in it."""
        return len(self.parts[0].unique()) if self.parts else 0

    @property
    def total(self) -> int:
        """Number of predictions in it."""
        return int(self.parts[3].sum()) if self.parts else 0

    @property
    def images(self) -> int:
        """Number of images of all rows; told from how dense the smallest numbers lie if limited."""
        size = self.size
        if self.limit is None:
            return size
        return round((size - 1) * (_LARGEST / int(self.parts[0].max())))

    @property
    def is_clustered(self) -> bool:
        """Whether an image has several predictions."""
        return self.total > self.size

    def steps(self, predicted: int | None = None) -> tuple[ImageSteps, int]:
        """What is accepted while the threshold falls, of one class where named; and of how many."""
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
        """As how many accepted predictions an image counts at most: all pixels of a label map."""
        return self.pixels or most_per_image

    def _codes(self, names: Sequence[str]) -> Tensor:
        """Places of these classes among those of the sample."""
        places = {name: place for place, name in enumerate(self.classes)}
        new = [name for name in names if name not in places]
        places |= {name: len(self.classes) + place for place, name in enumerate(new)}
        self.classes += new
        return torch.tensor([places[name] for name in names])

    def _put(self, parts: list[Tensor]) -> None:
        if self.parts:
            parts = [torch.cat(pair) for pair in zip(self.parts, parts, strict=True)]
        if self.limit is not None:
            parts = [part[parts[0] <= self.limit] for part in parts]
        most = MAPS if self.pixels else IMAGES
        if self.is_limited and len(parts[0]) > most:
            numbers = parts[0].unique()
            if len(numbers) > most:
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
