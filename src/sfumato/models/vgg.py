"""Plain stacks of convolutions: VGG and the All Convolutional Net."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Literal, get_args

from torch import nn

from sfumato._core.checks import check_choice
from sfumato.models.layers import (
    Activation,
    BlurPool,
    Head,
    LayerOptions,
    Norm,
    SmoothOptions,
    StagedNetwork,
    check_sizes,
    classifier,
    convolution,
    reads_the_map,
    with_blur_pool,
)
from sfumato.models.resnet import Stem

Kind = Literal["standard", "preactivation"]
_CONVOLUTIONS: dict[int, tuple[int, ...]] = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (1, 2, 4, 8, 8)


def vgg(
    depth: Literal[16, 19] = 16,
    *,
    num_classes: int,
    width: int = 64,
    stem: Stem = "cifar",
    norm: Norm = "batch",
    in_channels: int = 3,
    kind: Kind = "standard",
    smooth: bool | SmoothOptions = False,
    dropout: float = 0.0,
    head: Head = "mlp",
    activation: Activation = "relu",
    blur_pool: BlurPool = None,
) -> StagedNetwork:
    """A VGG network with normalisation; five stages, max pooling at the start of all but the first.

    `num_classes`, `in_channels`, `norm`, `activation` and `blur_pool` are those of `resnet`.

    Args:
        depth: number of weighted layers.
        width: channels of the first stage; the papers' 64. Hidden layers of `mlp` have 64 times it.
        stem: size of the images, which the `mlp` head depends on: `cifar` (32 to 64 pixels) or
            `imagenet`. The layers are the same.
        kind: `standard`, or `preactivation` (norm and activation before each convolution, also of
            the image, as released; and once more before the head).
        smooth: True adds spatial smoothing after each of the five stages; a mapping says where and
            how, see `SmoothOptions`.
        dropout: rate of a dropout layer at the end of each convolution block. The paper takes 0.3
            for CIFAR.
        head: the classifier; the papers' `mlp` with max pooling before it.

    Example:
        >>> model = vgg(16, num_classes=10, width=8, head="gap", smooth=True)
        >>> model.stages[0].smooth.blur
        Blur((1, 1), padding='zeros')

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, Appendix A.1 (placement).
    """
    check_choice("depth", depth, _CONVOLUTIONS)
    check_choice("stem", stem, get_args(Stem))
    check_choice("kind", kind, get_args(Kind))
    check_sizes(width=width, in_channels=in_channels)
    shared = LayerOptions(norm, activation, dropout, smooth)
    before = kind == "preactivation"
    stages: list[nn.Module] = []
    inputs = in_channels
    for number, (count, factor) in enumerate(zip(_CONVOLUTIONS[depth], _WIDTHS, strict=True), 1):
        channels = [inputs, *[width * factor] * count]
        stages.append(_stage(channels, number, shared, before))
        inputs = width * factor
    side = 7 if stem == "imagenet" else 1
    end = classifier(head, inputs, num_classes, hidden=64 * width, side=side, activation=activation)
    if reads_the_map(head):
        end = nn.Sequential(OrderedDict(maxpool=nn.MaxPool2d(2), **dict(end.named_children())))
    if before:
        end = shared.activated(inputs, end)
    network = StagedNetwork(nn.Identity(), stages, end)
    return with_blur_pool(network, blur_pool, in_channels, 32 * side)


def _stage(channels: list[int], stage: int, shared: LayerOptions, before: bool) -> nn.Sequential:
    """Blocks from one number of channels to the next, in the order of the list."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stage > 1:
        layers["pool"] = nn.MaxPool2d(2)
    smooths = shared.smooths(stage, len(_WIDTHS))
    # Dropout comes between the last activation and the smoothing layer.
    hands_over = smooths and shared.smooth_activates and not shared.dropout
    for number, sizes in enumerate(pairwise(channels), 1):
        activate = number < len(channels) - 1 or not hands_over
        layers[f"block{number}"] = _block(*sizes, shared, before=before, activate=activate)
    if smooths:
        layers.update(shared.smooth_layer(inplace=before or hands_over))
    return nn.Sequential(layers)


def _block(
    inputs: int, channels: int, shared: LayerOptions, *, before: bool, activate: bool
) -> nn.Sequential:
    """Norm and activation stand before the convolution or behind it, and dropout is last."""
    layers = OrderedDict(norm=shared.norm_layer(inputs if before else channels))
    if before or activate:
        layers["activation"] = shared.activation_layer()
    layers["conv"] = convolution(inputs, channels, 3)
    layers.move_to_end("conv", last=before)
    layers.update(shared.dropout_layer())
    return nn.Sequential(layers)


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

    `num_classes`, `in_channels`, `norm` and `activation` are those of `resnet`.

    Args:
        width: channels at full resolution, later twice as many. The paper's 96.
        smooth: True adds spatial smoothing after each stage; a mapping says where and how, see
            `SmoothOptions`.
        dropout: rate of a dropout layer after each stage; the paper's 0.5.
        head: the classifier; `gap` is the paper's 1x1 convolution and mean, in the other order,
            which gives the same logits but for the ReLU in between.

    Example:
        >>> sum(p.numel() for p in allconv(num_classes=10).parameters())
        1370986

    Reference:
        Springenberg et al. 2015, Table 1 (base model C) and Section 3; named in mollification,
        footnote 2.

    Differs: the paper has biases and no norm. The form of robustness studies on CIFAR-C has maximum
    pooling, sigmoid-gated units and a second 1x1 convolution.
    """
    check_sizes(width=width, in_channels=in_channels)
    shared = LayerOptions(norm, activation, dropout, smooth)
    stages: list[nn.Module] = []
    inputs = in_channels
    for number, convolutions in enumerate(_STAGES):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for place, (factor, size) in enumerate(convolutions, 1):
            stride = 2 if number > 0 and place == 1 else 1
            layers[f"conv{place}"] = convolution(inputs, factor * width, size, stride)
            layers[f"norm{place}"] = shared.norm_layer(factor * width)
            layers[f"activation{place}"] = shared.activation_layer()
            inputs = factor * width
        layers.update(shared.dropout_layer())
        if shared.smooths(number + 1, len(_STAGES)):
            layers.update(shared.smooth_layer(inplace=False))
        stages.append(nn.Sequential(layers))
    return StagedNetwork(
        nn.Identity(), stages, classifier(head, inputs, num_classes, side=4, activation=activation)
    )
