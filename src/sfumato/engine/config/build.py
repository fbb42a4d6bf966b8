"""Build the components of a run from its configuration, its data and its devices."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.spec import Spec, params_in_data_root
from sfumato.augment import BatchAugment, ObjectnessLabels, Recipe, split_copies
from sfumato.augment.recipes import LabelSample
from sfumato.data import ArrayDataset
from sfumato.data.dataset import Statistics, image_shape
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.components import check_built, is_of_a_batch, is_own, resolve_component
from sfumato.engine.config.kinds import Named, Task
from sfumato.engine.config.sections import ConfigError, TrainConfig, TrainCopies
from sfumato.engine.fabric import Fabric
from sfumato.labels import (
    bias_corrected_log_likelihood,
    jensen_log_likelihood,
    monte_carlo_log_likelihood,
)

# From images and targets to images and targets.
TransformBatch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def build_component(kind: Named, spec: Spec, *, task: Task | None = None, **supplied: Any) -> Any:
    """The part that a spec names; of what is supplied it gets what its signature asks for."""
    resolved = resolve_component(kind, spec, task)
    wanted = inspect.signature(resolved.build).parameters
    taken = {
        key: value
        for key, value in supplied.items()
        if key in wanted and key not in resolved.params
    }
    if is_of_a_batch(kind, resolved.build):
        return partial(resolved.build, **taken, **resolved.params)
    params = params_in_data_root(resolved) if kind == "data" else resolved.params
    built = resolved.build(**taken, **params)
    if is_own(kind, resolved.name):
        check_built(kind, resolved.name, built)
    return built


def build_loss(
    spec: Spec,
    *,
    num_samples: int,
    num_classes: int,
    epochs: int,
    class_weight: Tensor | None = None,
    copies: TrainCopies | None = None,
) -> nn.Module:
    whole: dict[str, Any] = {} if copies is None else {"reduction": "none"}
    loss = build_component(
        "loss",
        spec,
        num_samples=num_samples,
        num_classes=num_classes,
        epochs=epochs,
        class_weight=class_weight,
        **whole,
    )
    loss = loss if isinstance(loss, nn.Module) else FunctionLoss(loss)
    return loss if copies is None else CopiesLoss(loss, copies.count, copies.estimator)


ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "jensen": jensen_log_likelihood,
    "monte_carlo": monte_carlo_log_likelihood,
    "bias_corrected": bias_corrected_log_likelihood,
}


class CopiesLoss(nn.Module):
    """Minus the mean log-likelihood of samples, each averaged over its copies.

    Reference:
        Mollification paper, appendix D, Eq. (19), (22) and (25).
    """

    def __init__(self, loss: nn.Module, copies: int, estimator: str) -> None:
        super().__init__()
        self.loss = loss
        self.copies = copies
        self.estimator = ESTIMATORS[estimator]

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        # Row k N + n of a batch is copy k of sample n.
        log_likelihood = split_copies(-self.loss(logits, target), self.copies)  # (K, N)
        return -self.estimator(log_likelihood).mean()


def check_void(loss: nn.Module, dataset: ArrayDataset) -> None:
    """Raise where a loss would count pixels without a label, or leave labelled ones out."""
    ignored = getattr(loss, "ignore_index", dataset.void)
    if dataset.void is not None and ignored != dataset.void:
        raise ConfigError(
            f"loss: ignore_index is {ignored}, but void pixels have the label {dataset.void}: "
            "leave ignore_index out"
        )


class FunctionLoss(nn.Module):
    """A loss that is a function, or an object that is called like one, as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        if hasattr(function, "end_epoch"):
            raise TypeError(
                f"{type(function).__name__} has `end_epoch`, so it remembers something: make it a "
                "torch.nn.Module that keeps it in buffers, which are in checkpoints"
            )
        super().__init__()
        self.forward = function  # its own signature tells whether it takes an index
        inner = function.func if isinstance(function, partial) else function
        named = inner if hasattr(inner, "__qualname__") else type(inner)
        self.name = f"{named.__module__}:{named.__qualname__}"


