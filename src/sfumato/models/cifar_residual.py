"""Residual networks of three stages for small images: Wide ResNet and ResNeXt-29.

Wide Residual Networks, Zagoruyko & Komodakis, BMVC 2016; Aggregated Residual Transformations for
Deep Neural Networks, Xie et al., CVPR 2017.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato._core.checks import check_integer
from sfumato.models.heads import Head, classifier
from sfumato.models.network import StagedNetwork
from sfumato.models.parts import Activation, Norm, Parts, SmoothOptions, convolution
from sfumato.models.residual import (
    Conv,
    basic_convolutions,
    preactivation_block,
    residual_block,
)

_STAGES = 3


def wide_resnet(
    depth: int = 40,
    *,
    num_classes: int,
    widen: int = 2,
    in_channels: int = 3,
    norm: Norm = "batch",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "gap",
    activation: Activation = "relu",
) -> StagedNetwork:
    """A Wide ResNet: pre-activation blocks with 16, 32 and 64 times `widen` channels.

    Args:
        depth: number of weighted layers, 6n + 4 for n blocks a stage: 16, 22, 28, 40 ...
        num_classes: number of logits.
        widen: factor of the channels; WRN-40-2 has 2.
        in_channels: channels of the images.
        norm: `batch`, or `group` where batches are small or split between processes.
        smooth: True adds spatial smoothing after each stage but the last; a mapping says where and
            how, see `SmoothOptions`.
        dropout: rate of one dropout layer in each block, before its last convolution.
        head: the classifier; see `sfumato.models.heads`.
        activation: `relu` or `relu6`.

    Raises:
        ValueError: a depth that is not 6n + 4, or another unknown choice.

    Example:
        >>> sum(p.numel() for p in wide_resnet(40, num_classes=10).parameters())
        2243546

    Reference:
        Zagoruyko & Komodakis 2016, Table 1; named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=10)
    check_integer("widen", widen, low=1)
    if (depth - 4) % 6:
        raise ValueError(f"depth must be 6n + 4, as 16, 22, 28 or 40, got {depth}")
    parts = Parts(norm, activation, dropout, smooth)
    count = (depth - 4) // 6
    stages: list[nn.Module] = []
    inputs = 16
    for number in range(_STAGES):
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for block in range(count):
            convs = basic_convolutions(16 * widen * 2**number, _stride(number, block))
            blocks[str(block)] = preactivation_block(inputs, convs, parts)
            inputs = convs[-1].outputs
        if parts.smooths(number + 1, _STAGES, usually=number < _STAGES - 1):
            blocks.update(parts.smooth_layer(inplace=True))
        stages.append(nn.Sequential(blocks))
    end = OrderedDict(
        norm=parts.norm_layer(inputs),
        activation=parts.activation_layer(),
        **dict(classifier(head, inputs, num_classes, side=4).named_children()),
    )
    check_integer("in_channels", in_channels, low=1)
    stem = nn.Sequential(convolution(in_channels, 16, 3))
    return StagedNetwork(stem, stages, nn.Sequential(end))


def resnext(
    depth: int = 29,
    *,
    num_classes: int,
    cardinality: int = 4,
    group_width: int = 32,
    in_channels: int = 3,
    norm: Norm = "batch",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "gap",
    activation: Activation = "relu",
) -> StagedNetwork:
    """A ResNeXt for small images: bottlenecks with grouped convolutions, 256, 512, 1024 channels.

    Args:
        depth: number of weighted layers, 9n + 2 for n blocks a stage: 29, 38, 47 ...
        num_classes: number of logits.
        cardinality: groups of each 3x3 convolution.
        group_width: channels of each group in the first stage; the others double them.
        in_channels: channels of the images.
        norm: `batch`, or `group` where batches are small or split between processes.
        smooth: True adds spatial smoothing after each stage; a mapping says where and how, see
            `SmoothOptions`.
        dropout: rate of one dropout layer in each block, before its last convolution.
        head: the classifier; see `sfumato.models.heads`.
        activation: `relu` or `relu6`.

    Raises:
        ValueError: a depth that is not 9n + 2, or another unknown choice.

    Example:
        >>> sum(p.numel() for p in resnext(num_classes=10).parameters())
        6807882

    Reference:
        Xie et al. 2017, Section 5.2 (8 and 16 groups of 64); four groups of 32 are the ResNeXt-29
        (32x4) of robustness studies on CIFAR-C, named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=11)
    check_integer("cardinality", cardinality, low=1)
    check_integer("group_width", group_width, low=1)
    check_integer("in_channels", in_channels, low=1)
    if (depth - 2) % 9:
        raise ValueError(f"depth must be 9n + 2, as 29, 38 or 47, got {depth}")
    parts = Parts(norm, activation, dropout, smooth)
    stages: list[nn.Module] = []
    inputs = 64
    for number in range(_STAGES):
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        count = (depth - 2) // 9
        smooths = parts.smooths(number + 1, _STAGES)
        for block in range(count):
            middle, stride = cardinality * group_width * 2**number, _stride(number, block)
            outputs = 256 * 2**number
            convs = [Conv(middle, 1), Conv(middle, 3, stride, cardinality), Conv(outputs, 1)]
            hands_over = block == count - 1 and smooths and parts.smooth_activates
            blocks[str(block)] = residual_block(inputs, convs, parts, activate=not hands_over)
            inputs = outputs
        if smooths:
            blocks.update(parts.smooth_layer(inplace=parts.smooth_activates))
        stages.append(nn.Sequential(blocks))
    stem = nn.Sequential(
        convolution(in_channels, 64, 3), parts.norm_layer(64), parts.activation_layer()
    )
    return StagedNetwork(stem, stages, classifier(head, inputs, num_classes, side=4))


def _stride(stage: int, block: int) -> int:
    return 2 if stage > 0 and block == 0 else 1
