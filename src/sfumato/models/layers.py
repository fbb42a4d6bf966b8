"""Choices, layers, blocks and heads that all networks share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypedDict

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato.features import Padding, Smooth, add_blur_pool
from sfumato.features.smoothing import ProbKind

Norm = Literal["batch", "group"]
Activation = Literal["relu", "relu6"]
BlurPool = bool | Literal["adaptive"] | None


class SmoothOptions(TypedDict, total=False):
    """Spatial smoothing other than the paper's: where, and the parameters of `Smooth`.

    `stages` are numbers of stages from 1, as in Fig. B.2; all that the network usually smooths
    where they are left out. `padding: grow` is the released form, whose maps grow by a point.
    """

    __pydantic_config__ = {"extra": "forbid"}  # type: ignore[misc]  # noqa: RUF012

    stages: list[int]
    kernel: tuple[float, ...]
    prob: ProbKind
    temperature: float
    padding: Padding


@dataclass(frozen=True)
class LayerOptions:
    """The choices that all layers of a network share."""

    norm: Norm = "batch"
    activation: Activation = "relu"  # `relu6` everywhere: Park & Kim 2022, Appendix C.3
    dropout: float = 0.0
    smooth: bool | SmoothOptions = False

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("activation", self.activation, get_args(Activation))
        check_number("dropout", self.dropout, low=0.0)
        if self.dropout >= 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout!r}")
        if not isinstance(self.smooth, bool | dict):
            raise TypeError(
                "smooth must be True, False or options of Smooth such as {'kernel': (1, 2, 1)}, "
                f"got {self.smooth!r}"
            )
        for key in self._smoothing:
            check_choice("key of smooth", key, SmoothOptions.__annotations__)

    @property
    def _smoothing(self) -> SmoothOptions:
        return self.smooth if isinstance(self.smooth, dict) else {}

    def smooths(self, stage: int, stages: int, *, usually: bool = True) -> bool:
        """True if a stage ends with a smoothing layer."""
        if "stages" not in self._smoothing:
            return usually and self.smooth is not False
        named = self._smoothing["stages"]
        if not named or not all(number in range(1, stages + 1) for number in named):
            raise ValueError(
                f"smooth.stages must be numbers of stages, 1 to {stages} here, got {named!r}"
            )
        return stage in named

    @property
    def smooth_activates(self) -> bool:
        """True if a smoothing layer does the activation of the layer before it.

        ReLU(tanh(ReLU(z))) = ReLU(tanh(z)), Eq. (41)-(42): one pass over the map is saved.
        """
        return self.activation == "relu" and self._smoothing.get("prob", "tanh") != "identity"

    def smooth_layer(self, *, inplace: bool) -> OrderedDict[str, nn.Module]:
        options: dict[str, Any] = {k: v for k, v in self._smoothing.items() if k != "stages"}
        return OrderedDict(smooth=Smooth(**options, inplace=inplace))

    def dropout_layer(self) -> OrderedDict[str, nn.Module]:
        return OrderedDict(dropout=nn.Dropout(self.dropout)) if self.dropout else OrderedDict()

    def activation_layer(self) -> nn.Module:
        return nn.ReLU(inplace=True) if self.activation == "relu" else nn.ReLU6(inplace=True)

    def activated(self, channels: int, head: nn.Sequential) -> nn.Sequential:
        """A head behind norm and activation, for maps that end without them."""
        before = OrderedDict(norm=self.norm_layer(channels), activation=self.activation_layer())
        return nn.Sequential(OrderedDict(**before, **dict(head.named_children())))

    def norm_layer(self, channels: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        return nn.GroupNorm(math.gcd(8, channels), channels)


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution without bias that keeps the size up to its stride."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)


def check_sizes(**sizes: int) -> None:
    """Raise unless each is a whole number of at least 1."""
    for name, value in sizes.items():
        check_integer(name, value, low=1)


def begin_convolutions(network: nn.Module) -> None:
    """He initialisation by the number of outputs, of every convolution."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class StagedNetwork(nn.Module):
    """A stem, stages that halve the resolution, and a head.

    `network.stages[i]` gives the i-th stage with its smoothing layer, as encoders need it.
    """

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        self.head = head
        begin_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))


