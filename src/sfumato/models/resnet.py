"""Networks with shortcuts: ResNet, Wide ResNet, ResNeXt-29 and DenseNet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_integer
from sfumato.models.layers import (
    Activation,
    BlurPool,
    Conv,
    Head,
    LayerOptions,
    Norm,
    SmoothOptions,
    StagedNetwork,
    basic_convolutions,
    bottleneck_convolutions,
    check_sizes,
    classifier,
    convolution,
    residual_block,
    with_blur_pool,
)

Stem = Literal["cifar", "imagenet"]
Kind = Literal["standard", "preactivation", "resnext", "wide"]
Depth = Literal[8, 14, 18, 34, 50, 101]

_STAGES = 3  # of the networks for small images

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
    blur_pool: BlurPool = None,
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
        head: the classifier; see `sfumato.models.layers`.
        activation: `relu` or `relu6`.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `sfumato.features.add_blur_pool`.

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
    check_sizes(width=width, in_channels=in_channels)
    shared = LayerOptions(norm, activation, dropout, smooth)
    before = kind == "preactivation"
    of_block = _convolutions(depth, kind, width)
    stages, features = _stages(
        _BLOCKS[depth], lambda n, stride: of_block(width * 2**n, stride), width, shared, before
    )
    side = 7 if stem == "imagenet" else 4
    end = classifier(
        head, features, num_classes, hidden=64 * width, side=side, activation=activation
    )
    if before:
        end = shared.activated(features, end)
    network = StagedNetwork(_stem(stem, in_channels, width, shared, bare=before), stages, end)
    return with_blur_pool(network, blur_pool, in_channels, 64)


def _stages(
    counts: Sequence[int],
    convolutions: Callable[[int, int], list[Conv]],
    inputs: int,
    shared: LayerOptions,
    before: bool,
) -> tuple[list[nn.Module], int]:
    """Stages of so many blocks, whose convolutions follow from stage and stride, and channels."""
    stages: list[nn.Module] = []
    for number, count in enumerate(counts):
        # The last pre-activation block hands a raw map to the norm before the head.
        usually = not before or number < len(counts) - 1
        smooths = shared.smooths(number + 1, len(counts), usually=usually)
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for block in range(count):
            convs = convolutions(number, 2 if number > 0 and block == 0 else 1)
            hands_over = block == count - 1 and smooths and shared.smooth_activates
            blocks[str(block)] = residual_block(
                inputs, convs, shared, before=before, activate=before or not hands_over
            )
            inputs = convs[-1].outputs
        if smooths:
            blocks.update(shared.smooth_layer(inplace=before or shared.smooth_activates))
        stages.append(nn.Sequential(blocks))
    return stages, inputs


def _convolutions(depth: int, kind: Kind, width: int) -> Callable[[int, int], list[Conv]]:
    """Return a function from channels and stride to the convolutions of a block."""
    if depth < 50:
        if kind in ("resnext", "wide"):
            raise ValueError(f"kind {kind!r} has bottlenecks: depth must be 50 or 101, got {depth}")
        return basic_convolutions
    if kind == "resnext":
        if width % 16:
            raise ValueError(f"kind 'resnext' needs a width that is a multiple of 16, got {width}")
        return partial(bottleneck_convolutions, groups=32, inner=1 / 16)
    return partial(bottleneck_convolutions, inner=2.0 if kind == "wide" else 1.0)


def _stem(
    kind: Stem, in_channels: int, width: int, shared: LayerOptions, *, bare: bool
) -> nn.Sequential:
    """`bare` leaves norm and activation of the small stem to the first pre-activation block."""
    behind = (shared.norm_layer(width), shared.activation_layer())
    if kind == "cifar":
        return nn.Sequential(convolution(in_channels, width, 3), *(() if bare else behind))
    conv = convolution(in_channels, width, 7, 2)
    return nn.Sequential(conv, *behind, nn.MaxPool2d(3, 2, padding=1))


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

    `num_classes`, `in_channels`, `norm`, `head` and `activation` are those of `resnet`.

    Args:
        depth: number of weighted layers, 6n + 4 for n blocks a stage: 16, 22, 28, 40 ...
        widen: factor of the channels; WRN-40-2 has 2.
        smooth: True adds spatial smoothing after each stage but the last; a mapping says where and
            how, see `SmoothOptions`.
        dropout: rate of one dropout layer in each block, before its last convolution.

    Example:
        >>> sum(p.numel() for p in wide_resnet(40, num_classes=10).parameters())
        2243546

    Reference:
        Zagoruyko & Komodakis 2016, Table 1; named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=10)
    check_sizes(widen=widen, in_channels=in_channels)
    if (depth - 4) % 6:
        raise ValueError(f"depth must be 6n + 4, as 16, 22, 28 or 40, got {depth}")
    shared = LayerOptions(norm, activation, dropout, smooth)
    stages, features = _stages(
        [(depth - 4) // 6] * _STAGES,
        lambda n, stride: basic_convolutions(16 * widen * 2**n, stride),
        16,
        shared,
        True,
    )
    end = classifier(head, features, num_classes, side=4, activation=activation)
    stem = _stem("cifar", in_channels, 16, shared, bare=True)
    return StagedNetwork(stem, stages, shared.activated(features, end))


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

    `num_classes`, `in_channels`, `norm`, `head` and `activation` are those of `resnet`.

    Args:
        depth: number of weighted layers, 9n + 2 for n blocks a stage: 29, 38, 47 ...
        cardinality: groups of each 3x3 convolution.
        group_width: channels of each group in the first stage; the others double them.
        smooth: True adds spatial smoothing after each stage; a mapping says where and how, see
            `SmoothOptions`.
        dropout: rate of one dropout layer in each block, before its last convolution.

    Example:
        >>> sum(p.numel() for p in resnext(num_classes=10).parameters())
        6807882

    Reference:
        Xie et al. 2017, Section 5.2 (8 and 16 groups of 64); four groups of 32 are the ResNeXt-29
        (32x4) of robustness studies on CIFAR-C, named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=11)
    check_sizes(cardinality=cardinality, group_width=group_width, in_channels=in_channels)
    if (depth - 2) % 9:
        raise ValueError(f"depth must be 9n + 2, as 29, 38 or 47, got {depth}")
    shared = LayerOptions(norm, activation, dropout, smooth)
    block = partial(bottleneck_convolutions, groups=cardinality, inner=group_width / 64)
    stages, features = _stages(
        [(depth - 2) // 9] * _STAGES, lambda n, s: block(64 * 2**n, s), 64, shared, False
    )
    stem = _stem("cifar", in_channels, 64, shared, bare=False)
    end = classifier(head, features, num_classes, side=4, activation=activation)
    return StagedNetwork(stem, stages, end)


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
        Huang et al., Densely Connected Convolutional Networks, CVPR 2017, Section 3 and Table 2;
        named in mollification, footnote 2.
    """
    check_integer("depth", depth, low=7)
    check_sizes(growth=growth, in_channels=in_channels)
    if (depth - 4) % 3:
        raise ValueError(f"depth must be 3n + 4, as 40 or 100, got {depth}")
    shared = LayerOptions(norm, activation, dropout, smooth)
    stages: list[nn.Module] = []
    channels = 16
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
    stem = _stem("cifar", in_channels, 16, shared, bare=True)
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
