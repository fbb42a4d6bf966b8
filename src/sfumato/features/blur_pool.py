"""BlurPool, MaxBlurPool and AdaptiveBlurPool: low-pass filters before subsampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_integer
from sfumato.features.insertion import input_shapes, insert_after, insert_before
from sfumato.features.smoothing import check_kernel, check_map

SumTo = Literal["group", "all"]


class AdaptiveBlurPool(nn.Module):
    """Blurs with a kernel for each place and group of channels, and keeps every `stride`-th point.

    A convolution of the map says how much of each neighbour to take, so that high frequencies go
    where they would alias and stay where they matter.

        y_c(i, j) = sum_(u, v) w_g(i, j; u, v) x_c(i + u, j + v),   w = softmax(norm(conv(x)))

    g the group of channel c, the softmax over the size x size neighbours.

    Args:
        channels: C, a multiple of `groups`.
        stride: at least 1.
        size: of the kernels, odd.
        groups: channels of one group share their kernels; 8 as released.
        sum_to: "group": the weights of each group sum to 1; "all": those of all groups together.

    Shape:
        (N, C, H, W) to (N, C, ceil(H / stride), ceil(W / stride)); outside lies the mirror image,
        or the border itself where the map is smaller than the kernel.

    Example:
        >>> layer = AdaptiveBlurPool(8, groups=4)
        >>> layer(torch.ones(2, 8, 6, 6)).shape
        torch.Size([2, 8, 3, 3])

    Reference:
        Zou, Xiao, Yu and Lee, "Delving Deeper into Anti-aliasing in ConvNets", BMVC 2020.

    Differs:
        The released code takes its softmax over the neighbours of all groups at once
        (`sum_to="all"`), which makes each kernel sum to about 1 / groups; the paper's kernels sum
        to 1. Dropped points have no part in the statistics of the norm here.
    """

    def __init__(
        self,
        channels: int,
        stride: int = 2,
        *,
        size: int = 3,
        groups: int = 8,
        sum_to: SumTo = "group",
    ) -> None:
        super().__init__()
        numbers = {"channels": channels, "stride": stride, "size": size, "groups": groups}
        for name, value in numbers.items():
            check_integer(name, value, low=1)
        check_choice("sum_to", sum_to, ("group", "all"))
        if size % 2 == 0:
            raise ValueError(f"size must be odd, so that a kernel has a middle, got {size}")
        if channels % groups:
            raise ValueError(
                f"groups must divide the channels, got {groups} groups for {channels} channels"
            )
        self.stride, self.size, self.groups = stride, size, groups
        self.sum_to: SumTo = sum_to
        weights = groups * size**2
        self.convolution = nn.Conv2d(channels, weights, size, stride=stride, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.norm = nn.BatchNorm2d(weights)

    def forward(self, x: Tensor) -> Tensor:
        check_map(x)
        padded = _with_border(x, self.size)
        scores = self.norm(self.convolution(padded))
        (samples, _, height, width), channels = scores.shape, x.shape[1]
        if self.sum_to == "all":
            scores = scores.softmax(1)
        weights = scores.reshape(samples, self.groups, 1, self.size**2, height * width)
        if self.sum_to == "group":
            weights = weights.softmax(3)
        patches = F.unfold(padded, self.size, stride=self.stride)
        patches = patches.reshape(
            samples, self.groups, channels // self.groups, self.size**2, height * width
        )
        return (weights * patches).sum(3).reshape(samples, channels, height, width)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, size={self.size}, groups={self.groups}"


Network = TypeVar("Network", bound=nn.Module)
_TRIANGLE = (1, 2, 1)


class BlurPool(nn.Module):
    """Blurs each channel with a fixed kernel and keeps every `stride`-th point.

    A layer that only drops points aliases: a shift of the input by one pixel can change all that
    is left.

        K = k k^T / ||k||_1^2,   y = (K * x)[::stride, ::stride]

    Args:
        stride: at least 1.
        kernel: the vector k, not negative: (1, 1), (1, 2, 1) or (1, 4, 6, 4, 1).

    Shape:
        As `AdaptiveBlurPool`.

    Example:
        >>> BlurPool()(torch.tensor([[[[0.0, 0.0, 4.0, 0.0]] * 4]]))[0, 0, 0]
        tensor([0., 2.])

    Reference:
        Zhang, "Making Convolutional Networks Shift-Invariant Again", ICML 2019.
    """

    kernel: Tensor

    def __init__(self, stride: int = 2, *, kernel: Sequence[float] = _TRIANGLE) -> None:
        super().__init__()
        check_integer("stride", stride, low=1)
        self.stride = stride
        vector = torch.tensor(check_kernel(kernel), dtype=torch.float64)
        plane = vector.outer(vector) / vector.sum().square()
        # Not in the state dict, so that weights load with and without it.
        self.register_buffer("kernel", plane.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        check_map(x)
        size = len(self.kernel)
        weight = self.kernel.to(x.dtype).expand(x.shape[1], 1, size, size)
        return F.conv2d(_with_border(x, size), weight, stride=self.stride, groups=x.shape[1])

    def extra_repr(self) -> str:
        return f"stride={self.stride}, size={len(self.kernel)}"


def _with_border(x: Tensor, size: int) -> Tensor:
    """The map with the points that a kernel reaches outside of it."""
    before, after = (size - 1) // 2, size // 2
    mode = "reflect" if min(x.shape[-2:]) > after else "replicate"
    return F.pad(x, (before, after, before, after), mode=mode)


class MaxBlurPool(nn.Module):
    """Max pooling at every point, then `BlurPool`; see there.

    Args:
        kernel_size: of the maximum.
        stride: at least 1.
        padding: of the maximum.
        kernel: of the blur.

    Example:
        >>> MaxBlurPool(2)(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 3, 4, 4])

    Reference:
        Zhang 2019.
    """

    def __init__(
        self,
        kernel_size: int = 2,
        stride: int = 2,
        padding: int = 0,
        *,
        kernel: Sequence[float] = _TRIANGLE,
    ) -> None:
        super().__init__()
        self.maximum = nn.MaxPool2d(kernel_size, stride=1, padding=padding)
        self.blur = BlurPool(stride, kernel=kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.blur(self.maximum(x))


def add_blur_pool(
    model: Network,
    *,
    kernel: Sequence[float] = _TRIANGLE,
    adaptive: bool = False,
    example: Tensor | None = None,
) -> Network:
    """Let a network blur before it subsamples; in place, names and weights stay.

    Strided convolutions and max pooling run at every point, and a `BlurPool` after them (before 1x1
    convolutions) does what their stride did. Patches that do not overlap, as at the stem of a
    transformer, and average pooling stay as they are.

    Args:
        model: any network of 2-D convolutions.
        kernel: of the blur.
        adaptive: whether an `AdaptiveBlurPool` as large as `kernel` blurs, with new parameters.
        example: images on which to count the channels that max pooling has; for `adaptive` only.

    Raises:
        ValueError: nothing in it subsamples, max pooling that returns indices or has no example,
            or a bad kernel. The model is then as it was.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.MaxPool2d(2))
        >>> add_blur_pool(net)(torch.zeros(1, 3, 16, 16)).shape
        torch.Size([1, 8, 4, 4])

    Reference:
        Zhang 2019; for `adaptive` Zou et al. 2020.

    Differs:
        The authors' networks blur after the activation that follows a strided convolution; here it
        is right after the convolution, as any network has it. Where max pooling rounds sizes up
        (`ceil_mode`), maps may be smaller by one.
    """
    kinds = (nn.Conv2d, nn.MaxPool2d)
    found = [part for part in model.modules() if isinstance(part, kinds) and _subsamples(part)]
    if not found:
        raise ValueError(
            f"nothing in {type(model).__name__} subsamples by overlapping convolutions or max "
            "pooling, so there is nothing to blur"
        )
    if any(isinstance(part, nn.MaxPool2d) and part.return_indices for part in found):
        raise ValueError(
            "max pooling that returns indices, for unpooling, can't be blurred: leave out "
            "return_indices"
        )
    channels = _channels(model, found, example) if adaptive else {}
    layers: list[nn.Module] = []
    for part in found:
        stride, _ = _pair(part.stride)
        layer: nn.Module = BlurPool(stride, kernel=kernel)
        if adaptive:
            # The paper's 8 groups where the channels allow, else the most that divide them.
            groups = math.gcd(channels[part], 8)
            layer = AdaptiveBlurPool(channels[part], stride, size=len(kernel), groups=groups)
        layers.append(layer)
    for part, layer in zip(found, layers, strict=True):
        # Only now: an error above has left the model as it was.
        part.stride = (1, 1)
        insert = insert_before if _is_point(part) else insert_after
        insert(part, layer, "blur_pool")
    return model


def _channels(
    model: nn.Module, found: list[nn.Conv2d | nn.MaxPool2d], example: Tensor | None
) -> dict[nn.Module, int]:
    """Count the channels of the map where each part is to be blurred."""
    counted: dict[nn.Module, int] = {
        part: part.in_channels if _is_point(part) else part.out_channels
        for part in found
        if isinstance(part, nn.Conv2d)
    }
    pools = [part for part in found if part not in counted]
    if pools and example is None:
        raise ValueError("adaptive needs example, images that show how wide max pooling is")
    if pools and example is not None:
        counted |= {part: shape[1] for part, shape in input_shapes(model, pools, example).items()}
    return counted


def _is_point(part: nn.Conv2d | nn.MaxPool2d) -> bool:
    return isinstance(part, nn.Conv2d) and max(_pair(part.kernel_size)) == 1


def _subsamples(part: nn.Conv2d | nn.MaxPool2d) -> bool:
    (stride, other), size = _pair(part.stride), min(_pair(part.kernel_size))
    if stride != other or stride == 1:
        return False
    return isinstance(part, nn.MaxPool2d) or size > stride or size == 1


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