def with_blur_pool(
    network: StagedNetwork, blur_pool: BlurPool, in_channels: int, side: int
) -> StagedNetwork:
    """Blur before each subsampling, which one forward pass of an image of this side tells."""
    check_choice("blur_pool", blur_pool, (None, False, True, "adaptive"))
    if not blur_pool:
        return network
    image = torch.zeros(1, in_channels, side, side)
    return add_blur_pool(network, adaptive=blur_pool == "adaptive", example=image)


Head = Literal["gap", "mlp", "mlp_without_dropout", "gmaxp", "gmedp"]


class GlobalMedianPool2d(nn.Module):
    """The median of each channel, (N, C, H, W) to (N, C, 1, 1); the upper one of two.

    Differs: the released code takes the (HW // 2)-th largest value, which for an odd number of
    points is one above the median, and has no answer for a single point.
    """

    def forward(self, z: Tensor) -> Tensor:
        points = z.flatten(2)
        largest = points.topk((points.shape[2] + 1) // 2).values
        return largest[..., -1:, None]


def reads_the_map(head: Head) -> bool:
    """True if a head has weights for each point of the map, and so a size that it is made for."""
    return head in ("mlp", "mlp_without_dropout")


def classifier(
    head: Head,
    features: int,
    num_classes: int,
    *,
    hidden: int = 4096,
    side: int = 7,
    activation: Activation = "relu",
) -> nn.Sequential:
    """A head that turns (N, features, H, W) into logits (N, num_classes).

    Global average pooling is the extreme case of spatial smoothing: one mean over all points.

    Args:
        head: `gap`, `gmaxp`, `gmedp` (global average, maximum, median pooling, then a linear layer)
            or `mlp` (three linear layers on the whole map, dropout 0.5 between them; or
            `mlp_without_dropout`, since dropout alone makes a network underfit).
        features, num_classes: channels of the map, and number of logits.
        hidden: width of the two hidden layers of `mlp`; the paper's 4096.
        side: `mlp` reads the map averaged to side x side points.
        activation: of the hidden layers of `mlp`, `relu` or `relu6`.

    Differs: the released `mlp` resizes every map to 7x7, on CIFAR by repeating points. Here small
    images keep the side that their map has.
    """
    check_choice("head", head, get_args(Head))
    check_integer("num_classes", num_classes, low=2)
    pools = {"gmaxp": nn.AdaptiveMaxPool2d(1), "gmedp": GlobalMedianPool2d()}
    average = nn.AdaptiveAvgPool2d(side if reads_the_map(head) else 1)
    layers = OrderedDict(pool=pools.get(head, average), flatten=nn.Flatten())
    if reads_the_map(head):
        features *= side**2
        for number in (1, 2):
            layers[f"linear{number}"] = nn.Linear(features, hidden)
            layers[f"activation{number}"] = LayerOptions(activation=activation).activation_layer()
            if head == "mlp":
                layers[f"dropout{number}"] = nn.Dropout(0.5)
            features = hidden
    layers["linear"] = nn.Linear(features, num_classes)
    return nn.Sequential(layers)


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
    inputs: int,
    convs: Sequence[Conv],
    shared: LayerOptions,
    *,
    before: bool = False,
    activate: bool = True,
) -> Residual | PreactivationResidual:
    """Norm and activation behind or before each convolution, and dropout before the last one."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = inputs
    for number, conv in enumerate(convs, 1):
        last = number == len(convs)
        if before and number > 1:
            layers[f"norm{number}"] = shared.norm_layer(channels)
            layers[f"activation{number}"] = shared.activation_layer()
        layers.update(shared.dropout_layer() if last else {})
        layers[f"conv{number}"] = convolution(channels, *conv)
        channels = conv.outputs
        if not before:
            layers[f"norm{number}"] = shared.norm_layer(channels)
        if not before and not last:
            layers[f"activation{number}"] = shared.activation_layer()
    branch = nn.Sequential(layers)
    stride = max(conv.stride for conv in convs)
    projects = stride > 1 or inputs != channels
    projection = Projection(inputs, channels, stride) if projects else None
    activation = shared.activation_layer() if activate else nn.Identity()
    if before:
        return PreactivationResidual(shared.norm_layer(inputs), activation, branch, projection)
    normed = (projection, shared.norm_layer(channels)) if projection is not None else ()
    return Residual(branch, nn.Sequential(*normed) if normed else nn.Identity(), activation)
