"""The All Convolutional Net: strided convolutions in place of pooling.

Striving for Simplicity: The All Convolutional Net, Springenberg et al., ICLR workshop 2015.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato._core.checks import check_integer
from sfumato.models.heads import Head, classifier
from sfumato.models.network import StagedNetwork
from sfumato.models.parts import Activation, Norm, Parts, SmoothOptions, convolution

# Of each stage the convolutions as (factor of the width, size); the first of later stages strides.
_STAGES = (((1, 3), (1, 3)), ((1, 3), (2, 3), (2, 3)), ((2, 3), (2, 3), (2, 1)))


def allconv(
    *,
    num_classes: int,
    width: int = 96,
    in_channels: int = 3,
    norm: Norm = "batch",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "gap",
    activation: Activation = "relu",
) -> StagedNetwork:
    """All-CNN-C with normalisation: eight convolutions in three stages, then one for the classes.

    Args:
        num_classes: number of logits.
        width: channels at full resolution, later twice as many. The paper's 96.
        in_channels: channels of the images.
        norm: `batch`, or `group` where batches are small or split between processes.
        smooth: True adds spatial smoothing after each stage; a mapping says where and how, see
            `SmoothOptions`.
        dropout: rate of a dropout layer after each stage; the paper's 0.5.
        head: the classifier; `gap` is the paper's 1x1 convolution and mean, in the other order,
            which gives the same logits but for the ReLU in between.
        activation: `relu` or `relu6`.

    Example:
        >>> sum(p.numel() for p in allconv(num_classes=10).parameters())
        1370986

    Reference:
        Springenberg et al. 2015, Table 1 (base model C) and Section 3; named in mollification,
        footnote 2.

    Differs: the paper has biases and no norm. The form of robustness studies on CIFAR-C has maximum
    pooling, sigmoid-gated units and a second 1x1 convolution.
    """
    check_integer("width", width, low=1)
    check_integer("in_channels", in_channels, low=1)
    parts = Parts(norm, activation, dropout, smooth)
    stages: list[nn.Module] = []
    inputs = in_channels
    for number, convolutions in enumerate(_STAGES):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for place, (factor, size) in enumerate(convolutions, 1):
            stride = 2 if number > 0 and place == 1 else 1
            layers[f"conv{place}"] = convolution(inputs, factor * width, size, stride)
            layers[f"norm{place}"] = parts.norm_layer(factor * width)
            layers[f"activation{place}"] = parts.activation_layer()
            inputs = factor * width
        layers.update(parts.dropout_layer())
        if parts.smooths(number + 1, len(_STAGES)):
            layers.update(parts.smooth_layer(inplace=False))
        stages.append(nn.Sequential(layers))
    return StagedNetwork(nn.Identity(), stages, classifier(head, inputs, num_classes, side=4))
