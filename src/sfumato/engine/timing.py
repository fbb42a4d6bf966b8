"""Predict how long a run takes, from a few measured steps, predictions and files."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfumato._core.import_path import searching
from sfumato._core.spec import content_hash
from sfumato._core.statistics import spread_evenly
from sfumato._core.text import Bar
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    DetectionDataset,
    TensorLoader,
    load_detection_data,
)
from sfumato.data.files import FileTensor, Picture
from sfumato.data.loader import BATCHES_AHEAD, loading_workers, make_batch
from sfumato.engine.config.build import DataShape, build_augmentation, build_network
from sfumato.engine.config.run_config import RunConfig, training_content
from sfumato.engine.config.sections import EvaluateConfig, parse
from sfumato.engine.evaluation.altered import StoredSets, open_stored
from sfumato.engine.evaluation.context import passes_per_image
from sfumato.engine.evaluation.detection import detection_metrics
from sfumato.engine.evaluation.other_sets import LOADERS
from sfumato.engine.evaluation.pixels import PixelEvaluator
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.tasks import classify, detect, segment
from sfumato.engine.tasks.classify import Setup
from sfumato.engine.training.loop import Trainer
from sfumato.engine.training.predict import predict
from sfumato.engine.training.steps import image_statistics, load_splits

_FILES_MEASURED = 1000
_FILES_DECODED = 32


@dataclass(frozen=True)
class ImageLoading:
    """Loading of a run's training images."""

    images: int
    steps: int
    # Read from files for training and validation; 0 where all is in memory, as `workers` is then.
    bytes_per_epoch: int
    # Bytes of images: of the run in memory, else of each process that decodes.
    memory: int
    workers: int
    seconds: float


def loading_of(loader: TensorLoader, validation: int) -> ImageLoading:
    """Measure how a training loader comes to its images; a few of its files are decoded."""
    train, images = loader.dataset, loader.dataset.images
    count, steps = len(train), len(loader)
    if not isinstance(images, FileTensor):
        return ImageLoading(count, steps, 0, images.nbytes, 0, 0.0)
    workers = max(1, loading_workers())
    # Each process makes one batch while those that it made before wait to be taken.
    memory = (1 + BATCHES_AHEAD) * min(loader.batch_size, count) * images[:1].nbytes
    places = images.positions[spread_evenly(count, _FILES_MEASURED)]
    files = [images.files[int(place)] for place in places]
    sizes = [len(f.content) if isinstance(f, Picture) else f.stat().st_size for f in files]
    read = count + validation
    # What one process takes to read, decode and augment a few images.
    positions = spread_evenly(count, _FILES_DECODED)
    draws = 0 if loader.augment is None else loader.augment.draws
    uniforms = torch.rand(len(positions), draws, generator=torch.Generator().manual_seed(0))
    seconds = timed(lambda: make_batch(train, loader.augment, (positions, uniforms)))
    seconds = seconds / len(positions) * read / workers
    return ImageLoading(
        count, steps, round(sum(sizes) / len(sizes) * read), memory, workers, seconds
    )


def decoded_sample(dataset: ArrayDataset, count: int) -> ArrayDataset:
    """Some samples from all over a set, in memory: the rest of its files stays unread."""
    part = dataset.subset(spread_evenly(len(dataset), count))
    return replace(part, images=part.images[:], labels=part.labels[:])


_FILES = 64
# Of the images that are corrupted for an estimate; the cost of more of them is scaled up.
_CORRUPTED_PIXELS = 6000 * 32 * 32


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def seconds_per_pass(setup: Setup, network: nn.Module, part: ArrayDataset) -> float:
    """Seconds for one image with one dropout mask, predicted in the way of the run."""
    predictor = setup.evaluator(network, part).context.predictor
    loader = setup.evaluation(part)
    predict(predictor, loader, setup.fabric, Bar())  # the first time takes longer
    seconds = timed(lambda: predict(predictor, loader, setup.fabric, Bar()))
    return seconds / (len(part) * passes_per_image(setup.config.predict))


