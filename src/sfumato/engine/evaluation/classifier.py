"""`Evaluator`: all that a run measures of its trained classifier, split by split."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._core.checks import to_float64
from sfumato._core.spec import Spec, content_hash
from sfumato.data import ArrayDataset, TensorLoader, context_only
from sfumato.data.dataset import preparation
from sfumato.engine.config.components import resolve_component
from sfumato.engine.evaluation.altered import AlteredImages, StoredSets, open_stored, right_images
from sfumato.engine.evaluation.context import Context
from sfumato.engine.evaluation.other_sets import Scorer, measure_other, measure_scaled
from sfumato.engine.evaluation.splits import (
    SCALED_METRICS,
    SCALED_SPLITS,
    fitted_scaler,
    measure_normalised,
    measure_split,
    posterior_of,
    reliability_bins,
    write_mistakes,
)
from sfumato.engine.runs.directory import Arrays, Predictions
from sfumato.engine.training.predict import predict, predict_here
from sfumato.labels import box_objectness
from sfumato.metrics import (
    average_confidence,
    calibration_error,
    mean_objectness_deviation,
    overconfidence,
    underconfidence,
)
from sfumato.predictions import TemperatureScaler

OBJECTNESS_BINS = 10


def context_metrics(found: Predictions) -> dict[str, float]:
    """Accuracy and average, over- and underconfidence (table 1); low confidence is honest."""
    probs = found.logits.softmax(1)
    measures = (average_confidence, overconfidence, underconfidence)
    return {
        "samples": len(found.labels),
        "accuracy": float(to_float64(probs.argmax(1) == found.labels).mean()),
        **{each.__name__: float(each(probs, found.labels)) for each in measures},
    }


def objectness_metrics(found: Predictions, objectness: Tensor) -> dict[str, Any]:
    """Mean objectness deviation, ECE at 15 and 100 bins, MCE, and confidence by objectness."""
    probs = found.logits.softmax(1)
    bins = (objectness * OBJECTNESS_BINS).long().clamp(max=OBJECTNESS_BINS - 1)
    counts = bins.bincount(minlength=OBJECTNESS_BINS)
    curve = {"objectness": objectness, "confidence": probs.amax(1)}
    curve["accuracy"] = (probs.argmax(1) == found.labels).float()
    means = {
        name: (bins.bincount(values.double(), OBJECTNESS_BINS) / counts).tolist()
        for name, values in curve.items()
    }
    return {
        "mean_objectness": float(objectness.double().mean()),
        "mean_objectness_deviation": float(mean_objectness_deviation(probs, objectness)),
        "ece_15": float(calibration_error(probs, found.labels, num_bins=15)),
        "ece_100": float(calibration_error(probs, found.labels, num_bins=100)),
        "mce": float(calibration_error(probs, found.labels, num_bins=15, norm="max")),
        "curve": {"counts": counts.tolist(), **means},
    }


def objectness_of(test: ArrayDataset) -> Tensor:
    """(N,) share of each whole image that its boxes cover, in the order of saved predictions."""
    if test.boxes is None:
        raise ValueError("evaluate.context needs test images with boxes, and this data has none")
    order = test.index.argsort(stable=True)
    height, width = test.images.shape[-2:]
    return box_objectness(test.boxes, (height, width))[order].cpu()


def evaluate_own(
    spec: Spec,
    found: Predictions,
    *,
    data: ArrayDataset,
    network: nn.Module,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> dict[str, float]:
    """Call a user's function with the test set, and check the numbers that it gives.

    It gets what it asks for by name: `logits`, `probs`, `target`, `index`, `data` (the test set in
    the same order), `network` (from bytes, numbers in [0, 1] or tokens to logits).
    """
    resolved = resolve_component("own", spec)
    supplied = {
        "logits": found.logits,
        "probs": found.logits.softmax(1),
        "target": found.labels,
        "index": found.index,
        "data": data.subset(data.index.argsort(stable=True)),
        "network": nn.Sequential(preparation(data.vocabulary, len(mean), mean, std), network),
    }
    asked = inspect.signature(resolved.build).parameters
    taken = {key: value for key, value in supplied.items() if key in asked}
    returned = resolved.build(**taken, **resolved.params)
    values = returned if isinstance(returned, Mapping) else {"value": returned}
    return {str(key): _number(value, resolved.name) for key, value in values.items()}


def _number(value: Any, name: str) -> float:
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(
            f"{name} must return a number, or a mapping of names to numbers, "
            f"got {type(value).__name__} {value!r}"
        )
    return float(value)


_OF_TRAINING = ("accuracy", "nll", "ece", "aece")


@dataclass
class Evaluator:
    """Predicts and measures each thing once, as the run's `predict` and `evaluate` sections say."""

    context: Context
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.others: dict[str, Tensor | None] = {}  # the true probabilities of further test sets
        self.scorer: Scorer | None = None
        self._training: TensorLoader | None = None

    def add(self, name: str, loader: TensorLoader) -> None:
        """Predict a set, and measure it where it is no further one; all processes take part."""
        wanted = self.context.config.evaluate
        spec = wanted.also.get(name, wanted.ood.get(name))
        self._predict(name, loader, "" if spec is None else f"-{content_hash(spec)}")
        if name in wanted.also:
            self.others[name] = posterior_of(loader.dataset)
        elif name in ("validation", "test") and self.context.fabric.is_global_zero:
            self.measure(name, loader.dataset)

    def score(self, training: TensorLoader | None, layer: str | None = None) -> None:
        """Score the test set and sets added afterwards, distances by features before `layer`."""
        self.scorer = Scorer(self.context, training is not None, layer)
        self._training = training

    def _score(self, name: str, loader: TensorLoader, source: str) -> Predictions | None:
        """Score a set in the pass that predicts it, which is returned if it was made."""
        context, scorer = self.context, self.scorer
        if scorer is None or name in ("validation", *context.config.evaluate.also):
            return None
        made: list[Predictions] = []

        def compute() -> Arrays:
            self._fit(scorer)
            predictor = scorer.around(self.begin(name))
            predictions, arrays = scorer.split(
                self._passes(f"predicting {name}", predictor, loader)
            )
            made.append(predictions)
            return arrays

        scores = {"names": scorer.names, "layer": scorer.layer}
        content = {**context.content, "scores": scores, "source": source}
        key = f"ood-{name}", content
        scorer.take(name, context.keep_together(context.keep_arrays, *key, compute))
        return made[0] if made else None

    def _fit(self, scorer: Scorer) -> None:
        """Fit distances on training images as they are, without augmentation."""
        loader = self._training
        if scorer.is_fitted or loader is None:
            return
        self.context.seed("ood")
        features = scorer.training_features()
        found = self._passes("features of training images", features, loader)
        scorer.fit(found.logits, found.labels, loader.dataset.num_classes)

    def _predict(self, name: str, loader: TensorLoader, source: str = "") -> None:
        context, fabric, run = self.context, self.context.fabric, self.context.run
        began = time.perf_counter()
        predicted = self._score(name, loader, source)
        kept = fabric.is_global_zero and run is not None and run.link_predictions(name, source)
        if fabric.broadcast(kept):
            return
        if predicted is None:
            predicted = self._passes(f"predicting {name}", self.begin(name), loader)
        if run is None:
            context.predictions[name] = predicted
        elif fabric.is_global_zero:
            seconds = time.perf_counter() - began
            run.write_predictions(name, predicted, seconds=seconds, source=source)

    def _passes(self, title: str, model: nn.Module, loader: TensorLoader) -> Predictions:
        with self.context.progress(title, len(loader)) as bar:
            return predict(model, loader, self.context.fabric, bar)

    def begin(self, name: str) -> nn.Module:
        """Return the predictor of a split, after seeding the random numbers of that split."""
        self.context.seed(name)
        with_curve = name == "test" and self.context.fabric.world_size == 1
        return self.context.with_curve() if with_curve else self.context.predictor

    def measure(self, name: str, dataset: ArrayDataset) -> None:
        """Measure a predicted split; the test set is resampled, and its mistakes are kept."""
        context, is_test = self.context, name == "test"
        found = context.read(name)
        if is_test and context.run is not None:
            write_mistakes(context.run, found, dataset)
        values = measure_split(
            found,
            posterior=posterior_of(dataset),
            replicates=context.replicates if is_test else None,
            bins=context.bins,
        )
        bins = reliability_bins(found, context.bins[0])
        self.metrics[name] = {**values, "samples": len(found.labels), "reliability": bins}

    def training_set(self, loader: TensorLoader) -> None:
        """Measure the training set as the loader augments it; all processes take part."""
        context = self.context

        def compute() -> dict[str, Any]:
            context.seed("train")
            found = self._passes("predicting train", context.predictor, loader)
            values = measure_split(found, names=_OF_TRAINING, bins=context.bins)
            return {**values, "samples": len(found.labels)}

        content = {**context.content, "bins": context.bins}
        self.metrics["train"] = context.keep_together(context.keep, "train", content, compute)

    def finish(self, test: ArrayDataset) -> dict[str, Any]:
        """Make the evaluations that one process does alone; all metrics of the run."""
        context, wanted = self.context, self.context.config.evaluate
        if sizes := context.ensemble_sizes:
            # How many samples a prediction takes decides the passes, smaller ensembles included.
            content = {"sizes": sizes, "passes of": context.content["predict"]}
            self.metrics["ensemble"] = context.keep(
                "ensemble", content, lambda: self._ensemble_curve(test)
            )
        if wanted.context:
            self._context(test)
        scalers = {
            SCALED_SPLITS[method]: fitted_scaler(context.read("validation"), method, context.bins)
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
            held_out, found = map(context.read, ("validation", "test"))
            self.metrics["normalised"] = measure_normalised(held_out, found, context.replicates)
        self._altered(test, scalers)
        if self.scorer is not None:
            self._strange(self.scorer, scalers)
        if wanted.own:
            self.metrics["own"] = {title: self._own(title, test) for title in wanted.own}
        if context.run is not None:
            context.replicates.write(context.run.path)
        return self.metrics

    def _altered(self, test: ArrayDataset, scalers: Mapping[str, TemperatureScaler]) -> None:
        wanted, data = self.context.config.evaluate, test
        if wanted.corrupted_images is not None:
            data = test.subset(torch.arange(min(len(test), wanted.corrupted_images)))
        stored = StoredSets()
        if wanted.stored is not None:
            stored = open_stored(wanted, classes=test.classes, image=test.images.shape[1:])
        altered = AlteredImages(self.context, data, stored)
        if wanted.corruption_names or stored.corrupted is not None:
            for split, values in altered.corruptions(scalers).items():
                place = self.metrics[split] if split else self.metrics
                place["corrupted"] = values
        if wanted.perturbation_names or stored.perturbed is not None:
            self.metrics["perturbed"] = altered.perturbations()
        if wanted.attacks:
            right = right_images(self.context.read("test"), test)[: len(data)]
            self.metrics["attacked"] = altered.attacks(wanted.attacks, right)
        if wanted.frequency is not None:
            self.metrics["frequency"] = altered.bands(wanted.frequency)

    def _own(self, title: str, test: ArrayDataset) -> dict[str, float]:
        """Call a function of the user's with the test set; its code is part of its spec."""
        context, spec = self.context, self.context.config.evaluate.own[title]

        @torch.no_grad()
        def compute() -> dict[str, float]:
            network = context.predictor.eval()
            statistics = {"mean": context.mean, "std": context.std}
            return evaluate_own(
                spec, context.read("test"), data=test, network=network, **statistics
            )

        name = f"own-{'-'.join(re.findall(r'[A-Za-z0-9]+', title))}"
        return context.keep(name, {**context.content, "own": spec}, compute)

    def _other(
        self, name: str, posterior: Tensor | None, scalers: Mapping[str, TemperatureScaler]
    ) -> None:
        """Measure a further test set, and after each temperature where it has labels."""
        context, scaler = self.context, scalers.get("scaled")
        self.metrics[name] = measure_other(
            context.read(name),
            posterior=posterior,
            scaler=scaler or fitted_scaler(context.read("validation"), "nll", context.bins),
            replicates=context.replicates,
            split=name,
            bins=context.bins,
        )
        for split, scaler in scalers.items() if "accuracy" in self.metrics[name] else ():
            self.metrics[split][name] = self._scaled(f"{split}.{name}", scaler, name, posterior)

    def _strange(self, scorer: Scorer, scalers: Mapping[str, TemperatureScaler]) -> None:
        context, test = self.context, self.context.read("test")
        found: dict[str, Any] = self.metrics.setdefault("ood", {})
        if scorer.shrinkage:
            found["shrinkage"] = scorer.shrinkage
        for name in [each for each in scorer.scores if each != "test"]:
            found[name] = scorer.measure(name, test)
            found[name]["samples"] = len(scorer.scores[name])
            for split, scaler in scalers.items():
                sets = (test, context.read(name))
                self.metrics[split].setdefault("ood", {})[name] = measure_scaled(
                    name, scaler, sets, context.replicates, split
                )

    def _scaled(
        self, split: str, scaler: TemperatureScaler, name: str, posterior: Tensor | None
    ) -> dict[str, Any]:
        context, found = self.context, self.context.read(name)
        return measure_split(
            Predictions(scaler(found.logits), found.labels, found.index),
            posterior=posterior,
            replicates=context.replicates,
            split=split,
            names=SCALED_METRICS,
            bins=context.bins,
        )

    def _context(self, test: ArrayDataset) -> None:
        """Confidence against objectness, and on test images painted over with the training mean."""
        context = self.context
        self.metrics["objectness"] = objectness_metrics(context.read("test"), objectness_of(test))

        def compute() -> dict[str, float]:
            loader = context.loader(context_only(test, fill=context.mean), 128)
            with context.progress("context-only images", len(loader)) as bar:
                return context_metrics(predict_here(context.predictor, loader, bar))

        self.metrics["context"] = context.keep("context", context.content, compute)

    def _ensemble_curve(self, test: ArrayDataset) -> dict[str, Any]:
        """Measure the passes of the prediction, or the same passes made again."""
        context, curve = self.context, self.context.curve
        if curve is None:
            context.seed("test")
            curve = context.new_curve()
            loader = context.loader(test)
            with context.progress("ensemble sizes", len(loader)) as bar:
                predict_here(curve, loader, bar)
        return curve.measure(test.labels[:])
