"""`Context`, what all measurements of a network share: its predictor, run, seeds and resamples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato._core.text import Bar, progress_bar
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.dataset import Normalise
from sfumato.engine.config.sections import PredictConfig
from sfumato.engine.evaluation.splits import Replicates, Sections
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Arrays, Predictions, RunDirectory
from sfumato.engine.training.predict import predict
from sfumato.features import ClippedFeatures
from sfumato.inputs import AveragedCopies
from sfumato.metrics import evaluate_predictions
from sfumato.predictions import DeepEnsemble, MCDropout

Result = TypeVar("Result")

Keep = Callable[[str, Mapping[str, Any], Callable[[], Any]], Any]


class LogProbabilities(nn.Module):
    """Logarithm of the mean probabilities: softmax gives them back, so they serve as logits."""

    def __init__(self, predictor: nn.Module) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, images: Tensor) -> Tensor:
        return log_probabilities(self.predictor(images))


class SampleCurve(nn.Module):
    """`LogProbabilities` of all samples; keeps those of smaller ensembles, from the same passes."""

    def __init__(self, sampler: MCDropout | DeepEnsemble, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sampler = sampler
        self.sizes = list(sizes)
        self._seen: dict[int, list[Tensor]] = {size: [] for size in sizes}

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.sampler, DeepEnsemble):
            means = self.sampler.curve(images)
        else:
            means = self.sampler.curve(images, [*self.sizes, self.sampler.samples])
        for size, seen in self._seen.items():
            seen.append(log_probabilities(means[size]).cpu())
        return log_probabilities(means[max(means)])

    def measure(self, labels: Tensor) -> dict[str, Any]:
        """NLL, accuracy and ECE against the number of samples, of all images seen."""
        found = [
            evaluate_predictions(logits=torch.cat(self._seen[size]), target=labels, splits=False)
            for size in self.sizes
        ]
        names = ("nll", "accuracy", "ece")
        return {"sizes": self.sizes, **{name: [each[name] for each in found] for name in names}}


def log_probabilities(probs: Tensor) -> Tensor:
    """log p, finite where p is 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def passes_per_image(config: PredictConfig) -> int:
    """Count the passes through the network that one prediction takes."""
    if config.tta is None:
        return config.mc_dropout or 1
    return AveragedCopies(nn.Identity(), **config.tta.model_dump()).count


