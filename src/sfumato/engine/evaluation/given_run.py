"""A network that is trained already, evaluated into a run directory like those of a study."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_class_indices
from sfumato._core.files import write_json
from sfumato._core.yaml_files import write_yaml
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.prepare import image_shape
from sfumato.engine.evaluation.classifier import Evaluator
from sfumato.engine.evaluation.given_data import Batches, GivenData, Split, read_batches, to_bytes
from sfumato.engine.evaluation.given_model import check_logits, members_of, try_out
from sfumato.engine.evaluation.given_statistics import Statistics, for_channels
from sfumato.engine.evaluation.measured import MeasuredSections
from sfumato.engine.evaluation.predict import predict_batches
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Predictions, RunDirectory
from sfumato.engine.runs.environment import environment_facts
from sfumato.engine.runs.networks import GIVEN
from sfumato.engine.runs.progress import progress_bar


@dataclass
class GivenEvaluation:
    """Evaluates a user's network on a user's data, with the numbers that a run has.

    Args:
        network: of `as_network`.
        data: of `as_given`.
        sections: what is measured.
        run: an empty directory.
        mean: what the network's images are standardised with, per channel or one for all; None
            for images in [0, 1].
        std: the same.
        batch_size: of data sets and of corrupted images; loaders have their own.
        device: where the network is.
        show: whether to draw progress bars.
    """

    network: nn.Module
    data: GivenData
    sections: MeasuredSections
    run: RunDirectory
    mean: Statistics
    std: Statistics
    batch_size: int
    device: torch.device
    show: bool

    def finish(self) -> dict[str, Any]:
        """Predict, measure, and write the run; its metrics."""
        fabric = _fabric(self.device)
        with torch.random.fork_rng():  # parts of an evaluation seed the random state
            evaluator = Evaluator(
                fabric,
                self.sections,
                self.network,
                self.run,
                (),  # the number of channels is known after the first batch
                (),
                self.show,
                corrupted_batch=self.batch_size,
            )
            if self.data.validation is not None:
                self._split(evaluator, "validation", self.data.validation)
            test = self._split(evaluator, "test", self.data.test)
            count = test.images.shape[1]
            evaluator.mean = self.mean or (0.0,) * count
            evaluator.std = self.std or (1.0,) * count
            metrics = evaluator.finish(test)
        self._write(fabric, metrics)
        return self.run.metrics()

    def _split(self, evaluator: Evaluator, name: str, split: Split) -> ArrayDataset:
        if isinstance(split, ArrayDataset):
            self.mean, self.std = for_channels(self.mean, self.std, image_shape(split)[0])
            loader = TensorLoader(
                split, self.batch_size, mean=self.mean, std=self.std, device=self.device
            )
            try_out(self.network, loader.batch(0)["image"], split.num_classes)
            evaluator.clean(name, loader)
            return split
        keeps_images = name == "test" and bool(self.sections.evaluate.corruption_names)
        began = time.perf_counter()
        found, images = self._predict(evaluator.begin(name), name, split, keeps_images)
        seconds = time.perf_counter() - began
        self.run.write_predictions(name, found, seconds=seconds)
        dataset = ArrayDataset(images, found.labels, _classes(split, found.logits.shape[1]))
        evaluator.measure(name, dataset)
        return dataset

    def _predict(
        self, predictor: nn.Module, name: str, batches: Batches, keeps_images: bool
    ) -> tuple[Predictions, Tensor]:
        """Predictions in the loader's order, and its images as bytes where they are needed."""
        logits: list[Tensor] = []
        labels: list[Tensor] = []
        kept: list[Tensor] = []

        def given() -> Any:
            for images, target in read_batches(name, batches):
                images = images.to(self.device)
                if not labels:
                    self._look_at(images)
                if keeps_images:
                    kept.append(to_bytes(images, self.mean, self.std))
                labels.append(target)
                yield images, images

        def take(output: Tensor, images: Tensor) -> None:
            check_logits(output, images)
            logits.append(output.float().cpu())

        steps = len(batches) if isinstance(batches, Sized) else None
        show = self.show and steps is not None
        with progress_bar(f"predicting {name}", steps or 0, show=show) as bar:
            predict_batches(predictor, given(), take, bar)
        target = torch.cat(labels)
        found = Predictions(torch.cat(logits), target, torch.arange(len(target)))
        check_class_indices(f"labels of {name}", target, found.logits.shape[1])
        blank = torch.empty((len(target), 0, 0, 0), dtype=torch.uint8)
        return found, torch.cat(kept) if kept else blank

    def _look_at(self, images: Tensor) -> None:
        """The first batch of a loader: what form its images have, and what the models say."""
        is_bytes = images.dtype == torch.uint8
        if is_bytes and not (self.mean is None and self.std is None):
            raise ValueError(
                "the loader gives bytes, which are not standardised: leave mean and std out"
            )
        channels = images.shape[1] if images.ndim > 1 else 0
        self.mean, self.std = for_channels(self.mean, self.std, channels)
        for member in members_of(self.network):
            member.takes_bytes = is_bytes
        try_out(self.network, images, None)

    def _write(self, fabric: Fabric, metrics: dict[str, Any]) -> None:
        sections = self.sections
        (first, *_) = members_of(self.network)
        config = {
            "task": "classify",
            "data": self.data.spec,
            "model": {"name": GIVEN, "class": type(first.model).__name__},
            "predict": sections.predict.model_dump(mode="json"),
            "evaluate": sections.evaluate.model_dump(mode="json"),
            "seed": sections.seed,
        }
        write_yaml(self.run.path / "config.yaml", config)
        write_json(self.run.path / "environment.json", environment_facts(fabric))
        self.run.write_metrics(metrics)
        shutil.rmtree(self.run.path / "parts", ignore_errors=True)


def _fabric(device: torch.device) -> Fabric:
    devices = [device.index or 0] if device.type == "cuda" else 1
    return Fabric(accelerator=device.type, devices=devices)


def _classes(split: Batches, count: int) -> tuple[str, ...]:
    """The names that the loader's data set has, as torchvision's do, or numbers."""
    found = getattr(getattr(split, "dataset", None), "classes", None)
    if isinstance(found, list | tuple) and len(found) == count:
        return tuple(str(each) for each in found)
    return tuple(str(number) for number in range(count))
