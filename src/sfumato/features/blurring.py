"""Blur: the importance-weighted mean of neighbouring points (spatial smoothing, Eq. 8, B.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_floating

Padding = Literal["zeros", "replicate", "reflect", "grow"]


def blur_features(
    z: Tensor, kernel: Sequence[float] = (1, 1), *, padding: Padding = "zeros"
) -> Tensor:
    r"""Average each point of a feature map with its neighbours, channel by channel.

    Neighbouring points of a feature map are nearly the same prediction, so that their mean behaves
    like a small ensemble. It is a depth-wise convolution with a fixed kernel:

        K = k k^T / ||k||_1^2                                                            (Eq. 8)

    Even kernels reach one point further right and down than left and up, and keep the size.

    Args:
        z: feature map.
        kernel: the vector k: (1,) is the identity, (1, 1) the paper's 2x2 box, (1, 2, 1) and
            (1, 4, 6, 4, 1) are nearly Gaussian. Any non-negative vector will do.
        padding: what lies outside the map: `zeros` (border points shrink towards zero),
            `replicate`, `reflect`; or `grow`, zeros on all four sides as in the released code,
            where an even kernel makes the map one point larger each way.

    Shape:
        z: (N, C, H, W). Output: the same; (N, C, H + 1, W + 1) for `grow` with an even kernel.

    Raises:
        ValueError: empty, negative or all-zero kernel; unknown padding; z not four-dimensional; a
            map too small to be reflected.
        TypeError: z is not floating point, or the kernel holds something else than numbers.

    Example:
        >>> z = torch.tensor([[[[4.0, 0.0], [8.0, 4.0]]]])
        >>> blur_features(z)[0, 0]
        tensor([[4., 1.],
                [3., 1.]])

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (8)**, Appendix B.2.

    Differs: the released 2x2 blur is the `grow` form; the paper's text keeps the size.
    """
    vector = check_kernel(kernel)
    check_choice("padding", padding, get_args(Padding))
    check_map(z)
    return convolve(z, footprint(vector, padding, dtype=z.dtype, device=z.device), padding)


def check_kernel(kernel: Sequence[float]) -> tuple[float, ...]:
    """The kernel as a tuple; raises unless it is a vector that can weight a mean."""
    is_vector = isinstance(kernel, Iterable) and all(
        isinstance(k, int | float) and not isinstance(k, bool) for k in kernel
    )
    if not is_vector:
        raise TypeError(f"kernel must be a vector of numbers such as (1, 2, 1), got {kernel!r}")
    vector = tuple(kernel)
    if not vector or not all(math.isfinite(k) and k >= 0 for k in vector) or sum(vector) == 0:
        raise ValueError(
            "kernel must hold non-negative numbers, not all zero, because they are the weights of "
            f"a mean; got {kernel!r}"
        )
    return vector


def check_map(z: Tensor) -> None:
    """Raise unless z is a floating-point map (N, C, H, W)."""
    check_floating("z", z)
    if z.dim() != 4:
        raise ValueError(f"z must be a feature map (N, C, H, W), got shape {tuple(z.shape)}")


def footprint(
    kernel: tuple[float, ...],
    padding: Padding,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Eq. (8) as a convolution weight (1, 1, k, k).

    With `zeros` an even kernel gets a leading row and column of zeros. It then is centred, and the
    convolution pads by itself: no padded copy of the map is made.
    """
    norm = sum(kernel)
    vector = [k / norm for k in kernel]
    if padding == "zeros" and len(kernel) % 2 == 0:
        vector = [0.0, *vector]
    outer = [[a * b for b in vector] for a in vector]  # Eq. (8)
    return torch.tensor([[outer]], dtype=dtype, device=device)


def convolve(z: Tensor, weight: Tensor, padding: Padding) -> Tensor:
    """The depth-wise convolution of z with one kernel for all channels."""
    size, channels = weight.shape[-1], z.shape[1]
    before, after = (size - 1) // 2, size // 2
    if padding == "replicate":
        z = _replicate(z, before, after)
    elif padding == "reflect":
        if after >= min(z.shape[-2:]):
            raise ValueError(
                f"reflect padding of a kernel of {size} needs maps of at least {after + 1} points "
                f"each way, got {tuple(z.shape)}; use padding='replicate' or 'zeros'"
            )
        z = F.pad(z, (before, after, before, after), mode="reflect")
    border = size // 2 if padding in ("zeros", "grow") else 0
    # Both sides spelled out: under tracing the size is a tensor, which older PyTorch can't repeat.
    sides = (border, border)
    return F.conv2d(z, weight.expand(channels, 1, size, size), padding=sides, groups=channels)


def _replicate(z: Tensor, before: int, after: int) -> Tensor:
    if not torch.compiler.is_compiling():
        return F.pad(z, (before, after, before, after), mode="replicate")
    # Compiled, the gradient of F.pad fails for maps that are not channels_last (torch 2.15).
    z = torch.cat([*[z[..., :1]] * before, z, *[z[..., -1:]] * after], dim=3)
    return torch.cat([*[z[..., :1, :]] * before, z, *[z[..., -1:, :]] * after], dim=2)


class Blur(nn.Module):
    """Averages neighbouring points; see `blur_features`. Nothing to train, nothing in state dicts.

    Example:
        >>> Blur((1, 2, 1), padding="replicate")(torch.ones(1, 1, 2, 2))[0, 0]
        tensor([[1., 1.],
                [1., 1.]])
    """

    weight: Tensor

    def __init__(self, kernel: Sequence[float] = (1, 1), padding: Padding = "zeros") -> None:
        super().__init__()
        self.kernel = check_kernel(kernel)
        check_choice("padding", padding, get_args(Padding))
        self.padding: Padding = padding
        self.register_buffer("weight", footprint(self.kernel, padding), persistent=False)

    def reset_parameters(self) -> None:
        """Write the kernel again; whoever builds models on the meta device calls this."""
        self.weight.copy_(footprint(self.kernel, self.padding))

    def forward(self, z: Tensor) -> Tensor:
        check_map(z)
        return self.scaled(z, 1.0)

    def scaled(self, z: Tensor, gain: float) -> Tensor:
        """`gain` times the blurred map, the gain taken into the kernel."""
        if len(self.kernel) == 1:
            return z if gain == 1.0 else z * gain
        weight = self.weight
        if z.dtype == torch.float64:  # the buffer holds single precision
            weight = footprint(self.kernel, self.padding, dtype=z.dtype, device=z.device)
        weight = weight if gain == 1.0 else weight * gain
        return convolve(z, weight.to(z.dtype), self.padding)

    def extra_repr(self) -> str:
        return f"{self.kernel}, padding={self.padding!r}"
