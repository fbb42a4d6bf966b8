"""Networks that predict in another way than they were trained, fitted on the validation set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from sfumato.data import TensorLoader
from sfumato.engine.config.predict_section import PredictConfig
from sfumato.engine.evaluation.predict import predict
from sfumato.engine.evaluation.stochastic import LogProbabilities
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Predictions, RunDirectory
from sfumato.engine.runs.progress import progress_bar
from sfumato.features import ClippedFeatures
from sfumato.inputs import AveragedCopies


def passes_per_image(config: PredictConfig) -> int:
    """How often an image goes through the network for one prediction."""
    if config.tta is None:
        return config.mc_dropout or 1
    return AveragedCopies(nn.Identity(), **config.tta.model_dump()).count


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
