"""VGG networks, plain stacks of 3x3 convolutions and max pooling.

Very Deep Convolutional Networks for Large-Scale Image Recognition, Simonyan & Zisserman, ICLR 2015.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, get_args

import torch
from torch import nn

from sfumato._core.checks import check_choice, check_integer
from sfumato.features import add_blur_pool
from sfumato.models.heads import Head, classifier, reads_the_map
from sfumato.models.network import StagedNetwork
from sfumato.models.parts import Activation, Norm, Parts, SmoothOptions, convolution
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
    blur_pool: bool | Literal["adaptive"] | None = None,
) -> StagedNetwork:
    """A VGG network with normalisation; five stages, max pooling at the start of all but the first.

    Args:
        depth: number of weighted layers.
        num_classes: number of logits.
        width: channels of the first stage; the papers' 64. Hidden layers of `mlp` have 64 times it.
        stem: size of the images, which the `mlp` head depends on: `cifar` (32 to 64 pixels) or
            `imagenet`. The layers are the same.
        norm: `batch` or `group`.
        in_channels: channels of the images.
        kind: `standard`, or `preactivation` (norm and activation before each convolution, also of
            the image, as released; and once more before the head).
        smooth: True adds spatial smoothing after each of the five stages; a mapping says where and
            how, see `SmoothOptions`.
        dropout: rate of a dropout layer at the end of each convolution block. The paper takes 0.3
            for CIFAR.
        head: the classifier; the papers' `mlp` with max pooling before it.
        activation: `relu` or `relu6`.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `sfumato.features.add_blur_pool`.

    Raises:
        ValueError: unknown choice.

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
    check_integer("width", width, low=1)
    check_integer("in_channels", in_channels, low=1)
    check_choice("blur_pool", blur_pool, (None, False, True, "adaptive"))
    parts = Parts(norm, activation, dropout, smooth)
    before = kind == "preactivation"
    stages: list[nn.Module] = []
    inputs = in_channels
    for number, count in enumerate(_CONVOLUTIONS[depth]):
        channels = width * _WIDTHS[number]
        smooths = parts.smooths(number + 1, len(_WIDTHS))
        pool = number > 0
        stages.append(_stage(inputs, channels, count, parts, before, pool=pool, smooths=smooths))
        inputs = channels
    end: OrderedDict[str, nn.Module] = OrderedDict()
    if before:
        end.update(norm=parts.norm_layer(inputs), activation=parts.activation_layer())
    if reads_the_map(head):
        end["maxpool"] = nn.MaxPool2d(2)
    side = 7 if stem == "imagenet" else 1
    end.update(classifier(head, inputs, num_classes, hidden=64 * width, side=side).named_children())
    network = StagedNetwork(nn.Identity(), stages, nn.Sequential(end))
    if not blur_pool:
        return network
    image = torch.zeros(1, in_channels, 32 * side, 32 * side)
    return add_blur_pool(network, adaptive=blur_pool == "adaptive", example=image)


def _stage(
    inputs: int,
    channels: int,
    count: int,
    parts: Parts,
    before: bool,
    *,
    pool: bool,
    smooths: bool,
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if pool:
        layers["pool"] = nn.MaxPool2d(2)
    # Dropout comes between the last activation and the smoothing layer.
    hands_over = smooths and parts.smooth_activates and not parts.dropout
    for number in range(1, count + 1):
        if before:
            layers[f"block{number}"] = _preactivation_block(inputs, channels, parts)
        else:
            activate = number < count or not hands_over
            layers[f"block{number}"] = _block(inputs, channels, parts, activate=activate)
        inputs = channels
    if smooths:
        layers.update(parts.smooth_layer(inplace=before or hands_over))
    return nn.Sequential(layers)


def _block(inputs: int, channels: int, parts: Parts, *, activate: bool) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = convolution(inputs, channels, 3)
    layers["norm"] = parts.norm_layer(channels)
    if activate:
        layers["activation"] = parts.activation_layer()
    layers.update(parts.dropout_layer())
    return nn.Sequential(layers)


def _preactivation_block(inputs: int, channels: int, parts: Parts) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["norm"] = parts.norm_layer(inputs)
    layers["activation"] = parts.activation_layer()
    layers["conv"] = convolution(inputs, channels, 3)
    layers.update(parts.dropout_layer())
    return nn.Sequential(layers)
