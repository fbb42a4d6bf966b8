"""What a configuration can name: models, losses, augmentations ..., each a literal table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import labels
from sfumato._spec import Resolved, Spec, resolve
from sfumato.data import DETECTION_SOURCES, SOURCES, ArrayDataset, BatchAugment
from sfumato.engine.augmentation import AUGMENTATIONS
from sfumato.engine.soft_labels import LABELS, ObjectnessLabels
from sfumato.engine.transforms import mollify
from sfumato.features import add_dropout, add_smoothing
from sfumato.inputs import Mollify
from sfumato.models import (
    faster_rcnn,
    is_segmentation_model,
    resnet,
    torchvision_model,
    torchvision_segmentation,
    unet,
    vgg,
)

MODELS: dict[str, Callable[..., nn.Module]] = {"resnet": resnet, "vgg": vgg, "unet": unet}
SEGMENTATION_MODELS = ("unet",)
DETECTORS: dict[str, Callable[..., nn.Module]] = {"faster_rcnn": faster_rcnn}
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "cross_entropy": labels.CrossEntropyLoss,
    "focal": labels.FocalLoss,
    "flsd": labels.FLSDLoss,
    "ecp": labels.ECPLoss,
    "mmce": labels.MMCELoss,
    "mdca": labels.MDCALoss,
    "cpc": labels.CPCLoss,
    "crl": labels.CRLLoss,
    "mbls": labels.MbLSLoss,
    "acls": labels.ACLSLoss,
}
INPUTS: dict[str, Callable[..., Mollify]] = {"mollify": mollify}

# Set from the data or by the run, never by the user.
SUPPLIED = (
    "num_classes",
    "in_channels",
    "image_size",
    "num_samples",
    "class_weight",
    "reduction",
)
FROM_CLASSIFIER = ("classifier", "mean", "std")
TORCHVISION = "torchvision:"


def resolve_data(spec: Spec) -> Resolved:
    """Check a data spec without loading anything."""
    return resolve(spec, {**SOURCES, **DETECTION_SOURCES}, "data")


def resolve_model(spec: Spec) -> Resolved:
    """Check a model spec; `torchvision:resnet50` names any torchvision model."""
    name = spec if isinstance(spec, str) else spec.get("name", "")
    if name in DETECTORS:
        return resolve_detector(spec)
    if not str(name).startswith(TORCHVISION):
        return resolve(spec, MODELS, "model", supplied=SUPPLIED)

    def build(
        *,
        num_classes: int,
        in_channels: int,
        image_size: tuple[int, int],
        weights: str | None = None,
        smooth: bool = False,
        dropout: float = 0.0,
    ) -> nn.Module:
        if in_channels != 3:
            raise ValueError(f"torchvision models take 3 channels, the data has {in_channels}")
        inner = str(name).removeprefix(TORCHVISION)
        make = torchvision_segmentation if is_segmentation_model(inner) else torchvision_model
        model: nn.Module = make(inner, num_classes=num_classes, weights=weights)
        if dropout:
            model = add_dropout(model, dropout)
        return add_smoothing(model, torch.zeros(2, 3, *image_size)) if smooth else model

    return resolve(spec, {str(name): build}, "model", supplied=SUPPLIED)


def resolve_detector(spec: Spec) -> Resolved:
    """Check a detector's spec; its trunk and standardisation come from a classifier run."""
    return resolve(spec, DETECTORS, "model", supplied=(*SUPPLIED, *FROM_CLASSIFIER))


def resolve_loss(spec: Spec) -> Resolved:
    """Check a loss spec; what depends on the data is supplied by `build_loss`."""
    return resolve(spec, LOSSES, "loss", supplied=SUPPLIED)


def resolve_augmentation(spec: Spec) -> Resolved:
    """Check an augmentation spec."""
    return resolve(spec, AUGMENTATIONS, "augment")


def resolve_inputs(spec: Spec) -> Resolved:
    """Check an input-smoothing spec."""
    return resolve(spec, INPUTS, "inputs", supplied=SUPPLIED)


def resolve_labels(spec: Spec) -> Resolved:
    """Check a spec of labels made from the image."""
    return resolve(spec, LABELS, "labels")


def build_loss(spec: Spec, *, num_samples: int, class_weight: Tensor | None = None) -> nn.Module:
    """The loss module; `num_samples` goes to losses that keep a history of each sample."""
    resolved = resolve_loss(spec)
    extra: dict[str, Any] = {"num_samples": num_samples} if resolved.name == "crl" else {}
    if class_weight is not None:
        extra["class_weight"] = class_weight
    return resolved.build(**extra, **resolved.params)


def build_model(spec: Spec, dataset: ArrayDataset) -> nn.Module:
    """A network for the data's classes and images, with weights from the global random state."""
    _, channels, height, width = dataset.images.shape
    return build_network(
        spec,
        num_classes=dataset.num_classes,
        in_channels=channels,
        image_size=(height, width),
    )


def build_network(
    spec: Spec, *, num_classes: int, in_channels: int, image_size: tuple[int, int]
) -> nn.Module:
    """A network for images and classes of these numbers; only torchvision's ask for the size."""
    resolved = resolve_model(spec)
    extra = {"image_size": image_size} if resolved.name.startswith(TORCHVISION) else {}
    return resolved.build(
        num_classes=num_classes, in_channels=in_channels, **extra, **resolved.params
    )


def without_weights(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same network from scratch, for which nothing is downloaded."""
    return {**spec, "weights": None} if "weights" in spec else dict(spec)


def build_augmentation(spec: Spec | None) -> BatchAugment | None:
    """The batch augmentation that a spec names."""
    if spec is None:
        return None
    resolved = resolve_augmentation(spec)
    return resolved.build(**resolved.params)


def build_labels(spec: Spec | None) -> ObjectnessLabels | None:
    """How labels are made from the image, or None for the data's own."""
    if spec is None:
        return None
    resolved = resolve_labels(spec)
    labels: ObjectnessLabels = resolved.build(**resolved.params)
    return labels


def build_inputs(spec: Spec | None, *, num_classes: int) -> Mollify | None:
    """The input smoothing that a spec names."""
    if spec is None:
        return None
    resolved = resolve_inputs(spec)
    return resolved.build(num_classes=num_classes, **resolved.params)