@dataclass
class Context:
    """Everything that the measurements of one network share."""

    fabric: Fabric
    config: Sections
    # A `DeepEnsemble` is measured with its first 1, 2, ... members, too.
    network: nn.Module
    # Keeps predictions and cached results; None measures in memory.
    run: RunDirectory | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    show: bool = False
    # Altered images at once.
    batch_size: int = 256
    predictions: dict[str, Predictions] = field(default_factory=dict)
    # Smaller ensembles, from the passes that predict.
    curve: SampleCurve | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        inner = getattr(self.network, "module", self.network)
        # Without the wrapper that Fabric puts around it.
        self.plain = inner if isinstance(inner, nn.Module) else self.network
        samples = self.config.predict.mc_dropout
        self.averaging: MCDropout | DeepEnsemble | None = None
        if isinstance(self.plain, DeepEnsemble):
            self.averaging = self.plain
        elif samples is not None:
            self.averaging = MCDropout(self.plain, samples)
        averaging = self.averaging
        self.predictor = self.network if averaging is None else LogProbabilities(averaging)
        self.replicates = Replicates(self.config.evaluate.resamples)

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def bins(self) -> list[int]:
        """Numbers of bins of the calibration errors, the usual one first."""
        return self.config.evaluate.all_bins

    @property
    def content(self) -> dict[str, Any]:
        """The key that all cached results have: how the run predicts."""
        return {"predict": self.config.predict.model_dump(mode="json")}

    @property
    def ensemble_sizes(self) -> list[int]:
        if isinstance(self.averaging, DeepEnsemble):
            return list(range(1, len(self.averaging.models) + 1))
        return self.config.evaluate.ensemble_sizes

    @property
    def local_predictor(self) -> nn.Module:
        """The predictor for one process that works alone."""
        # A wrapper for several processes waits for the others, which take no part.
        is_local = self.fabric.world_size == 1 or self.averaging is not None
        return self.predictor if is_local else self.plain

    @property
    def gradient_batch(self) -> int:
        """Images at once where gradients take as much memory as in a training step."""
        batch = min(self.batch_size, self.config.train.batch_size)
        return max(1, batch // passes_per_image(self.config.predict))

    def with_curve(self) -> nn.Module:
        """The usual predictor; where its passes also give the smaller ensembles, both."""
        averaging, sizes = self.averaging, self.ensemble_sizes
        if averaging is None or not sizes:
            return self.predictor
        if isinstance(averaging, MCDropout) and max(sizes) > averaging.samples:
            return self.predictor
        self.curve = SampleCurve(averaging, sizes)
        return self.curve

    def new_curve(self) -> SampleCurve:
        """All ensembles that are measured, for passes of their own."""
        averaging, sizes = self.averaging, self.ensemble_sizes
        if not isinstance(averaging, DeepEnsemble):
            samples = max(*sizes, self.config.predict.mc_dropout or 1)
            averaging = MCDropout(self.plain, samples)
        return SampleCurve(averaging, sizes)

    def normalise(self) -> Normalise:
        return Normalise(len(self.mean), self.mean, self.std).to(self.device)

    def loader(self, dataset: ArrayDataset, batch_size: int | None = None) -> TensorLoader:
        """Batches of a set in its order, for one process."""
        train = self.config.train
        return TensorLoader(
            dataset,
            batch_size or train.batch_size,
            channels_last=train.channels_last,
            mean=self.mean,
            std=self.std,
            device=self.device,
        )

    def progress(self, title: str, steps: int) -> AbstractContextManager[Bar]:
        return progress_bar(title, steps, show=self.show)

    def seed(self, name: str) -> None:
        """Seed one measurement by its name: its numbers don't depend on which others are made."""
        path = ("predictions", name, self.fabric.global_rank)
        torch.manual_seed(fold_seed(self.config.seed, *path))

    def read(self, name: str) -> Predictions:
        return self.predictions[name] if self.run is None else self.run.read_predictions(name)

    def keep(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Compute a result with its own random numbers, or read what the run has cached of it."""
        seeded = self._seeded(name, compute)
        return dict(seeded()) if self.run is None else self.run.keep(name, content, seeded)

    def keep_arrays(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Arrays]
    ) -> Arrays:
        """`keep` for arrays of one number for each image."""
        seeded = self._seeded(name, compute)
        return seeded() if self.run is None else self.run.keep_arrays(name, content, seeded)

    def _seeded(self, name: str, compute: Callable[[], Result]) -> Callable[[], Result]:
        def seeded() -> Result:
            self.seed(name)
            return compute()

        return seeded

    def keep_together(
        self, keep: Keep, name: str, content: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """`keep` of what all processes compute together, so that each of them knows it."""
        if self.fabric.world_size == 1:
            return keep(name, content, compute)
        values = compute()
        return keep(name, content, lambda: values) if self.fabric.is_global_zero else values


def prepared(context: Context, validation: TensorLoader) -> Context:
    """The context of the network as `predict` wants it: clipped, averaged over copies, or as it is.

    What is fitted, by all processes, is kept with the training.
    """
    config, network = context.config.predict, context.network

    def fitted(name: str, model: nn.Module, content: Mapping[str, Any], fit: Fit) -> dict[str, Any]:
        def compute() -> dict[str, Any]:
            with context.progress(f"fitting {name}", len(validation)) as bar:
                return fit(predict(model, validation, context.fabric, bar))

        values: dict[str, Any] = context.keep_together(context.keep, name, content, compute)
        return values

    if config.feature_clipping:
        network = _clipped(network, fitted)
    if config.tta is not None:
        network = _averaged(network, config, config.tta.model_dump(), fitted)
    return replace(context, network=network)


Fit = Callable[[Predictions], dict[str, Any]]
Fitted = Callable[[str, nn.Module, Mapping[str, Any], Fit], dict[str, Any]]


def _clipped(network: nn.Module, fitted: Fitted) -> nn.Module:
    clipped = ClippedFeatures(network)

    def fit(found: Predictions) -> dict[str, Any]:
        threshold = clipped.fit(found.logits, found.labels).threshold
        return {"threshold": None if math.isinf(threshold) else threshold}

    values = fitted("feature-clipping", Method(clipped, clipped.features), {}, fit)
    clipped.threshold = math.inf if values["threshold"] is None else values["threshold"]
    return clipped


def _averaged(
    network: nn.Module, config: PredictConfig, options: dict[str, Any], fitted: Fitted
) -> nn.Module:
    copies = AveragedCopies(network, **options)
    if not copies.is_fitted:
        content = config.model_dump(mode="json", include={"tta", "feature_clipping"})

        def fit(found: Predictions) -> dict[str, Any]:
            return {"shares": copies.fit(found.logits, found.labels).shares.tolist()}

        values = fitted("tta", Method(copies, copies.each), content, fit)
        copies.shares.copy_(copies.shares.new_tensor(values["shares"]))
        copies.is_fitted = True
    device = next((each.device for each in network.parameters()), None)
    return LogProbabilities(copies.to(device))


class Method(nn.Module):
    """A function in the place of the forward pass of the module that it uses."""

    def __init__(self, module: nn.Module, method: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, images: Tensor) -> Tensor:
        return self.method(images)