def evaluation_cost(
    setup: Setup, data: DataSplits, others: Mapping[str, ArrayDataset]
) -> tuple[float, float]:
    """Seconds of a run's evaluation without the network, and the passes through it.

    It is made with a network that costs nothing. Of many corrupted images, and of files, a part is
    measured and scaled.
    """
    network = _PassCounter(data.train.num_classes)
    whole = {"validation": data.validation, "test": data.test, **others}
    parts = {
        name: decoded_sample(part, _FILES) if part.is_file_backed else part
        for name, part in whole.items()
    }
    share = sum(map(len, whole.values())) / sum(map(len, parts.values()))
    wanted = setup.config.evaluate

    def evaluate(predicted: Mapping[str, ArrayDataset], changes: Mapping[str, Any]) -> None:
        evaluate = wanted.model_copy(update=changes)
        changed = replace(setup, config=setup.config.model_copy(update={"evaluate": evaluate}))
        evaluator = changed.evaluator(network, parts["validation"])
        if wanted.ood and predicted:
            evaluator.score(None)  # this network has no features
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is said about this network is about none
            for name, part in predicted.items():
                evaluator.add(name, setup.evaluation(part))
            evaluator.finish(parts["test"])

    seconds = timed(lambda: evaluate(parts, _UNALTERED)) * share
    passes = network.passes * share
    image = tuple(data.test.images.shape[1:])
    sets = open_stored(wanted, classes=data.test.classes, image=image)
    for changes, cells, images in (_made(wanted, sets, len(data.test)), _stored(wanted, sets)):
        if not cells:
            continue
        total = min(images, wanted.corrupted_images or images)
        few = min(total, max(4, _CORRUPTED_PIXELS // (cells * image[1] * image[2])))
        few = min(few, len(parts["test"]))
        network.passes = 0
        # What the clean part has kept on disk is not computed again.
        altered = {**changes, "corrupted_images": few}
        seconds += timed(partial(evaluate, {}, altered)) * total / few
        passes += network.passes * total / few
    for is_seen in (wanted.train, wanted.ood and wanted.ood_features is not False):
        passes += len(data.train) * passes_per_image(setup.config.predict) if is_seen else 0
    return seconds, passes


# Of `evaluate`, what leaves test images as they are.
_UNALTERED: dict[str, Any] = {
    "corruptions": [],
    "perturbations": [],
    "attacks": {},
    "frequency": None,
    "stored": None,
}


def _made(wanted: EvaluateConfig, sets: StoredSets, images: int) -> tuple[dict[str, Any], int, int]:
    """Changes of `evaluate` to what is made of test images, its cells and the images of each."""
    stored = {"corruptions": sets.corrupted, "perturbations": sets.perturbed}
    changes: dict[str, Any] = {"stored": None}
    changes |= {key: [] for key, found in stored.items() if found is not None}
    part = wanted.model_copy(update=changes)
    cells = len(part.corruption_names) * len(part.severities) + len(part.perturbation_names)
    cells += len(part.attacks)
    if part.frequency is not None:
        cells += len(part.frequency.frequencies)
    return changes, cells, images


def _stored(wanted: EvaluateConfig, sets: StoredSets) -> tuple[dict[str, Any], int, int]:
    changes, cells, images = {**_UNALTERED, "stored": wanted.stored}, 0, 0
    if (found := sets.corrupted) is not None:
        changes["corruptions"] = wanted.corruptions
        cells, images = len(found.names) * len(wanted.severities), found.count
    if (found := sets.perturbed) is not None:
        changes["perturbations"] = wanted.perturbations
        cells, images = cells + len(found.names), max(images, found.count)
    return changes, cells, images


class _PassCounter(nn.Module):
    """A classifier that costs next to nothing and counts samples, each dropout mask for itself."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(1, num_classes)
        self.passes = 0

    def forward(self, images: Tensor) -> Tensor:
        features = self.dropout(images.flatten(1).mean(1, keepdim=True, dtype=torch.float32))
        # The way back takes about twice as long as the way there.
        self.passes += len(features) * (3 if features.requires_grad else 1)
        logits: Tensor = self.linear(features)
        return logits


Loaded = TypeVar("Loaded")
_BATCH_FROM_FILES = 8


@dataclass(frozen=True)
class Costs:
    """Seconds of a run by what they are spent on."""

    # Before the first epoch: data, network, for a detector its classifier.
    start: float
    epoch: float
    evaluation: float
    reading: ImageLoading | None = None


@dataclass
class Rehearsal:
    """Rehearses run after run; what several have in common is loaded and measured once."""

    _data: dict[str, tuple[Any, float]] = field(default_factory=dict)
    _evaluations: dict[str, tuple[float, float]] = field(default_factory=dict)

    def costs(self, config: RunConfig) -> Costs:
        """Estimate what a run costs on one device; nothing is left on disk."""
        tasks = {"classify": self._classify, "segment": self._segment, "detect": self._detect}
        with searching(config.modules), tempfile.TemporaryDirectory() as nowhere:
            directory = RunDirectory(Path(nowhere) / "run")
            directory.begin(config.model_dump(mode="json"), training_content(config))
            # One device, whatever the run has: the plan divides by their number.
            fabric = Fabric(
                accelerator=config.train.accelerator, devices=1, precision=config.train.precision
            )
            return tasks[config.task](fabric, config, directory)

    def _classify(self, fabric: Fabric, config: RunConfig, directory: RunDirectory) -> Costs:
        data, start = self._loaded(load_splits, config.data)
        began = time.perf_counter()
        setup, few = classify.set_up(fabric, config, directory, data), _few(data, config)
        loader = setup.training(data.train, build_augmentation(config.augment))
        reading = loading_of(loader, len(data.validation))
        if reading.workers:
            config, few = _from_files(fabric, config, data)
            setup = replace(setup, config=config)
        trainer = classify.build_trainer(setup, few)
        start += time.perf_counter() - began
        epoch = _epoch(trainer, len(data.validation), len(data.train) / len(few.train))
        # An accelerator works while files are decoded, a processor does both.
        is_cpu = fabric.device.type == "cpu"
        epoch = epoch + reading.seconds if is_cpu else max(epoch, reading.seconds)
        each = seconds_per_pass(setup, trainer.model, few.test)
        # An ensemble trains nothing, and predicts with every member.
        if members := config.predict.ensemble:
            epoch, each = 0.0, each * len(members)
        # What decides how a further test set looks: itself, and the classes that are trained.
        loaded = {
            title: self._loaded(
                lambda each: LOADERS[each["as"]](each["test"], data.train),
                {"train": config.data, "test": spec, "as": key},
            )
            for key in LOADERS
            for title, spec in getattr(config.evaluate, key).items()
        }
        start += sum(seconds for _, seconds in loaded.values())
        # Methods that differ in their training cost the same to evaluate.
        name = content_hash(config.model_dump(include={"data", "evaluate", "predict"}))
        if name not in self._evaluations:
            others = {title: found for title, (found, _) in loaded.items()}
            self._evaluations[name] = evaluation_cost(setup, data, others)
        without_network, passes = self._evaluations[name]
        return Costs(start, epoch, without_network + passes * each, reading)

    def _segment(self, fabric: Fabric, config: RunConfig, directory: RunDirectory) -> Costs:
        data, start = self._loaded(load_splits, config.data)
        began = time.perf_counter()
        setup, few = classify.set_up(fabric, config, directory, data), _few(data, config)
        trainer = classify.build_trainer(setup, few)
        start += time.perf_counter() - began
        epoch = _epoch(trainer, len(data.validation))
        evaluator = PixelEvaluator(setup.context(trainer.model))
        each = timed(lambda: evaluator.sums("test", few.test)) / len(few.test)
        whole = timed(lambda: segment.evaluate(setup, few, trainer.model))
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
                build_network(recipe.model, DataShape.of(images.train)),
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
        name = content_hash(spec)
        if name not in self._data:
            began = time.perf_counter()
            data = load(spec)
            self._data[name] = data, time.perf_counter() - began
        return self._data[name]


def _from_files(
    fabric: Fabric, config: RunConfig, data: DataSplits
) -> tuple[RunConfig, DataSplits]:
    """A few decoded images of each part, and a small batch where large ones make slow steps."""
    batch = config.train.batch_size
    if fabric.device.type == "cpu":
        batch = min(batch, _BATCH_FROM_FILES)
    train = config.train.model_copy(update={"batch_size": batch})
    few = DataSplits(
        decoded_sample(data.train, 2 * batch),
        decoded_sample(data.validation, batch),
        decoded_sample(data.test, batch),
    )
    return config.model_copy(update={"train": train}), few


def _epoch(trainer: Trainer, validation: int, share: float = 1.0) -> float:
    """Seconds of steps and validation, from a few batches; an epoch is `share` of the trainer's."""
    if trainer.config.epochs == 0:
        trainer.fit()
        return 0.0
    loader = trainer.validation_loader
    # Where batches are of many lengths, three steps would say little.
    dataset = getattr(trainer.train_loader, "dataset", None)
    varied = isinstance(dataset, ArrayDataset) and dataset.lengths is not None
    count = min(20, len(trainer.train_loader)) if varied else 3
    steps = trainer.seconds_per_epoch(count) * share
    if loader is None:
        return steps

    def validate() -> None:
        trainer.measure(trainer.model, loader, trainer.fabric, Bar())

    validate()  # the first pass of a network in evaluation mode takes longer
    return steps + timed(validate) / len(loader.dataset) * validation


def _few(data: DataSplits, config: RunConfig) -> DataSplits:
    """The same training set, and of the others a batch, or less where each image has many masks."""
    size = config.train.batch_size
    count = max(2, min(size, 4 * size // (config.predict.mc_dropout or 1)))
    # From all over a set: the first texts of one are its shortest.
    few = [part.subset(spread_evenly(len(part), count)) for part in (data.validation, data.test)]
    return replace(data, validation=few[0], test=few[1])


def _first_detections(dataset: DetectionDataset, count: int) -> DetectionDataset:
    parts = {name: getattr(dataset, name)[:count] for name in ("images", "objects", "scales")}
    return replace(dataset, **parts)
