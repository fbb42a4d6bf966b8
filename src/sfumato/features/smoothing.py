"""Prob, Blur and Smooth: the spatial smoothing layer and its two parts (Eq. 5-8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from sfumato._core.checks import check_choice, check_floating, check_number
from sfumato.ops.library import can_smooth, is_within_reach, smooth_map

_LONGEST = 1_000  # of kernels
ProbKind = Literal["tanh", "relu6", "scale", "none", "identity"]


def bound_features(z: Tensor, kind: ProbKind = "tanh", *, temperature: float = 10.0) -> Tensor:
    r"""Bound every point of a feature map, so that it can stand for a probability.

    Each point of a map is read as a small binary classifier, whose outputs can only be averaged if
    none is unbounded: one huge activation would outvote its neighbours. Each kind is followed by
    ReLU:

        Prob(z) = ReLU(tanh_tau(z)),  tanh_tau(z) = tau tanh(z / tau)

    Args:
        z: feature map of any shape.
        kind: `tanh` (Eq. 7, range [0, temperature)); `relu6`, min(z, 6); `scale`, z / temperature;
            `none`, no bound at all; `identity`, not even ReLU (blur alone, Appendix F).
        temperature: tau; used by `tanh` (the paper's 10) and `scale` (the paper takes 5).

    Example:
        >>> bound_features(torch.tensor([-3.0, 1.0, 10.0, 100.0]))
        tensor([ 0.0000,  0.9967,  7.6159, 10.0000])

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (6)**, **Eq. (7)**, Appendix B.1.

    Differs: the released `scale` leaves out the ReLU; the paper's Prob always has it.
    """
    check_prob(kind, temperature)
    check_floating("z", z)
    bounded, gain = split_bound(z, kind, temperature)
    return bounded if gain == 1.0 else bounded * gain


def check_prob(kind: ProbKind, temperature: float, *, name: str = "kind") -> None:
    """Raise unless the two describe a Prob; `name` is what the caller calls its kind."""
    check_choice(name, kind, get_args(ProbKind))
    check_number("temperature", temperature, low=0.0, open_low=True)


def split_bound(
    z: Tensor, kind: ProbKind, temperature: float, *, inplace: bool = False
) -> tuple[Tensor, float]:
    """Prob as a tensor and a factor still to be multiplied in.

    What follows Prob is linear: the factor can go into its kernel, a pass over memory less.
    """
    if kind == "tanh":
        scaled = z.mul_(1 / temperature) if inplace else z * (1 / temperature)
        bounded = scaled.tanh_()
        # tanh keeps its output for the backward pass: only without one may it be overwritten.
        return F.relu(bounded, inplace=not bounded.requires_grad), temperature  # Eq. (6), (7)
    if kind == "scale":
        return F.relu(z, inplace=inplace), 1 / temperature
    if kind == "relu6":
        return F.relu6(z, inplace=inplace), 1.0
    return (z if kind == "identity" else F.relu(z, inplace=inplace)), 1.0


class Prob(nn.Module):
    """Bounds a feature map; see `bound_features`.

    Example:
        >>> Prob("relu6")(torch.tensor([-1.0, 3.0, 9.0]))
        tensor([0., 3., 6.])
    """

    def __init__(self, kind: ProbKind = "tanh", temperature: float = 10.0) -> None:
        super().__init__()
        check_prob(kind, temperature)
        self.kind: ProbKind = kind
        self.temperature = temperature

    def forward(self, z: Tensor) -> Tensor:
        return bound_features(z, self.kind, temperature=self.temperature)

    def extra_repr(self) -> str:
        tau = f", temperature={self.temperature:g}" if self.kind in ("tanh", "scale") else ""
        return f"{self.kind!r}{tau}"


Padding = Literal["zeros", "replicate", "reflect", "grow"]


def blur_features(
    z: Tensor, kernel: Sequence[float] = (1, 1), *, padding: Padding = "zeros"
) -> Tensor:
    r"""Average each point of a feature map with its neighbours, channel by channel.

    Neighbouring points are nearly the same prediction, so that their mean behaves like a small
    ensemble: a depth-wise convolution with a fixed kernel

        K = k k^T / ||k||_1^2                                                            (Eq. 8)

    Even kernels reach one point further right and down than left and up.

    Args:
        z: feature map.
        kernel: the vector k, not negative: (1,) is the identity, (1, 1) the paper's 2x2 box,
            (1, 2, 1) and (1, 4, 6, 4, 1) are nearly Gaussian.
        padding: what lies outside the map: `zeros` (border points shrink towards zero),
            `replicate`, `reflect`; or `grow`, zeros on all four sides as in the released code,
            where an even kernel makes the map one point larger each way.

    Shape:
        z: (N, C, H, W). Output: the same; (N, C, H + 1, W + 1) for `grow` with an even kernel.

    Raises:
        ValueError, TypeError: bad kernel or padding, z no map, a map too small to be reflected.

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
    if len(vector) > _LONGEST:  # its square is made
        raise ValueError(f"kernel must have at most {_LONGEST} numbers, got {len(vector):,}")
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

    With `zeros` an even kernel gets a leading row and column of zeros: it is centred, and the
    convolution pads by itself.
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


def can_fuse(z: Tensor, kernel: tuple[float, ...], prob: ProbKind, padding: Padding) -> bool:
    """True for the paper's own layer, where there is a kernel for the map and no tangent of it."""
    is_standard = prob == "tanh" and padding == "zeros" and kernel == (1, 1)
    return is_standard and can_smooth(z) and forward_ad.unpack_dual(z).tangent is None


def fused_smooth(z: Tensor, temperature: float) -> Tensor:
    """`smooth_features` with its default kernel, bound and padding, where `can_fuse`."""
    if not (torch.is_grad_enabled() and z.requires_grad):
        return smooth_map(z.detach(), temperature)
    return _Smooth.apply(z, temperature)


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.temperature = temperature
        return smooth_map(z, temperature)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        # With gradients enabled a second derivative is asked for, which the kernel has not.
        if is_within_reach(upstream) and not torch.is_grad_enabled():
            return smooth_map(z, ctx.temperature, upstream), None
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            again = blur_features(bound_features(z, temperature=ctx.temperature))
        (result,) = torch.autograd.grad(again, z, upstream, create_graph=create_graph)
        return result, None


def smooth_features(
    z: Tensor,
    kernel: Sequence[float] = (1, 1),
    *,
    prob: ProbKind = "tanh",
    temperature: float = 10.0,
    padding: Padding = "zeros",
) -> Tensor:
    r"""Smooth a feature map: bound it, then average neighbours.

    The mean of neighbouring points is an ensemble that costs one pass. It damps the noise of (MC)
    dropout, flattens the loss landscape, and lets two dropout samples do the work of fifty.

        Smooth(z) = Blur(Prob(z))                                                        (Eq. 5)

    Args:
        z: feature map, best the output of a whole stage, before the next one down-samples it.
        kernel, padding: of the blur; see `blur_features`.
        prob, temperature: of Prob; see `bound_features`. `identity` gives Blur alone.

    Shape:
        z: (N, C, H, W). Output: the same; (N, C, H + 1, W + 1) for `grow` with an even kernel.

    Example:
        >>> smooth_features(torch.full((1, 1, 3, 3), 100.0))[0, 0]
        tensor([[10.0000, 10.0000,  5.0000],
                [10.0000, 10.0000,  5.0000],
                [ 5.0000,  5.0000,  2.5000]])

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (5)**.
    """
    check_map(z)
    check_prob(prob, temperature, name="prob")
    if can_fuse(z, check_kernel(kernel), prob, padding):
        return fused_smooth(z, temperature)
    bounded = bound_features(z, prob, temperature=temperature)
    return blur_features(bounded, kernel, padding=padding)  # Eq. (5)


class Smooth(nn.Module):
    """The spatial smoothing layer; see `smooth_features`. No weights, no state-dict entries.

    Args:
        kernel, prob, temperature, padding: as in `smooth_features`.
        inplace: overwrite the input. Only where nothing else reads it, as with `nn.ReLU`.

    Example:
        >>> Smooth(padding="replicate")(torch.full((1, 1, 2, 2), 1.0))[0, 0]
        tensor([[0.9967, 0.9967],
                [0.9967, 0.9967]])
    """

    def __init__(
        self,
        kernel: Sequence[float] = (1, 1),
        *,
        prob: ProbKind = "tanh",
        temperature: float = 10.0,
        padding: Padding = "zeros",
        inplace: bool = False,
    ) -> None:
        super().__init__()
        check_prob(prob, temperature, name="prob")
        self.prob = Prob(prob, temperature)
        self.blur = Blur(kernel, padding)
        self.inplace = inplace

    def forward(self, z: Tensor) -> Tensor:
        check_map(z)
        if can_fuse(z, self.blur.kernel, self.prob.kind, self.blur.padding):
            return fused_smooth(z, self.prob.temperature)
        bounded, gain = split_bound(z, self.prob.kind, self.prob.temperature, inplace=self.inplace)
        return self.blur.scaled(bounded, gain)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""
