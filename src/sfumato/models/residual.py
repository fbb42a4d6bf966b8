"""Residual blocks: convolutions, and a shortcut around them.

Deep Residual Learning for Image Recognition, He et al., CVPR 2016; Identity Mappings in Deep
Residual Networks, He et al., ECCV 2016 (activation before convolution).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.models.parts import Parts, convolution


class Conv(NamedTuple):
    """One convolution of a block."""

    outputs: int
    size: int
    stride: int = 1
    groups: int = 1


def basic_convolutions(channels: int, stride: int) -> list[Conv]:
    """Two 3x3 convolutions; the first one down-samples."""
    return [Conv(channels, 3, stride), Conv(channels, 3)]


def bottleneck_convolutions(
    channels: int, stride: int, *, groups: int = 1, inner: float = 1.0
) -> list[Conv]:
    """1x1, 3x3, 1x1 convolutions with four times as many channels at the end.

    The 3x3 has `groups` groups and `inner` times `channels` channels in each of them.
    """
    middle = int(channels * inner) * groups
    return [Conv(middle, 1), Conv(middle, 3, stride, groups), Conv(4 * channels, 1)]


class Projection(nn.Conv2d):
    """A 1x1 convolution without bias, as shortcuts need it, that picks its pixels first.

    A convolution with the stride gives the same numbers, but oneDNN 3.13 dies in its backward pass
    (channels last, 8 channels, AVX-512). Pooling windows of one pixel pick the pixels and, unlike
    slices, pass the gradient on in channels last.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        picked = x if self.stride == (1, 1) else F.avg_pool2d(x, 1, self.stride)
        return F.conv2d(picked, self.weight)


class Residual(nn.Module):
    """A branch plus a shortcut, then the activation."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.branch(x) + self.shortcut(x))


class PreactivationResidual(nn.Module):
    """Norm and activation, then a branch plus a shortcut.

    A shortcut that projects reads the activated map; one that does not passes the raw map on.
    """

    def __init__(
        self, norm: nn.Module, activation: nn.Module, branch: nn.Module, shortcut: nn.Module | None
    ) -> None:
        super().__init__()
        self.norm = norm
        self.activation = activation
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation(self.norm(x))
        kept = x if self.shortcut is None else self.shortcut(activated)
        return self.branch(activated) + kept


def residual_block(
    inputs: int, convs: Sequence[Conv], parts: Parts, *, activate: bool = True
) -> Residual:
    """Convolution, norm, activation, ... with one dropout layer before the last convolution.

    Args:
        inputs: channels of the input.
        convs: the convolutions of the branch.
        parts: the choices of the network.
        activate: False leaves the last activation to what follows.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = inputs
    for number, conv in enumerate(convs, 1):
        last = number == len(convs)
        layers.update(parts.dropout_layer() if last else {})
        layers[f"conv{number}"] = convolution(channels, *conv)
        layers[f"norm{number}"] = parts.norm_layer(conv.outputs)
        if not last:
            layers[f"activation{number}"] = parts.activation_layer()
        channels = conv.outputs
    stride = max(conv.stride for conv in convs)
    shortcut: nn.Module = nn.Identity()
    if stride > 1 or inputs != channels:
        shortcut = nn.Sequential(Projection(inputs, channels, stride), parts.norm_layer(channels))
    activation = parts.activation_layer() if activate else nn.Identity()
    return Residual(nn.Sequential(layers), shortcut, activation)


def preactivation_block(inputs: int, convs: Sequence[Conv], parts: Parts) -> PreactivationResidual:
    """Norm, activation, convolution, ... with one dropout layer before the last convolution."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = inputs
    for number, conv in enumerate(convs, 1):
        if number > 1:
            layers[f"norm{number}"] = parts.norm_layer(channels)
            layers[f"activation{number}"] = parts.activation_layer()
        layers.update(parts.dropout_layer() if number == len(convs) else {})
        layers[f"conv{number}"] = convolution(channels, *conv)
        channels = conv.outputs
    stride = max(conv.stride for conv in convs)
    projects = stride > 1 or inputs != channels
    shortcut = Projection(inputs, channels, stride) if projects else None
    return PreactivationResidual(
        parts.norm_layer(inputs), parts.activation_layer(), nn.Sequential(layers), shortcut
    )
