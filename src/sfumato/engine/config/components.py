"""Parts of a run, built from its configuration: what the run supplies, and the user's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from sfumato._core.data_root import placed
from sfumato._core.spec import Spec
from sfumato.augment import BatchAugment, ObjectnessLabels
from sfumato.augment.soft_labels import LabelSample
from sfumato.data import ArrayDataset
from sfumato.data.prepare import Statistics, image_shape
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.own_parts import Named, check_built, is_of_a_batch
from sfumato.engine.config.part_kinds import Task
from sfumato.engine.config.parts import is_own, resolve_part
from sfumato.engine.config.sections import ConfigError, TrainCopies
from sfumato.engine.training.copies import CopiesLoss
from sfumato.engine.training.transforms import TransformBatch


def build_part(kind: Named, spec: Spec, *, task: Task | None = None, **supplied: Any) -> Any:
    """The part that a spec names; of what is supplied it gets what its signature asks for."""
    resolved = resolve_part(kind, spec, task)
    wanted = inspect.signature(resolved.build).parameters
    taken = {
        key: value
        for key, value in supplied.items()
        if key in wanted and key not in resolved.params
    }
    if is_of_a_batch(kind, resolved.build):
        return partial(resolved.build, **taken, **resolved.params)
    params = placed(resolved) if kind == "data" else resolved.params
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
    """The loss module, told what it asks for.

    Args:
        spec: names it.
        num_samples: size of the training set, for losses that remember each sample.
        num_classes: for losses that keep something of each class.
        epochs: of the whole training, for losses that change on the way.
        class_weight: (C,), for losses that weigh classes.
        copies: of each sample in a batch, whose likelihoods are averaged.
    """
    whole: dict[str, Any] = {} if copies is None else {"reduction": "none"}
    loss = build_part(
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


def check_void(loss: nn.Module, dataset: ArrayDataset) -> None:
    """Raise where a loss would count pixels without a label, or leave labelled ones out."""
    ignored = getattr(loss, "ignore_index", dataset.void)
    if dataset.void is not None and ignored != dataset.void:
        raise ConfigError(
            f"loss: ignore_index is {ignored}, but void pixels have the label {dataset.void}: "
            "leave ignore_index out"
        )


class FunctionLoss(nn.Module):
    """A loss that is a function, or an object that is called like one, as a module.

    Args:
        function: of (logits, target), and perhaps index; keeps nothing from batch to batch.

    Attributes:
        name: of the function as a study names it, for messages.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        if hasattr(function, "end_epoch"):
            raise TypeError(
                f"{type(function).__name__} has `end_epoch`, so it remembers something: make it a "
                "torch.nn.Module that keeps it in buffers, which are in checkpoints"
            )
        super().__init__()
        self.forward = function  # its own signature tells whether it takes an index
        self.name = _name_of(function)


def _name_of(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, partial) else function
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}:{named.__qualname__}"


def build_model(spec: Spec, dataset: ArrayDataset) -> nn.Module:
    """A network for the data's classes and images, with weights from the global random state."""
    channels, size = image_shape(dataset)
    return build_network(
        spec,
        num_classes=dataset.num_classes,
        in_channels=channels,
        image_size=size,
        vocabulary=dataset.vocabulary,
    )


def build_network(
    spec: Spec,
    *,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, int],
    vocabulary: Vocabulary | None = None,
) -> nn.Module:
    """A network for classes and images of these numbers, or for texts of these words."""
    network: nn.Module = build_part(
        "model",
        spec,
        num_classes=num_classes,
        in_channels=in_channels,
        image_size=image_size,
        data_size=image_size,
        vocabulary_size=0 if vocabulary is None else vocabulary.size,
        embeddings=None if vocabulary is None else vocabulary.vectors,
    )
    return network


def without_weights(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same network from scratch: no file is read, nothing is downloaded."""
    sources = ("weights", "weights_digest", "pretrained", "weights_backbone")
    return {key: value for key, value in spec.items() if key not in sources}


def without_download(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same network, from its file of weights or from scratch."""
    downloads = ("pretrained", "weights_backbone")
    return {key: value for key, value in spec.items() if key not in downloads}


def build_augmentation(spec: Spec | None) -> BatchAugment | None:
    """The batch augmentation that a spec names."""
    return None if spec is None else build_part("augment", spec)


def build_labels(spec: Spec | None, *, num_classes: int) -> ObjectnessLabels | LabelSample | None:
    """How labels are made from the image, or None for the data's own."""
    return None if spec is None else build_part("labels", spec, num_classes=num_classes)


def build_inputs(
    spec: Spec | None, *, num_classes: int, statistics: Statistics
) -> TransformBatch | None:
    """The input smoothing that a spec names.

    Args:
        spec: names it.
        num_classes: of the data.
        statistics: mean and std that images are standardised by, told to ours; a user's own may
            have a `mean` that means something else.
    """
    if spec is None:
        return None
    mean, std = statistics
    is_users = is_own("inputs", resolve_part("inputs", spec).name)
    told: dict[str, Any] = {} if is_users else {"mean": mean, "std": std}
    return build_part("inputs", spec, num_classes=num_classes, **told)
