"""What a run measures on its trained network."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from sfumato.data import ArrayDataset, TensorLoader, context_only
from sfumato.engine.context import evaluate_context, objectness_metrics, objectness_of
from sfumato.engine.mistakes import write_mistakes
from sfumato.engine.predict import predict
from sfumato.engine.progress import progress_bar
from sfumato.engine.results import Predictions, RunDirectory
from sfumato.engine.robustness import METRICS as ROBUSTNESS_METRICS
from sfumato.engine.robustness import evaluate_robustness, robustness_from
from sfumato.engine.run_config import RunConfig
from sfumato.engine.seeds import fold_seed
from sfumato.engine.steadiness import evaluate_steadiness
from sfumato.engine.stochastic import LogProbabilities, SampleCurve
from sfumato.metrics import evaluate_predictions, reliability
from sfumato.predictions import MCDropout, TemperatureScaler

RELIABILITY_BINS = 15


@dataclass
class Evaluator:
    """Predicts and measures, as the run's `predict` and `evaluate` sections say.

    What costs passes through the network is kept in the run's directory by its content, and
    computed once. Each part has a random stream of its own, so that its numbers do not depend on
    which other parts are computed.
    """

    fabric: Fabric
    config: RunConfig
    network: nn.Module
    run: RunDirectory
    mean: tuple[float, ...]
    std: tuple[float, ...]
    show: bool
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        samples = self.config.predict.mc_dropout
        self.predictor = self.network
        if samples is not None:
            self.predictor = LogProbabilities(MCDropout(self._plain(), samples))
        self.curve: SampleCurve | None = None

    def clean(self, name: str, loader: TensorLoader) -> None:
        """Predict a split, keep its predictions, measure them; all processes take part."""
        kept = self.fabric.is_global_zero and self.run.link_predictions(name)
        if not self.fabric.broadcast(kept):
            self._seed(name)
            began = time.perf_counter()
            predictor = self._curve_predictor() if name == "test" else self.predictor
            with progress_bar(f"predicting {name}", len(loader), show=self.show) as bar:
                predicted = predict(predictor, loader, self.fabric, bar)
            if self.fabric.is_global_zero:
                seconds = time.perf_counter() - began
                self.run.write_predictions(name, predicted, seconds=seconds)
        if self.fabric.is_global_zero:
            found = self.run.read_predictions(name)
            if name == "test":
                write_mistakes(self.run, found, loader.dataset)
            generator = torch.Generator().manual_seed(fold_seed(self.config.seed, "bootstrap"))
            self.metrics[name] = _measure(found, self.config.evaluate.resamples, generator)

    def finish(self, test: ArrayDataset) -> dict[str, Any]:
        """The evaluations that one process does alone, and all metrics of the run."""
        wanted = self.config.evaluate
        if sizes := wanted.ensemble_sizes:
            self.metrics["ensemble"] = self.run.keep(
                "ensemble", {"sizes": sizes}, lambda: self._ensemble_curve(test, sizes)
            )
        if wanted.context:
            self._context(test)
        scaler = self._fitted_scaler() if wanted.temperature else None
        if scaler is not None:
            self.metrics["scaled"] = self._scaled(scaler)
        part = test
        if wanted.corrupted_images is not None:
            part = test.subset(torch.arange(min(len(test), wanted.corrupted_images)))
        if wanted.corruption_names:
            self.metrics["corrupted"] = self._corrupted(part)
            if scaler is not None:
                self.metrics["scaled"]["corrupted"] = self._corrupted(part, scaler)
        if wanted.perturbation_names:
            self.metrics["perturbed"] = self._perturbed(part)
        return self.metrics

    def _fitted_scaler(self) -> TemperatureScaler:
        """With the temperature that suits the validation set best, by NLL."""
        held_out = self.run.read_predictions("validation")
        return TemperatureScaler().fit(held_out.logits, held_out.labels)

    def _scaled(self, scaler: TemperatureScaler) -> dict[str, Any]:
        test = self.run.read_predictions("test")
        found = evaluate_predictions(test.labels, logits=scaler(test.logits))
        values = {name: found[name] for name in ("nll", "ece", "aece", "aurc", "accuracy_at_80")}
        return {"temperature": scaler.temperature, **values}

    def _perturbed(self, part: ArrayDataset) -> dict[str, Any]:
        """Steadiness sequence by sequence, and the means over them."""
        names = self.config.evaluate.perturbation_names
        cells: dict[str, dict[str, float]] = {}
        with progress_bar("perturbations", len(names), show=self.show) as bar:
            for name in names:
                cells[name] = self._perturbed_cell(part, name)
                bar.advance(name)
        means = {
            key: sum(cell[key] for cell in cells.values()) / len(cells)
            for key in next(iter(cells.values()))
        }
        return {**means, "cells": cells}

    def _perturbed_cell(self, part: ArrayDataset, name: str) -> dict[str, float]:
        what = f"perturbed-{name}"

        def compute() -> dict[str, float]:
            self._seed(what)
            device = self.fabric.device
            return evaluate_steadiness(
                self.predictor, part, name, mean=self.mean, std=self.std, device=device
            )

        content = {"predict": self.config.predict.model_dump(mode="json"), "images": len(part)}
        return self.run.keep(what, content, compute)

    def _corrupted(
        self, part: ArrayDataset, scaler: TemperatureScaler | None = None
    ) -> dict[str, Any]:
        """Robustness cell by cell, so that one more type or severity costs only itself."""
        wanted = self.config.evaluate
        names, severities = wanted.corruption_names, wanted.severities
        cells: dict[str, list[list[float]]] = {key: [] for key in ROBUSTNESS_METRICS}
        total = len(names) * len(severities)
        with progress_bar("corruptions", total, show=self.show) as bar:
            for name in names:
                row = []
                for severity in severities:
                    row.append(self._corrupted_cell(part, name, severity, scaler))
                    bar.advance(f"{name} {severity}")
                for key, values in cells.items():
                    values.append([cell[key] for cell in row])
        found = {"names": names, "severities": severities, "cells": cells}
        return robustness_from(found).as_dict()

    def _corrupted_cell(
        self, part: ArrayDataset, name: str, severity: int, scaler: TemperatureScaler | None
    ) -> dict[str, float]:
        what = f"corrupted-{name}-{severity}"
        content = {"predict": self.config.predict.model_dump(mode="json"), "images": len(part)}
        predictor = self.predictor
        if scaler is not None:
            content["temperature"] = scaler.temperature
            predictor = nn.Sequential(predictor, scaler).train(predictor.training)

        def compute() -> dict[str, float]:
            self._seed(what)
            found = evaluate_robustness(
                predictor,
                part,
                mean=self.mean,
                std=self.std,
                names=[name],
                severities=[severity],
                device=self.fabric.device,
                show=False,
            )
            return found.means()

        values = self.run.keep(what, content, compute)
        return {key: math.nan if value is None else value for key, value in values.items()}

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

    def _curve_predictor(self) -> nn.Module:
        """The predictor; where its passes also give the smaller ensembles that are wanted, both."""
        sizes, samples = self.config.evaluate.ensemble_sizes, self.config.predict.mc_dropout
        largest, is_alone = max(sizes, default=0), self.fabric.world_size == 1
        if samples is None or not is_alone or not 0 < largest <= samples:
            return self.predictor
        self.curve = SampleCurve(MCDropout(self._plain(), samples), sizes)
        return self.curve

    @torch.no_grad()
    def _ensemble_curve(self, test: ArrayDataset, sizes: list[int]) -> dict[str, Any]:
        """From the passes of the prediction, or from the same passes made again."""
        if self.curve is None:
            self._seed("test")
            samples = max(*sizes, self.config.predict.mc_dropout or 1)
            self.curve = SampleCurve(MCDropout(self._plain(), samples), sizes)
            loader = TensorLoader(
                test,
                self.config.train.batch_size,
                channels_last=self.config.train.channels_last,
                mean=self.mean,
                std=self.std,
                device=self.fabric.device,
            )
            with progress_bar("ensemble sizes", len(loader), show=self.show) as bar:
                for batch in loader:
                    self.curve(batch["image"])
                    bar.advance()
        return self.curve.measure(test.labels)

    def _plain(self) -> nn.Module:
        """The network without the wrapper that Fabric puts around it."""
        inner = getattr(self.network, "module", self.network)
        return inner if isinstance(inner, nn.Module) else self.network


def _measure(found: Predictions, resamples: int, generator: torch.Generator) -> dict[str, Any]:
    """Every metric with its bootstrap interval, and the bins of the reliability diagram."""
    values = evaluate_predictions(
        found.labels, logits=found.logits, resamples=resamples, generator=generator
    )
    bins = reliability(found.logits.softmax(1), found.labels, num_bins=RELIABILITY_BINS)
    return {
        **values,
        "samples": len(found.labels),
        "reliability": {
            "counts": bins.counts.tolist(),
            "confidence": bins.confidences.tolist(),
            "accuracy": bins.accuracies.tolist(),
        },
    }