@dataclass(frozen=True)
class DataShape:
    """Data that a network is built for: numbers of classes and images, or the words of texts."""

    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    vocabulary: Vocabulary | None = None

    @classmethod
    def of(cls, dataset: ArrayDataset) -> DataShape:
        return cls(dataset.num_classes, *image_shape(dataset), dataset.vocabulary)


def build_network(spec: Spec, shape: DataShape) -> nn.Module:
    """A network for data of a shape, with weights from the global random state."""
    words = shape.vocabulary
    network: nn.Module = build_component(
        "model",
        spec,
        num_classes=shape.num_classes,
        in_channels=shape.in_channels,
        image_size=shape.image_size,
        data_size=shape.image_size,
        vocabulary_size=0 if words is None else words.size,
        embeddings=None if words is None else words.vectors,
    )
    return network


_DOWNLOADS = ("pretrained", "weights_backbone")


def without_weights(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same network from scratch: no file is read, nothing is downloaded."""
    sources = ("weights", "weights_digest", *_DOWNLOADS)
    return {key: value for key, value in spec.items() if key not in sources}


def without_download(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same network, from its file of weights or from scratch."""
    return {key: value for key, value in spec.items() if key not in _DOWNLOADS}


def build_augmentation(spec: Spec | None) -> BatchAugment | None:
    return None if spec is None else build_component("augment", spec)


def build_labels(spec: Spec | None, *, num_classes: int) -> ObjectnessLabels | LabelSample | None:
    """Build what makes labels from the image, or None for the data's own."""
    return None if spec is None else build_component("labels", spec, num_classes=num_classes)


def build_inputs(
    spec: Spec | None, *, num_classes: int, statistics: Statistics
) -> TransformBatch | None:
    if spec is None:
        return None
    mean, std = statistics
    # A user's own may have a `mean` that means something else.
    is_users = is_own("inputs", resolve_component("inputs", spec).name)
    told: dict[str, Any] = {} if is_users else {"mean": mean, "std": std}
    return build_component("inputs", spec, num_classes=num_classes, **told)


@dataclass(frozen=True)
class BatchTransform:
    """Mixing and mollification in the papers' order, from the global random state."""

    num_classes: int
    recipe: Recipe | None = None
    mollify: TransformBatch | None = None

    def __call__(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        images, target = self.mix(images, target)
        return (images, target) if self.mollify is None else self.mollify(images, target)

    def mix(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.recipe is None:
            return images, target
        return self.recipe.mix(images, target, num_classes=self.num_classes)


def batch_transform(
    num_classes: int, augment: BatchAugment | None, mollification: TransformBatch | None
) -> BatchTransform | None:
    """The transform that a run needs, or None where its batches stay as they are."""
    recipe = augment if isinstance(augment, Recipe) and augment.mixing is not None else None
    if recipe is None and mollification is None:
        return None
    return BatchTransform(num_classes, recipe, mollification)


def build_fabric(train: TrainConfig) -> Fabric:
    """Fabric as a `train` section describes it; nothing is started yet."""
    name, strategy = train.accelerator, train.strategy
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not found.get(name, True) or (name == "gpu" and not any(found.values())):
        raise ValueError(
            f"accelerator: {name} is not available, PyTorch finds no such device here. Say cpu, or "
            "auto, which takes what there is"
        )
    # Plain DDP starts its processes itself, instead of giving the whole command once more. Under
    # torchrun and srun they are there already.
    several = isinstance(train.devices, int) and train.devices > 1 and train.num_nodes == 1
    started = "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ
    if several and not started and strategy in ("auto", "ddp"):
        strategy = "ddp_spawn"
    return Fabric(
        accelerator=name,
        devices=train.devices,
        strategy=strategy,
        precision=train.precision,
        num_nodes=train.num_nodes,
    )
