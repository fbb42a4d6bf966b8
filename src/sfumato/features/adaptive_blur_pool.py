"""AdaptiveBlurPool: a low-pass before subsampling whose kernel is made from the map itself."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_integer
from sfumato.features.blurring import check_map

SumTo = Literal["group", "all"]


class AdaptiveBlurPool(nn.Module):
    """Blurs with a kernel for each place and group of channels, and keeps every `stride`-th point.

    One kernel for all blurs edges as much as texture. Here a convolution of the map says how much
    of each neighbour to take, so that high frequencies go where they would alias and stay where
    they matter.

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

    Raises:
        ValueError: sizes that don't fit.

    Example:
        >>> import torch
        >>> layer = AdaptiveBlurPool(8, groups=4)
        >>> layer(torch.ones(2, 8, 6, 6)).shape
        torch.Size([2, 8, 3, 3])

    Reference:
        Zou, Xiao, Yu and Lee, "Delving Deeper into Anti-aliasing in ConvNets", BMVC 2020.

    Differs:
        The released code takes its softmax over the neighbours of all groups at once
        (`sum_to="all"`), which makes each kernel sum to about 1 / groups; the paper's kernels sum
        to 1. It computes all points and drops some, here dropped ones have no part in the
        statistics of the norm.
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
        check_integer("channels", channels, low=1)
        check_integer("stride", stride, low=1)
        check_integer("size", size, low=1)
        check_integer("groups", groups, low=1)
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
        reach = self.size // 2
        mode = "reflect" if min(x.shape[-2:]) > reach else "replicate"
        padded = F.pad(x, (reach,) * 4, mode=mode)
        scores = self.norm(self.convolution(padded))
        (samples, _, height, width), area = scores.shape, self.size**2
        if self.sum_to == "all":
            weights = scores.softmax(1).reshape(samples, self.groups, 1, area, height * width)
        else:
            weights = scores.reshape(samples, self.groups, 1, area, height * width).softmax(3)
        patches = F.unfold(padded, self.size, stride=self.stride)
        patches = patches.reshape(samples, self.groups, -1, area, height * width)
        return (weights * patches).sum(3).reshape(samples, -1, height, width)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, size={self.size}, groups={self.groups}"
