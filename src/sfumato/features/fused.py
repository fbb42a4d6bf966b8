"""The usual smoothing layer in one pass over memory each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato.features.blurring import Padding, blur_features
from sfumato.features.probability import ProbKind, bound_features
from sfumato.ops.library import is_within_reach
from sfumato.ops.smoothing import can_smooth, smooth_map


def is_standard_layer(kernel: tuple[float, ...], prob: ProbKind, padding: Padding) -> bool:
    """Whether this is the paper's own layer, the one that is compiled."""
    return prob == "tanh" and padding == "zeros" and kernel == (1, 1)


def may_fuse(z: Tensor) -> bool:
    """Whether there is a kernel for the map, and no tangent to be carried along."""
    return can_smooth(z) and forward_ad.unpack_dual(z).tangent is None


def fused_smooth(z: Tensor, temperature: float) -> Tensor:
    """`smooth_features` with its default kernel, bound and padding, where `may_fuse`."""
    if not (torch.is_grad_enabled() and z.requires_grad):
        return smooth_map(z.detach(), temperature)
    smoothed: Tensor = _Smooth.apply(z, temperature)
    return smoothed


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.temperature = temperature
        return smooth_map(z, temperature)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        if is_within_reach(upstream) and not torch.is_grad_enabled():
            return smooth_map(z, ctx.temperature, upstream), None
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            again = blur_features(bound_features(z, temperature=ctx.temperature))
        (result,) = torch.autograd.grad(again, z, upstream, create_graph=create_graph)
        return result, None
