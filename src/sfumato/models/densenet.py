"""DenseNet for small images: every layer reads the maps of all layers before it.

Densely Connected Convolutional Networks, Huang et al., CVPR 2017.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato.models.layers import (
    Activation,
    Head,
    LayerOptions,
    Norm,
    SmoothOptions,
    StagedNetwork,
    check_sizes,
    classifier,
    convolution,
)

_STAGES = 3
_STEM = 16


class DenseLayer(nn.Module):
    """A layer that passes its input on, with the channels that it adds behind it."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


def densenet(
    depth: int = 40,
    *,
    num_classes: int,
    growth: int = 12,
    in_channels: int = 3,
    norm: Norm = "batch",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "gap",
    activation: Activation = "relu",
) -> StagedNetwork:
    """A DenseNet without bottlenecks and compression: three blocks of `growth` channels a layer.

    `num_classes`, `in_channels`, `norm`, `head` and `activation` are those of `resnet`.

    Args:
        depth: number of weighted layers, 3n + 4 for n layers a block: 40, 100 ...
        growth: channels that each layer adds; DenseNet-40-12 has 12.
        smooth: True adds spatial smoothing before both down-samplings; a mapping says where and
            how, see `SmoothOptions`.
        dropout: rate of a dropout layer after each convolution but the first; the paper's 0.2
            without augmentation.

    Example:
        >>> sum(p.numel() for p in densenet(40, num_classes=10).parameters())
        1019722

    Reference:
        Huang et al. 2017, Section 3 and Table 2; named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=7)
    check_sizes(growth=growth, in_channels=in_channels)
    if (depth - 4) % 3:
        raise ValueError(f"depth must be 3n + 4, as 40 or 100, got {depth}")
    shared = LayerOptions(norm, activation, dropout, smooth)
    stages: list[nn.Module] = []
    channels = _STEM
    for number in range(_STAGES):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for layer in range((depth - 4) // 3):
            layers[f"layer{layer}"] = DenseLayer(_convolved(channels, growth, 3, shared))
            channels += growth
        if number < _STAGES - 1:
            layers["transition"] = _convolved(channels, channels, 1, shared)
            if shared.smooths(number + 1, _STAGES - 1):
                layers.update(shared.smooth_layer(inplace=not shared.dropout))
            layers["pool"] = nn.AvgPool2d(2)
        stages.append(nn.Sequential(layers))
    end = classifier(head, channels, num_classes, side=4, activation=activation)
    stem = nn.Sequential(convolution(in_channels, _STEM, 3))
    return StagedNetwork(stem, stages, shared.activated(channels, end))


def _convolved(inputs: int, outputs: int, size: int, shared: LayerOptions) -> nn.Sequential:
    """Norm, activation and convolution, and dropout behind them."""
    return nn.Sequential(
        OrderedDict(
            norm=shared.norm_layer(inputs),
            activation=shared.activation_layer(),
            conv=convolution(inputs, outputs, size),
            **shared.dropout_layer(),
        )
    )
