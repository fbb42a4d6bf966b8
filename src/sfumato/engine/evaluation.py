"""What a run measures on its trained network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from sfumato.data import ArrayDataset, TensorLoader
from sfumato.engine.predict import predict
from sfumato.engine.progress import progress_bar
from sfumato.engine.results import Predictions, RunDirectory
from sfumato.engine.robustness import evaluate_robustness
from sfumato.engine.run_config import RunConfig
from sfumato.engine.seeds import fold_seed
from sfumato.engine.stochastic import LogProbabilities, log_probabilities
from sfumato.metrics import evaluate_predictions, reliability
from sfumato.predictions import MCDropout

RELIABILITY_BINS = 15


@dataclass
class Evaluator:
    """Predicts and measures, as the run's `predict` and `evaluate` sections say."""

    fabric: Fabric
    config: RunConfig
    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    show: bool
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        samples = self.config.predict.mc_dropout
        self.predictor = self.network
        if samples is not None:
            self.predictor = LogProbabilities(MCDropout(self._plain(), samples))

    def clean(self, name: str, loader: TensorLoader, run: RunDirectory) -> None:
        """Predict a split, keep its predictions, measure them; all processes take part."""
        with progress_bar(f"predicting {name}", len(loader), show=self.show) as bar:
            found = predict(self.predictor, loader, self.fabric, bar)
        if self.fabric.is_global_zero:
            run.write_predictions(name, found)
            generator = torch.Generator().manual_seed(fold_seed(self.config.seed, "bootstrap"))
            self.metrics[name] = _measure(found, self.config.evaluate.resamples, generator)

    def finish(self, test: ArrayDataset) -> dict[str, Any]:
        """The evaluations that one process does alone, and all metrics of the run."""
        wanted = self.config.evaluate
        if wanted.ensemble_sizes:
            self.metrics["ensemble"] = self._ensemble_curve(test, wanted.ensemble_sizes)
        if wanted.corruption_names:
            part = test
            if wanted.corrupted_images is not None:
                part = test.subset(torch.arange(min(len(test), wanted.corrupted_images)))
            found = evaluate_robustness(
                self.predictor,
                part,
                mean=self.mean,
                std=self.std,
                names=wanted.corruption_names,
                severities=wanted.severities,
                device=self.fabric.device,
                show=self.show,
            )
            self.metrics["corrupted"] = found.as_dict()
        return self.metrics

    @torch.no_grad()
    def _ensemble_curve(self, test: ArrayDataset, sizes: list[int]) -> dict[str, Any]:
        """NLL, accuracy and ECE against the number of dropout samples, from one set of passes."""
        sampler = MCDropout(self._plain(), max(sizes))
        loader = TensorLoader(test, 128, mean=self.mean, std=self.std, device=self.fabric.device)
        parts: dict[int, list[torch.Tensor]] = {size: [] for size in sizes}
        with progress_bar("ensemble sizes", len(loader), show=self.show) as bar:
            for batch in loader:
                for size, probs in sampler.curve(batch["image"], sizes).items():
                    parts[size].append(log_probabilities(probs).cpu())
                bar.advance()
        curve: dict[str, Any] = {"sizes": sizes, "nll": [], "accuracy": [], "ece": []}
        for size in sizes:
            found = evaluate_predictions(test.labels, logits=torch.cat(parts[size]))
            for name in ("nll", "accuracy", "ece"):
                curve[name].append(found[name])
        return curve

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
