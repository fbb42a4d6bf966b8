"""Torchvision's segmentation networks (DeepLabV3, FCN, LR-ASPP), by their name there."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato.models.torchvision_models import fetch_weights
from sfumato.models.weights import fit_weights


class PixelLogits(nn.Module):
    """The main output of a torchvision segmentation network alone: logits (N, K, H, W)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)["out"]
        return logits


def is_segmentation_model(name: str) -> bool:
    """Whether torchvision has a segmentation network of this name."""
    from torchvision import models

    return name in models.list_models(module=models.segmentation)


def torchvision_segmentation(
    name: str, *, num_classes: int, weights: str | None = None, weights_backbone: str | None = None
) -> PixelLogits:
    """Build `torchvision.models.segmentation.<name>`, giving logits for `num_classes`.

    Args:
        name: `deeplabv3_mobilenet_v3_large`, `deeplabv3_resnet50`, `fcn_resnet50`,
            `lraspp_mobilenet_v3_large` ...
        num_classes: number of logits of each pixel; with `weights`, the last layers start anew
            where they have another size.
        weights: a weights name such as `DEFAULT`; asks torchvision to download them. None
            (default) starts from scratch, backbone included, and downloads nothing.
        weights_backbone: the same for the classifier that it is built on alone, as
            `IMAGENET1K_V1`; the papers begin with these.

    Raises:
        ValueError: torchvision has no such segmentation network, or both kinds of weights.

    Example:
        >>> import torch
        >>> network = torchvision_segmentation("lraspp_mobilenet_v3_large", num_classes=11).eval()
        >>> network(torch.zeros(1, 3, 45, 60)).shape
        torch.Size([1, 11, 45, 60])
    """
    from torchvision import models

    if not is_segmentation_model(name):
        known = ", ".join(models.list_models(module=models.segmentation))
        raise ValueError(f"torchvision has no segmentation model {name!r}; it has {known}")
    if weights is not None and weights_backbone is not None:
        raise ValueError(
            f"weights {weights!r} hold those of the backbone: leave weights_backbone "
            f"({weights_backbone!r}) out"
        )
    network = models.get_model(name, weights=None, weights_backbone=None, num_classes=num_classes)
    if weights is not None:
        found = fetch_weights(name, weights)
        # Of training with two losses, which this network is not given.
        state = {key: v for key, v in found.items() if not key.startswith("aux_classifier.")}
        fit_weights(network, state, f"{weights} of torchvision:{name}")
    if weights_backbone is not None:
        _fit_backbone(network.backbone, backbone_of(name), weights_backbone)
    return PixelLogits(network)


def backbone_of(name: str) -> str:
    """The classifier that a segmentation network is built on.

    Example:
        >>> backbone_of("deeplabv3_mobilenet_v3_large")
        'mobilenet_v3_large'
    """
    return name.partition("_")[2]


def _fit_backbone(backbone: nn.Module, name: str, weights: str) -> None:
    """A trunk is the classifier's layers, or its `features`, without what comes after them."""
    found = fetch_weights(name, weights)
    own = backbone.state_dict()
    state = {key.removeprefix("features."): value for key, value in found.items()}
    source = f"{weights} of torchvision:{name}"
    fit_weights(backbone, {key: v for key, v in state.items() if key in own}, source)
