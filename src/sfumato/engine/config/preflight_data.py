"""What a run's data say before anything is trained: whether they hold what it needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from sfumato._core.data_root import DATA_ROOT
from sfumato._core.tokens import UNKNOWN
from sfumato.augment import label_samples
from sfumato.data import ArrayDataset, DataSplits, load_detection_data, single_objects
from sfumato.data.prepare import image_shape
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.components import build_labels
from sfumato.engine.config.first_batch import one_line
from sfumato.engine.config.input_rules import check_input_kind
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import content_hash
from sfumato.engine.evaluation.attacked import check_bands
from sfumato.engine.evaluation.context import objectness_of
from sfumato.engine.evaluation.other_sets import load_other
from sfumato.engine.evaluation.pixels import smooth_streams
from sfumato.engine.evaluation.stored_sets import open_stored
from sfumato.engine.runs.splits import image_statistics, load_splits

_BATCH, _EVALUATED = 4, 64


class SeenData(NamedTuple):
    """What a network takes from its data, and a few samples where it labels images or pixels."""

    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    vocabulary: Vocabulary | None = None
    train: ArrayDataset | None = None
    test: ArrayDataset | None = None

    def blank(self, rows: int) -> torch.Tensor:
        """Black images, or texts of full length that are all unknown words."""
        if self.vocabulary is None:
            return torch.zeros(rows, self.in_channels, *self.image_size)
        return torch.full((rows, self.vocabulary.length), UNKNOWN)


def look_at_data(users: Sequence[RunConfig]) -> SeenData:
    """Load the data that these runs share, and see that each finds in it what it needs.

    Raises:
        FileNotFoundError: it is not there, and where it may be.
        ValueError, TypeError, OSError: it can't be read, or lacks what a run needs.
    """
    try:
        return _look_at(users)
    except FileNotFoundError as error:
        if os.environ.get(DATA_ROOT):
            raise
        raise FileNotFoundError(
            f"{error} (paths begin in {Path.cwd()}; --data ROOT or {DATA_ROOT} says where else)"
        ) from None


def _look_at(users: Sequence[RunConfig]) -> SeenData:
    spec = users[0].data
    if users[0].task == "detect":
        found = load_detection_data(spec)
        return SeenData(len(found.classes), 3, (0, 0))
    data = load_splits(spec)
    for config in users:
        check_input_kind(config, is_text=data.train.vocabulary is not None)
        _check_annotations(config, data)
        _check_count(config, data.test)
    _check_others(users, data.train)
    return SeenData(
        data.train.num_classes,
        *image_shape(data.train),
        data.train.vocabulary,
        _first(data.train, min(_BATCH, users[0].train.batch_size)),
        _first(data.test, _EVALUATED),
    )


def _check_count(config: RunConfig, test: ArrayDataset) -> None:
    """Intervals are made after the training, too late to say that they can't be."""
    if config.task == "classify" and config.evaluate.resamples and len(test) < 2:
        raise ValueError(
            f"evaluate.resamples needs a test set of two images or more, this has {len(test)}: "
            "give more, or say resamples: 0"
        )


def _check_others(users: Sequence[RunConfig], train: ArrayDataset) -> None:
    """Further test sets, each loaded once: whether the networks can be asked about them."""
    sets = {
        content_hash(spec): (name, spec)
        for config in users
        for name, spec in config.evaluate.also.items()
    }
    for name, spec in sets.values():
        with one_line(f"evaluate.also.{name}"):
            load_other(spec, train)


def _first(dataset: ArrayDataset, count: int) -> ArrayDataset:
    return dataset.subset(torch.arange(min(count, len(dataset))))


def _check_annotations(config: RunConfig, data: DataSplits) -> None:
    labels = build_labels(config.labels, num_classes=data.train.num_classes)
    label_samples(labels, data.train, None)
    image_statistics(config, data.train)
    if config.objects is not None:
        single_objects(data.train.subset(torch.arange(1)))
    if config.evaluate.context:
        objectness_of(data.test)
    if config.evaluate.frequency is not None:
        check_bands(config.evaluate.frequency, image_shape(data.test)[1])
    if config.evaluate.stored is not None:
        channels, size = image_shape(data.train)
        with one_line("evaluate.stored"):
            open_stored(config.evaluate, classes=data.train.classes, image=(channels, *size))
    for part in (data.validation, data.test):
        smooth_streams(config.predict.temporal, part)
