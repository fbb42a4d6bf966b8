"""Networks of torchvision as a study names them: `torchvision:resnet50`."""

from __future__ import annotations

import torch
from torch import nn

from sfumato.features import add_dropout, add_smoothing
from sfumato.models import is_segmentation_model, torchvision_model, torchvision_segmentation


def torchvision_network(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, int],
    weights: str | None = None,
    smooth: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Any classifier or segmentation network of torchvision, smoothed and with dropout on demand.

    Args:
        name: as in `torchvision.models`.
        num_classes: number of logits.
        in_channels: must be 3.
        image_size: of the images; tells where the resolution changes, for `smooth`.
        weights: name of pretrained weights.
        smooth: whether to insert smoothing layers.
        dropout: rate of the dropout to insert.
    """
    if in_channels != 3:
        raise ValueError(f"torchvision models take 3 channels, the data has {in_channels}")
    make = torchvision_segmentation if is_segmentation_model(name) else torchvision_model
    model: nn.Module = make(name, num_classes=num_classes, weights=weights)
    if dropout:
        model = add_dropout(model, dropout)
    return add_smoothing(model, torch.zeros(2, 3, *image_size)) if smooth else model
