"""What a run measures on its trained network."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato.data import ArrayDataset, TensorLoader, context_only
from sfumato.engine.config.sections import content_hash
from sfumato.engine.evaluation.attacked import Changer
from sfumato.engine.evaluation.changed_images import ChangedImages, right_images
from sfumato.engine.evaluation.context import evaluate_context, objectness_metrics, objectness_of
from sfumato.engine.evaluation.damaged_images import DamagedImages
from sfumato.engine.evaluation.measured import Measured
from sfumato.engine.evaluation.mistakes import write_mistakes
from sfumato.engine.evaluation.other_sets import measure_other
from sfumato.engine.evaluation.own import evaluate_own
from sfumato.engine.evaluation.predict import predict, predict_here
from sfumato.engine.evaluation.predictors import Predictors
from sfumato.engine.evaluation.prepared import passes_per_image
from sfumato.engine.evaluation.ranking import measure_normalised
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.evaluation.scaled import SCALED_SPLITS, fitted_scaler, measure_scaled
from sfumato.engine.evaluation.split_metrics import measure_split, posterior_of, reliability_bins
from sfumato.engine.evaluation.stored_sets import StoredSets, open_stored
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.progress import progress_bar
from sfumato.predictions import TemperatureScaler

_OF_TRAINING = ("accuracy", "nll", "ece", "aece")


@dataclass
class Evaluator:
    """Predicts and measures, as the run's `predict` and `evaluate` sections say.

    A `DeepEnsemble` as network is measured with all its members, and with the first 1, 2, ... of
    them.

    What costs passes through the network is kept in the run's directory by its content, and
    computed once. Each part has a random stream of its own, so that its numbers do not depend on
    which other parts are computed.
    """

    fabric: Fabric
    config: Measured
    network: nn.Module
    run: RunDirectory
    mean: tuple[float, ...]
    std: tuple[float, ...]
    show: bool
    corrupted_batch: int = 256
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.predictors = Predictors(self.network, self.config)
        self.predictor = self.predictors.usual
        self.replicates = Replicates(self.config.evaluate.resamples)
        self.others: dict[str, Tensor | None] = {}  # the true probabilities of further test sets

    def clean(self, name: str, loader: TensorLoader) -> None:
        """Predict a split, keep its predictions, measure them; all processes take part."""
        self._predict(name, loader)
        if self.fabric.is_global_zero:
            self.measure(name, loader.dataset)

    def other(self, name: str, loader: TensorLoader) -> None:
        """Predict a set of `evaluate.also`, which `finish` measures; all processes take part."""
        self._predict(name, loader, f"-{content_hash(self.config.evaluate.also[name])}")
        self.others[name] = posterior_of(loader.dataset)

    def _predict(self, name: str, loader: TensorLoader, source: str = "") -> None:
        kept = self.fabric.is_global_zero and self.run.link_predictions(name, source)
        if not self.fabric.broadcast(kept):
            began = time.perf_counter()
            predictor = self.begin(name)
            with progress_bar(f"predicting {name}", len(loader), show=self.show) as bar:
                predicted = predict(predictor, loader, self.fabric, bar)
            if self.fabric.is_global_zero:
                seconds = time.perf_counter() - began
                self.run.write_predictions(name, predicted, seconds=seconds, source=source)

    def begin(self, name: str) -> nn.Module:
        """What predicts a split, with the random numbers of that split."""
        self._seed(name)
        with_curve = name == "test" and self.fabric.world_size == 1
        return self.predictors.with_curve() if with_curve else self.predictor

    def measure(self, name: str, dataset: ArrayDataset) -> None:
        """Measure the kept predictions of a split."""
        self.metrics[name] = self._measured(name, dataset)

    def _measured(self, name: str, dataset: ArrayDataset) -> dict[str, Any]:
        """The metrics of a split; those of the test set are resampled, and its mistakes kept."""
        found, is_test = self.run.read_predictions(name), name == "test"
        if is_test:
            write_mistakes(self.run, found, dataset)
        values = measure_split(
            found,
            posterior=posterior_of(dataset),
            replicates=self.replicates if is_test else None,
            bins=self.config.evaluate.all_bins,
        )
        bins = reliability_bins(found, self.config.evaluate.all_bins[0])
        return {**values, "samples": len(found.labels), "reliability": bins}

    def training_set(self, loader: TensorLoader) -> None:
        """Measure the training set as the loader augments it; all processes take part."""

        def compute() -> dict[str, Any]:
            self._seed("train")
            with progress_bar("predicting train", len(loader), show=self.show) as bar:
                found = predict(self.predictor, loader, self.fabric, bar)
            bins = self.config.evaluate.all_bins
            values = measure_split(found, names=_OF_TRAINING, bins=bins)
            return {**values, "samples": len(found.labels)}

        predict_content = self.config.predict.model_dump(mode="json")
        content = {"predict": predict_content, "bins": self.config.evaluate.all_bins}
        if self.fabric.world_size == 1:
            self.metrics["train"] = self.run.keep("train", content, compute)
            return
        values = compute()  # of all processes together
        if self.fabric.is_global_zero:
            self.metrics["train"] = self.run.keep("train", content, lambda: values)

    def finish(self, test: ArrayDataset) -> dict[str, Any]:
        """The evaluations that one process does alone, and all metrics of the run."""
        wanted = self.config.evaluate
        if sizes := self.predictors.sizes:
            # How many samples a prediction takes decides the passes, smaller ensembles included.
            content = {"sizes": sizes, "passes of": self.config.predict.model_dump(mode="json")}
            self.metrics["ensemble"] = self.run.keep(
                "ensemble", content, lambda: self._ensemble_curve(test)
            )
        if wanted.context:
            self._context(test)
        scalers = {
            SCALED_SPLITS[method]: fitted_scaler(self.run, method, wanted.all_bins)
            for method in wanted.temperatures
        }
        for split, scaler in scalers.items():
            self.metrics[split] = {
                "temperature": scaler.temperature,
                **self._scaled(split, scaler, "test", posterior_of(test)),
            }
        for name, posterior in self.others.items():
            self._other(name, posterior, scalers)
        if wanted.normalised:
            held_out, found = map(self.run.read_predictions, ("validation", "test"))
            self.metrics["normalised"] = measure_normalised(held_out, found, self.replicates)
        self._damaged(test, scalers)
        if wanted.own:
            self.metrics["own"] = {title: self._own(title, test) for title in wanted.own}
        self.replicates.write(self.run.path)
        return self.metrics

    def _damaged(self, test: ArrayDataset, scalers: Mapping[str, TemperatureScaler]) -> None:
        """What is measured of the first test images after something was done to them."""
        wanted, part = self.config.evaluate, test
        if wanted.corrupted_images is not None:
            part = test.subset(torch.arange(min(len(test), wanted.corrupted_images)))
        stored = StoredSets()
        if wanted.stored is not None:
            image = tuple(test.images.shape[1:])
            stored = open_stored(wanted, classes=test.classes, image=image)
        damaged = self._damaged_images(part)
        if wanted.corruption_names or stored.corrupted is not None:
            for split, values in damaged.corruptions(scalers, stored.corrupted).items():
                place = self.metrics[split] if split else self.metrics
                place["corrupted"] = values
        if wanted.perturbation_names or stored.perturbed is not None:
            self.metrics["perturbed"] = damaged.perturbations(stored.perturbed)
        if wanted.attacks:
            right = right_images(self.run.read_predictions("test"), test)[: len(part)]
            self.metrics["attacked"] = self._changed(part).attacks(wanted.attacks, right)
        if wanted.frequency is not None:
            self.metrics["frequency"] = self._changed(part).bands(wanted.frequency)

    def _own(self, title: str, test: ArrayDataset) -> dict[str, float]:
        """What a function of the user's makes of the test set; its code is part of its spec."""
        spec = self.config.evaluate.own[title]
        what = f"own-{'-'.join(re.findall(r'[A-Za-z0-9]+', title))}"

        def compute() -> dict[str, float]:
            self._seed(what)
            found = self.run.read_predictions("test")
            with torch.no_grad():
                return evaluate_own(
                    spec,
                    found,
                    data=test,
                    network=self.predictor.eval(),
                    mean=self.mean,
                    std=self.std,
                )

        content = {"predict": self.config.predict.model_dump(mode="json"), "own": spec}
        return self.run.keep(what, content, compute)

    def _other(
        self, name: str, posterior: Tensor | None, scalers: Mapping[str, TemperatureScaler]
    ) -> None:
        """A further test set, and after each temperature where it has labels."""
        bins = self.config.evaluate.all_bins
        self.metrics[name] = measure_other(
            self.run.read_predictions(name),
            posterior=posterior,
            scaler=scalers.get("scaled") or fitted_scaler(self.run, "nll", bins),
            replicates=self.replicates,
            split=name,
            bins=bins,
        )
        if "accuracy" in self.metrics[name]:
            for split, scaler in scalers.items():
                found = self._scaled(f"{split}.{name}", scaler, name, posterior)
                self.metrics[split][name] = found

    def _scaled(
        self, split: str, scaler: TemperatureScaler, name: str, posterior: Tensor | None
    ) -> dict[str, Any]:
        return measure_scaled(
            self.run.read_predictions(name),
            scaler,
            split=split,
            posterior=posterior,
            replicates=self.replicates,
            bins=self.config.evaluate.all_bins,
        )

    def _damaged_images(self, part: ArrayDataset) -> DamagedImages:
        return DamagedImages(
            self.predictor,
            part,
            self.run,
            self.config,
            mean=self.mean,
            std=self.std,
            device=self.fabric.device,
            batch_size=self.corrupted_batch,
            seed=self._seed,
            replicates=self.replicates,
            show=self.show,
        )

    def _changed(self, part: ArrayDataset) -> ChangedImages:
        """Gradients need the memory of a training step, so batches are not larger than there."""
        batch = min(self.corrupted_batch, self.config.train.batch_size)
        batch = max(1, batch // passes_per_image(self.config.predict))
        # A wrapper for several processes waits for the others, which take no part here.
        alone = self.fabric.world_size == 1 or self.predictors.averaging is not None
        model = self.predictor if alone else self.predictors.plain
        return ChangedImages(
            Changer(model, self.mean, self.std, batch, self.fabric.device),
            part,
            self.run,
            {"predict": self.config.predict.model_dump(mode="json")},
            self._seed,
            self.replicates,
            self.config.evaluate.all_bins[0],
            self.show,
        )

    def _seed(self, part: str) -> None:
        path = ("predictions", part, self.fabric.global_rank)
        torch.manual_seed(fold_seed(self.config.seed, *path))

    def _context(self, test: ArrayDataset) -> None:
        """Confidence against objectness, and on test images painted over with the training mean."""
        found = self.run.read_predictions("test")
        self.metrics["objectness"] = objectness_metrics(found, objectness_of(test))

        def compute() -> dict[str, float]:
            self._seed("context")
            hidden = context_only(test, fill=self.mean)
            device = self.fabric.device
            loader = TensorLoader(hidden, 128, mean=self.mean, std=self.std, device=device)
            return evaluate_context(self.predictor, loader, show=self.show)

        content = {"predict": self.config.predict.model_dump(mode="json")}
        self.metrics["context"] = self.run.keep("context", content, compute)

    def _ensemble_curve(self, test: ArrayDataset) -> dict[str, Any]:
        """From the passes of the prediction, or from the same passes made again."""
        curve = self.predictors.curve
        if curve is None:
            self._seed("test")
            curve = self.predictors.new_curve()
            loader = TensorLoader(
                test,
                self.config.train.batch_size,
                channels_last=self.config.train.channels_last,
                mean=self.mean,
                std=self.std,
                device=self.fabric.device,
            )
            with progress_bar("ensemble sizes", len(loader), show=self.show) as bar:
                predict_here(curve, loader, bar)
        return curve.measure(test.labels[:])
