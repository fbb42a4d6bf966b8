"""What evaluating a classifier costs: apart from its network, and for each pass through it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data import ArrayDataset, DataSplits
from sfumato.engine.config.evaluate_section import EvaluateConfig
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.evaluation.classifier import Evaluator
from sfumato.engine.evaluation.predict import predict
from sfumato.engine.evaluation.prepared import passes_per_image, prepare_network
from sfumato.engine.evaluation.stored_sets import StoredSets, open_stored
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.progress import Bar
from sfumato.engine.tasks.classify import Loaders
from sfumato.engine.tasks.reading import decoded_sample

_FILES = 64
_CORRUPTED_PIXELS = 6000 * 32 * 32
"""Of the images that are corrupted for an estimate; the cost of more of them is scaled up."""


@dataclass(frozen=True)
class EvaluationCost:
    """Seconds without the network (corrupting, measuring), and the passes through it.

    A pass is one image with one dropout mask.
    """

    without_network: float
    passes: float

    def seconds(self, each: float) -> float:
        """With a network that takes `each` seconds a pass."""
        return self.without_network + self.passes * each


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def seconds_per_pass(
    fabric: Fabric,
    config: RunConfig,
    network: nn.Module,
    loaders: Loaders,
    directory: RunDirectory,
    part: ArrayDataset,
) -> float:
    """Of one image with one dropout mask, predicted in the way of the run."""
    evaluator = _evaluator(fabric, config, network, loaders, directory, part)
    loader = loaders.evaluation(part)
    predict(evaluator.predictor, loader, fabric, Bar())  # the first time takes longer
    seconds = timed(lambda: predict(evaluator.predictor, loader, fabric, Bar()))
    return seconds / (len(part) * passes_per_image(config.predict))


def evaluation_cost(
    fabric: Fabric,
    config: RunConfig,
    data: DataSplits,
    loaders: Loaders,
    directory: RunDirectory,
    others: Mapping[str, ArrayDataset],
) -> EvaluationCost:
    """The whole evaluation of a run, with a network that costs nothing and counts its passes.

    Where many images are corrupted, a part of them is, and the rest is scaled; so it is where
    images are files, which are not all decoded for a plan.
    """
    network = _PassCounter(data.train.num_classes)
    whole = {"validation": data.validation, "test": data.test, **others}
    parts = {name: _decoded_part(part) for name, part in whole.items()}
    share = sum(map(len, whole.values())) / sum(map(len, parts.values()))

    def evaluate(wanted: EvaluateConfig, predicted: Mapping[str, ArrayDataset]) -> None:
        changed = config.model_copy(update={"evaluate": wanted})
        evaluator = _evaluator(fabric, changed, network, loaders, directory, parts["validation"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is said about this network is about none
            for name, part in predicted.items():
                predicts = evaluator.clean if name in ("validation", "test") else evaluator.other
                predicts(name, loaders.evaluation(part))
            evaluator.finish(parts["test"])

    wanted = config.evaluate
    none: dict[str, Any] = {"corruptions": [], "perturbations": [], "attacks": {}}
    none |= {"frequency": None, "stored": None}
    clean = wanted.model_copy(update=none)
    seconds = timed(lambda: evaluate(clean, parts)) * share
    passes = network.passes * share
    image = tuple(data.test.images.shape[1:])
    sets = open_stored(wanted, classes=data.test.classes, image=image)
    for part, cells, images in (_made(wanted, sets, len(data.test)), _stored(wanted, none, sets)):
        if not cells:
            continue
        total = min(images, wanted.corrupted_images or images)
        few = min(total, max(4, _CORRUPTED_PIXELS // (cells * image[1] * image[2])))
        few = min(few, len(parts["test"]))
        # What the clean part has kept on disk is not computed again.
        damaged = part.model_copy(update={"corrupted_images": few})
        network.passes = 0
        seconds += timed(partial(evaluate, damaged, {})) * total / few
        passes += network.passes * total / few
    if wanted.train:
        passes += len(data.train) * passes_per_image(config.predict)
    return EvaluationCost(seconds, passes)


def _decoded_part(dataset: ArrayDataset) -> ArrayDataset:
    """The set itself where it is in memory, else some of its images from all over it."""
    return decoded_sample(dataset, _FILES) if dataset.is_file_backed else dataset


def _made(wanted: EvaluateConfig, sets: StoredSets, images: int) -> tuple[EvaluateConfig, int, int]:
    """What is made of the test images alone, with its cells and the images of each."""
    update: dict[str, Any] = {"stored": None}
    update |= {} if sets.corrupted is None else {"corruptions": []}
    update |= {} if sets.perturbed is None else {"perturbations": []}
    part = wanted.model_copy(update=update)
    cells = len(part.corruption_names) * len(part.severities) + len(part.perturbation_names)
    cells += len(part.attacks)
    if part.frequency is not None:
        cells += len(part.frequency.frequencies)
    return part, cells, images


def _stored(
    wanted: EvaluateConfig, none: Mapping[str, Any], sets: StoredSets
) -> tuple[EvaluateConfig, int, int]:
    """What is read alone, with its cells and the images of each."""
    cells, images = 0, 0
    if sets.corrupted is not None:
        cells, images = len(sets.corrupted.names) * len(wanted.severities), len(sets.corrupted)
    if sets.perturbed is not None:
        cells, images = cells + len(sets.perturbed.names), max(images, len(sets.perturbed))
    names = {"stored": wanted.stored, "corruptions": wanted.corruptions}
    update = {**none, **names, "perturbations": wanted.perturbations}
    if sets.corrupted is None:
        update["corruptions"] = []
    if sets.perturbed is None:
        update["perturbations"] = []
    return wanted.model_copy(update=update), cells, images


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


def _evaluator(
    fabric: Fabric,
    config: RunConfig,
    network: nn.Module,
    loaders: Loaders,
    run: RunDirectory,
    validation: ArrayDataset,
) -> Evaluator:
    network = prepare_network(
        network,
        config.predict,
        fabric=fabric,
        directory=run,
        validation=loaders.evaluation(validation),
        show=False,
    )
    return Evaluator(fabric, config, network, run, loaders.mean, loaders.std, show=False)
