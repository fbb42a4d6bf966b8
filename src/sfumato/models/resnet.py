"""Residual networks of the papers for small and large images.

Deep Residual Learning for Image Recognition, He et al., CVPR 2016; Aggregated Residual
Transformations, Xie et al., CVPR 2017; Wide Residual Networks, Zagoruyko & Komodakis, BMVC 2016.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from sfumato._core.checks import check_choice, check_integer
from sfumato.features import add_blur_pool
from sfumato.models.heads import Head, classifier
from sfumato.models.network import StagedNetwork
from sfumato.models.parts import Activation, Norm, Parts, SmoothOptions, convolution
from sfumato.models.residual import (
    Conv,
    basic_convolutions,
    bottleneck_convolutions,
    preactivation_block,
    residual_block,
)

Stem = Literal["cifar", "imagenet"]
Kind = Literal["standard", "preactivation", "resnext", "wide"]
Depth = Literal[8, 14, 18, 34, 50, 101]

_BLOCKS: dict[int, tuple[int, ...]] = {
    8: (1, 1, 1),
    14: (2, 2, 2),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
}


def resnet(
    depth: Depth = 18,
    *,
    num_classes: int,
    width: int = 64,
    stem: Stem = "cifar",
    norm: Norm = "batch",
    in_channels: int = 3,
    kind: Kind = "standard",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "gap",
    activation: Activation = "relu",
    blur_pool: bool | Literal["adaptive"] | None = None,
) -> StagedNetwork:
    """A residual network; depths 8 and 14 have three stages, the others four.

    Weights load into the same network with other `smooth`, `dropout` and `activation`.

    Args:
        depth: number of weighted layers; 50 and 101 use bottleneck blocks.
        num_classes: number of logits.
        width: channels of the first stage; each later stage doubles them. The papers' 64.
        stem: `cifar` (one 3x3 convolution, for 32 to 64 pixels) or `imagenet` (7x7 / 2, pooling).
        norm: `batch`, or `group` where batches are small or split between processes.
        in_channels: channels of the images.
        kind: `standard`; `preactivation` (norm and activation before each convolution); `resnext`
            (32 groups of width/16 channels: ResNeXt-50 32x4d); `wide` (twice as many channels
            inside the bottlenecks: Wide ResNet-50-2). The last two need depth 50 or 101.
        smooth: True adds spatial smoothing after each stage (`preactivation`: but the last); a
            mapping such as {"stages": [3], "kernel": (1, 2, 1)} says where and how.
        dropout: rate of one dropout layer in each block, before its last convolution. The paper
            takes 0.3 for CIFAR and 0.05 for ImageNet.
        head: the classifier; see `sfumato.models.heads`.
        activation: `relu` or `relu6`.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `sfumato.features.add_blur_pool`.

    Raises:
        ValueError: unknown choice, or a depth that `kind` does not have.

    Example:
        >>> model = resnet(8, num_classes=10, width=16)
        >>> sum(p.numel() for p in model.parameters())
        78042

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, Appendix A.1 (placement).
    """
    check_choice("depth", depth, _BLOCKS)
    check_choice("stem", stem, get_args(Stem))
    check_choice("kind", kind, get_args(Kind))
    check_integer("width", width, low=1)
    check_integer("in_channels", in_channels, low=1)
    check_choice("blur_pool", blur_pool, (None, False, True, "adaptive"))
    parts = Parts(norm, activation, dropout, smooth)
    before = kind == "preactivation"
    stages, features = _stages(depth, width, kind, parts)
    end = _end(head, features, num_classes, width, stem)
    if before:
        normed = OrderedDict(norm=parts.norm_layer(features), activation=parts.activation_layer())
        end = nn.Sequential(OrderedDict(**normed, **dict(end.named_children())))
    network = StagedNetwork(_stem(stem, in_channels, width, parts, bare=before), stages, end)
    if not blur_pool:
        return network
    image = torch.zeros(1, in_channels, 64, 64)
    return add_blur_pool(network, adaptive=blur_pool == "adaptive", example=image)


def _stages(depth: int, width: int, kind: Kind, parts: Parts) -> tuple[list[nn.Module], int]:
    convolutions = _convolutions(depth, width, kind)
    counts = _BLOCKS[depth]
    stages: list[nn.Module] = []
    inputs = width
    for number, count in enumerate(counts):
        usually = kind != "preactivation" or number < len(counts) - 1
        smooths = parts.smooths(number + 1, len(counts), usually=usually)
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for block in range(count):
            stride = 2 if number > 0 and block == 0 else 1
            convs = convolutions(width * 2**number, stride)
            if kind == "preactivation":
                blocks[str(block)] = preactivation_block(inputs, convs, parts)
            else:
                hands_over = block == count - 1 and smooths and parts.smooth_activates
                blocks[str(block)] = residual_block(inputs, convs, parts, activate=not hands_over)
            inputs = convs[-1].outputs
        if smooths:
            inplace = kind == "preactivation" or parts.smooth_activates
            blocks.update(parts.smooth_layer(inplace=inplace))
        stages.append(nn.Sequential(blocks))
    return stages, inputs


def _convolutions(depth: int, width: int, kind: Kind) -> Callable[[int, int], list[Conv]]:
    """What gives the convolutions of a block from its channels and stride."""
    if depth < 50:
        if kind in ("resnext", "wide"):
            raise ValueError(f"kind {kind!r} has bottlenecks: depth must be 50 or 101, got {depth}")
        return basic_convolutions
    if kind == "resnext":
        if width % 16:
            raise ValueError(f"kind 'resnext' needs a width that is a multiple of 16, got {width}")
        return partial(bottleneck_convolutions, groups=32, inner=1 / 16)
    return partial(bottleneck_convolutions, inner=2.0 if kind == "wide" else 1.0)


def _stem(kind: Stem, in_channels: int, width: int, parts: Parts, *, bare: bool) -> nn.Sequential:
    """`bare` leaves norm and activation of the small stem to the first pre-activation block."""
    if kind == "cifar":
        conv = convolution(in_channels, width, 3)
        return nn.Sequential(
            conv, *([] if bare else [parts.norm_layer(width), parts.activation_layer()])
        )
    return nn.Sequential(
        convolution(in_channels, width, 7, 2),
        parts.norm_layer(width),
        parts.activation_layer(),
        nn.MaxPool2d(3, 2, padding=1),
    )


def _end(head: Head, features: int, num_classes: int, width: int, stem: Stem) -> nn.Sequential:
    side = 7 if stem == "imagenet" else 4
    return classifier(head, features, num_classes, hidden=64 * width, side=side)
