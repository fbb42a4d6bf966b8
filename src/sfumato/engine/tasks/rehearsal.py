"""How long a run will take, from a few steps and a few predictions of it on this machine.

Every part of a run is timed by its own code on a few samples and scaled to all of them, so that
what a task does more of later is in the estimate without a word here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from sfumato._core.import_path import searching
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    DetectionDataset,
    TensorLoader,
    load_detection_data,
)
from sfumato.engine.config.components import build_augmentation, build_model
from sfumato.engine.config.run_config import RunConfig, training_content
from sfumato.engine.config.sections import content_hash, parse
from sfumato.engine.evaluation.cost import (
    EvaluationCost,
    evaluation_cost,
    seconds_per_pass,
    timed,
)
from sfumato.engine.evaluation.detection_scores import detection_metrics
from sfumato.engine.evaluation.other_sets import load_other
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.progress import Bar
from sfumato.engine.runs.splits import image_statistics, load_splits
from sfumato.engine.tasks import classify, detect, segment
from sfumato.engine.tasks.classify import Loaders
from sfumato.engine.tasks.reading import Reading, decoded_sample, reading_of
from sfumato.engine.training.loop import Trainer

Loaded = TypeVar("Loaded")
_BATCH_FROM_FILES = 8


@dataclass(frozen=True)
class Costs:
    """Seconds of a run by what they are spent on.

    Args:
        start: what comes before the first epoch: data, network, for a detector its classifier.
        epoch: one epoch with its validation.
        evaluation: predicting and measuring after the last epoch.
        reading: how the run comes to its images.
    """

    start: float
    epoch: float
    evaluation: float
    reading: Reading | None = None


@dataclass
class Rehearsal:
    """Rehearses run after run; what several have in common is loaded and measured once."""

    _data: dict[str, tuple[Any, float]] = field(default_factory=dict)
    _evaluations: dict[str, EvaluationCost] = field(default_factory=dict)

    def costs(self, config: RunConfig) -> Costs:
        """What a run costs on one device; nothing is left on disk."""
        tasks = {"classify": self._classify, "segment": self._segment, "detect": self._detect}
        with searching(config.modules), tempfile.TemporaryDirectory() as nowhere:
            directory = RunDirectory(Path(nowhere) / "run")
            directory.begin(config.model_dump(mode="json"), training_content(config))
            fabric = Fabric(
                accelerator=config.train.accelerator, devices=1, precision=config.train.precision
            )
            return tasks[config.task](fabric, config, directory)

    def _classify(self, fabric: Fabric, config: RunConfig, directory: RunDirectory) -> Costs:
        data, start = self._loaded(load_splits, config.data)
        began = time.perf_counter()
        loaders = Loaders(config, fabric, *image_statistics(config, data.train))
        few = _few(data, config)
        reading = reading_of(_training_loader(loaders, data.train), len(data.validation))
        if reading.workers:
            config, few = _from_files(fabric, config, data)
            loaders = replace(loaders, config=config)
        trainer = classify.build_trainer(fabric, config, few, loaders, directory, False)
        start += time.perf_counter() - began
        epoch = _epoch(trainer, len(data.validation), len(data.train) / len(few.train))
        epoch = _beside(fabric, epoch, reading.seconds)
        each = seconds_per_pass(fabric, config, trainer.model, loaders, directory, few.test)
        if members := config.predict.ensemble:
            epoch, each = 0.0, each * len(members)
        loaded = {
            title: self._loaded(lambda each: load_other(each["test"], data.train), content)
            for title, content in _others(config).items()
        }
        start += sum(seconds for _, seconds in loaded.values())
        name = content_hash(config.model_dump(include={"data", "evaluate", "predict"}))
        if name not in self._evaluations:
            others = {title: found for title, (found, _) in loaded.items()}
            found = evaluation_cost(fabric, config, data, loaders, directory, others)
            self._evaluations[name] = found
        return Costs(start, epoch, self._evaluations[name].seconds(each), reading)

    def _segment(self, fabric: Fabric, config: RunConfig, directory: RunDirectory) -> Costs:
        data, start = self._loaded(load_splits, config.data)
        began = time.perf_counter()
        loaders = Loaders(config, fabric, *image_statistics(config, data.train))
        few = _few(data, config)
        trainer = segment.build_trainer(fabric, config, few, loaders, directory, False)
        start += time.perf_counter() - began
        epoch = _epoch(trainer, len(data.validation))
        evaluator = segment.build_evaluator(fabric, config, trainer.model, loaders, False)
        each = timed(lambda: evaluator.sums("test", few.test)) / len(few.test)
        whole = timed(
            lambda: segment.evaluate(fabric, config, directory, few, trainer.model, loaders, False)
        )
        predicted = len(few.validation) + len(few.test)
        fixed = max(0.0, whole - each * predicted)  # intervals, maps: as much for many frames
        return Costs(start, epoch, fixed + each * (len(data.validation) + len(data.test)))

    def _detect(self, fabric: Fabric, config: RunConfig, directory: RunDirectory) -> Costs:
        data, start = self._loaded(load_detection_data, config.data)
        began = time.perf_counter()
        if isinstance(config.classifier, str):
            detector = detect.detector_from(
                config.classifier, num_classes=len(data.classes), model=config.model
            )
            start += time.perf_counter() - began
        else:
            recipe = parse(RunConfig, config.classifier, "classifier")
            first = self.costs(recipe)
            start += first.start + first.epoch * recipe.train.epochs + first.evaluation
            images, _ = self._loaded(load_splits, recipe.data)
            detector = detect.build_detector(
                build_model(recipe.model, images.train),
                *image_statistics(recipe, images.train),
                len(data.classes),
                config.model,
            )
        trainer = detect.build_trainer(fabric, config, data.train, detector, directory, False)
        epoch = _epoch(trainer, 0)

        def evaluate(part: DetectionDataset) -> None:
            detection_metrics(part, detect.detect(detector, part, fabric.device))

        fixed = timed(lambda: evaluate(_first_detections(data.test, 1)))
        few = _first_detections(data.test, config.train.batch_size)
        each = timed(lambda: evaluate(few)) / len(few)
        return Costs(start, epoch, fixed + each * (len(data.validation) + len(data.test)))

    def _loaded(self, load: Callable[[Any], Loaded], spec: Any) -> tuple[Loaded, float]:
        """The data of a spec, and how long it took to load."""
        name = content_hash(spec)
        if name not in self._data:
            began = time.perf_counter()
            data = load(spec)
            self._data[name] = data, time.perf_counter() - began
        return self._data[name]


def _others(config: RunConfig) -> dict[str, dict[str, Any]]:
    """What decides how each further test set looks: itself, and the classes that are trained."""
    sets = config.evaluate.also
    return {title: {"train": config.data, "test": spec} for title, spec in sets.items()}


def _training_loader(loaders: Loaders, train: ArrayDataset) -> TensorLoader:
    return loaders.training(train, build_augmentation(loaders.config.augment))


def _from_files(
    fabric: Fabric, config: RunConfig, data: DataSplits
) -> tuple[RunConfig, DataSplits]:
    """A few decoded images of each part, and on a processor a small batch.

    Large images make large steps, of which a plan can't wait for many.
    """
    batch = config.train.batch_size
    if fabric.device.type == "cpu":
        batch = min(batch, _BATCH_FROM_FILES)
    train = config.train.model_copy(update={"batch_size": batch})
    parts = (data.train, data.validation, data.test)
    counts = (2 * batch, batch, batch)
    few = [decoded_sample(part, count) for part, count in zip(parts, counts, strict=True)]
    return config.model_copy(update={"train": train}), DataSplits(*few)


def _beside(fabric: Fabric, network: float, reading: float) -> float:
    """Seconds of both: an accelerator works while files are decoded, a processor does both."""
    return network + reading if fabric.device.type == "cpu" else max(network, reading)


def _epoch(trainer: Trainer, validation: int, share: float = 1.0) -> float:
    """Training steps and, where there is one, validation, from a few batches of each.

    `share` is how many times the trainer's images an epoch has.
    """
    if trainer.config.epochs == 0:
        trainer.fit()
        return 0.0
    loader = trainer.validation_loader
    steps = trainer.seconds_per_epoch(_steps(trainer)) * share
    if loader is None:
        return steps

    def validate() -> None:
        trainer.measure(trainer.model, loader, trainer.fabric, Bar())

    validate()  # the first pass of a network in evaluation mode takes longer
    return steps + timed(validate) / len(loader.dataset) * validation


def _steps(trainer: Trainer) -> int:
    """Three, and more where batches are of many lengths and three would say little."""
    dataset = getattr(trainer.train_loader, "dataset", None)
    varied = isinstance(dataset, ArrayDataset) and dataset.lengths is not None
    return min(20, len(trainer.train_loader)) if varied else 3


def _few(data: DataSplits, config: RunConfig) -> DataSplits:
    """The same training set, and of the others a batch, or less where each image has many masks."""
    size = config.train.batch_size
    count = max(2, min(size, 4 * size // (config.predict.mc_dropout or 1)))
    validation, test = _spread(data.validation, count), _spread(data.test, count)
    return replace(data, validation=validation, test=test)


def _spread(dataset: ArrayDataset, count: int) -> ArrayDataset:
    """`count` samples from all over the set: the first texts of a set are its shortest."""
    places = torch.linspace(0, len(dataset) - 1, min(count, len(dataset)))
    return dataset.subset(places.round().long())


def _first_detections(dataset: DetectionDataset, count: int) -> DetectionDataset:
    parts = {name: getattr(dataset, name)[:count] for name in ("images", "objects", "scales")}
    return replace(dataset, **parts)
