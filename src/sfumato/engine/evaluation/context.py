"""`Context`, what all measurements of a network share: its predictor, run, seeds and resamples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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
        means = self._means(images)
        for size, seen in self._seen.items():
            seen.append(log_probabilities(means[size]).cpu())
        return log_probabilities(means[max(means)])

    def _means(self, images: Tensor) -> dict[int, Tensor]:
        """Mean probabilities by the number of samples."""
        if isinstance(self.sampler, DeepEnsemble):
            return self.sampler.curve(images)
        return self.sampler.curve(images, [*self.sizes, self.sampler.samples])

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


@dataclass
class Predictors:
    """The usual predictor, and one that gives the smaller ensembles from the same passes."""

    # Maybe in the wrapper that Fabric puts around it.
    network: nn.Module
    config: Sections
    curve: SampleCurve | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        samples = self.config.predict.mc_dropout
        self.averaging: MCDropout | DeepEnsemble | None = None
        if isinstance(self.plain, DeepEnsemble):
            self.averaging = self.plain
        elif samples is not None:
            self.averaging = MCDropout(self.plain, samples)
        self.usual = self.network if self.averaging is None else LogProbabilities(self.averaging)

    @property
    def plain(self) -> nn.Module:
        """The network without the wrapper that Fabric puts around it."""
        inner = getattr(self.network, "module", self.network)
        return inner if isinstance(inner, nn.Module) else self.network

    @property
    def sizes(self) -> list[int]:
        """Sizes of the ensembles that are measured."""
        if isinstance(self.averaging, DeepEnsemble):
            return list(range(1, len(self.averaging.models) + 1))
        return self.config.evaluate.ensemble_sizes

    def with_curve(self) -> nn.Module:
        """The usual predictor; where its passes also give the smaller ensembles, both."""
        averaging = self.averaging
        if averaging is None or not self.sizes:
            return self.usual
        if isinstance(averaging, MCDropout) and max(self.sizes) > averaging.samples:
            return self.usual
        self.curve = SampleCurve(averaging, self.sizes)
        return self.curve

    def new_curve(self) -> SampleCurve:
        """All ensembles that are measured, for passes of their own."""
        averaging = self.averaging
        if not isinstance(averaging, DeepEnsemble):
            samples = max(*self.sizes, self.config.predict.mc_dropout or 1)
            averaging = MCDropout(self.plain, samples)
        self.curve = SampleCurve(averaging, self.sizes)
        return self.curve


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

    def __post_init__(self) -> None:
        self.predictors = Predictors(self.network, self.config)
        self.predictor = self.predictors.usual
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
    def local_predictor(self) -> nn.Module:
        """The predictor for one process that works alone."""
        # A wrapper for several processes waits for the others, which take no part.
        is_local = self.fabric.world_size == 1 or self.predictors.averaging is not None
        return self.predictor if is_local else self.predictors.plain

    @property
    def gradient_batch(self) -> int:
        """Images at once where gradients take as much memory as in a training step."""
        batch = min(self.batch_size, self.config.train.batch_size)
        return max(1, batch // passes_per_image(self.config.predict))

    def normalise(self) -> Normalise:
        """Return the standardisation, on the device."""
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
        """Seed the random numbers of one measurement.

        Each has a stream of its own, so that its numbers do not depend on which others are made.
        """
        path = ("predictions", name, self.fabric.global_rank)
        torch.manual_seed(fold_seed(self.config.seed, *path))

    def read(self, name: str) -> Predictions:
        """Return the predictions of a split."""
        return self.predictions[name] if self.run is None else self.run.read_predictions(name)

    def keep(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Compute a result with its own random numbers, or read what the run has cached of it."""
        if self.run is None:
            return dict(self._seeded(name, compute)())
        return self.run.keep(name, content, self._seeded(name, compute))

    def keep_arrays(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Arrays]
    ) -> Arrays:
        """`keep` for arrays of one number for each image; Args as there."""
        if self.run is None:
            return self._seeded(name, compute)()
        return self.run.keep_arrays(name, content, self._seeded(name, compute))

    def _seeded(self, name: str, compute: Callable[[], Result]) -> Callable[[], Result]:
        def seeded() -> Result:
            self.seed(name)
            return compute()

        return seeded


def prepare_network(
    network: nn.Module,
    config: PredictConfig,
    *,
    fabric: Fabric,
    directory: RunDirectory,
    validation: TensorLoader,
    show: bool,
) -> nn.Module:
    """The network as `predict` wants it: clipped, averaged over copies, or as it came.

    What is fitted is kept with the training, so that later evaluations need no passes for it. All
    processes take part.
    """

    def fitted(name: str, model: nn.Module, content: Mapping[str, Any], fit: Fit) -> dict[str, Any]:
        def compute() -> Mapping[str, Any]:
            with progress_bar(f"fitting {name}", len(validation), show=show) as bar:
                return fit(predict(model, validation, fabric, bar))

        if fabric.world_size == 1:
            return directory.keep(name, content, compute)
        values = dict(compute())  # of all processes together, so that each of them knows it
        return directory.keep(name, content, lambda: values) if fabric.is_global_zero else values

    if config.feature_clipping:
        network = _clipped(network, fitted)
    if config.tta is not None:
        network = _averaged(network, config, fitted)
    return network


Fit = Callable[[Predictions], Mapping[str, Any]]
Fitted = Callable[[str, nn.Module, Mapping[str, Any], Fit], dict[str, Any]]


def _clipped(network: nn.Module, fitted: Fitted) -> nn.Module:
    clipped = ClippedFeatures(network)

    def fit(found: Predictions) -> Mapping[str, Any]:
        threshold = clipped.fit(found.logits, found.labels).threshold
        return {"threshold": None if math.isinf(threshold) else threshold}

    values = fitted("feature-clipping", _Method(clipped, clipped.features), {}, fit)
    clipped.threshold = math.inf if values["threshold"] is None else values["threshold"]
    return clipped


def _averaged(network: nn.Module, config: PredictConfig, fitted: Fitted) -> nn.Module:
    if config.tta is None:
        return network
    copies = AveragedCopies(network, **config.tta.model_dump())
    if not copies.is_fitted:
        content = config.model_dump(mode="json", include={"tta", "feature_clipping"})

        def fit(found: Predictions) -> Mapping[str, Any]:
            return {"shares": copies.fit(found.logits, found.labels).shares.tolist()}

        values = fitted("tta", _Method(copies, copies.each), content, fit)
        copies.shares.copy_(copies.shares.new_tensor(values["shares"]))
        copies.is_fitted = True
    device = next((each.device for each in network.parameters()), None)
    return LogProbabilities(copies.to(device))


class _Method(nn.Module):
    """A method of a module in the place of its forward pass."""

    def __init__(self, module: nn.Module, method: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, images: Tensor) -> Tensor:
        return self.method(images)
