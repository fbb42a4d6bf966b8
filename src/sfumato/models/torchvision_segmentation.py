"""Torchvision's segmentation networks (DeepLabV3, FCN, LR-ASPP), by their name there."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato.models.torchvision_models import check_weights


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
    name: str, *, num_classes: int, weights: str | None = None
) -> PixelLogits:
    """Build `torchvision.models.segmentation.<name>`, giving logits for `num_classes`.

    Args:
        name: `deeplabv3_mobilenet_v3_large`, `deeplabv3_resnet50`, `fcn_resnet50`,
            `lraspp_mobilenet_v3_large` ...
        num_classes: number of logits of each pixel; with `weights`, the last convolution is
            replaced where it has another size.
        weights: a weights name such as `DEFAULT`; asks torchvision to download them. None
            (default) starts from scratch, backbone included, and downloads nothing.

    Raises:
        ValueError: torchvision has no such segmentation network.

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
    if weights is None:
        network = models.get_model(
            name, weights=None, weights_backbone=None, num_classes=num_classes
        )
        return PixelLogits(network)
    check_weights(name, weights)
    network = models.get_model(name, weights=weights)
    _replace_last_convolution(network.classifier, num_classes)
    return PixelLogits(network)


def _replace_last_convolution(classifier: nn.Module, num_classes: int) -> None:
    """Fresh last layers for another number of classes; LR-ASPP has two that add up."""
    modules = list(classifier.named_modules())
    convolutions = [(name, part) for name, part in modules if isinstance(part, nn.Conv2d)]
    outputs = convolutions[-1][1].out_channels
    if outputs == num_classes:
        return
    for name, part in convolutions:
        is_head = name in ("low_classifier", "high_classifier") or part is convolutions[-1][1]
        if is_head:
            parent, _, child = name.rpartition(".")
            fresh = nn.Conv2d(part.in_channels, num_classes, (1, 1), bias=part.bias is not None)
            setattr(classifier.get_submodule(parent), child, fresh)
