"""What a layer does to each spatial frequency: why smoothing is a low-pass filter.

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, Proposition 2.2 and Appendix D.2.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer, check_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IMPULSE = 1e-4


@dataclass(frozen=True)
class FrequencyResponse:
    """Amplification of each frequency.

    Attributes:
        frequencies: (F,) float64 in units of pi, from 0 to 1.
        amplitude: (F, F), by vertical and horizontal frequency.
        impulse: (size, size), the answer to an impulse at (size // 2, size // 2).
    """

    frequencies: Tensor
    amplitude: Tensor
    impulse: Tensor

    @property
    def along_axis(self) -> Tensor:
        """(F,), amplification of horizontal waves."""
        return self.amplitude[0]

    @property
    def along_diagonal(self) -> Tensor:
        """(F,), amplification of waves of the same frequency in both directions."""
        return self.amplitude.diagonal()


def frequency_response(
    module: nn.Module, *, size: int = 32, channels: int = 1, level: float = 1.0
) -> FrequencyResponse:
    r"""How strongly a layer, or a stack of layers, passes each frequency of a feature map on.

    A layer that averages neighbours h has the response |H| = |FFT2(h)|: 1 for a flat map and less
    for all else, as its weights are positive and sum to one. Layers that are not linear, such as
    Prob, are taken for small waves on a flat map z of the given level:

        h = d module(z + e delta) / de at e = 0,    |H(f_1, f_2)| = |FFT2(h)|

    Args:
        module: acts on maps (N, C, H, W) of its own channels and does not shrink them, such as
            `Blur`, `Smooth`, or an `nn.Sequential` of them. It is evaluated in float64.
        size: of the map; an even number that is larger than the reach of the module.
        channels: C that the module needs; the impulse and its answer are those of the first.
        level: of the flat map; a ReLU lets nothing negative through.

    Raises:
        ValueError: the module shrinks maps, or its answer reaches the border.

    Example:
        >>> from sfumato.features import Blur
        >>> response = frequency_response(Blur((1, 1)), size=8)
        >>> response.along_axis  # |cos(f pi / 2)|
        tensor([1.0000, 0.9239, 0.7071, 0.3827, 0.0000], dtype=torch.float64)

    Reference:
        Park & Kim 2022, Proposition 2.2, Appendix D.2.
    """
    check_integer("size", size, low=2)
    check_integer("channels", channels, low=1)
    check_number("level", level)
    if size % 2:
        raise ValueError(f"size must be even, so that it has the highest frequency, got {size}")
    impulse = _impulse_response(module, size, channels, level)
    bins = size // 2 + 1
    amplitude = torch.fft.fft2(impulse).abs()[:bins, :bins]
    return FrequencyResponse(torch.linspace(0, 1, bins, dtype=torch.float64), amplitude, impulse)


def _impulse_response(module: nn.Module, size: int, channels: int, level: float) -> Tensor:
    module = copy.deepcopy(module).double().eval()
    middle = size // 2
    flat = torch.full((1, channels, size, size), level, dtype=torch.float64)
    delta = torch.zeros_like(flat)
    delta[0, 0, middle, middle] = _IMPULSE
    with torch.no_grad():
        # clones: a layer that works in place must not change the other's input
        up, down = module(flat + delta).clone(), module(flat - delta).clone()
    if up.ndim != 4 or min(up.shape[2:]) < size:
        raise ValueError(
            f"module must return maps at least as large as its input (1, {channels}, {size}, "
            f"{size}), got {tuple(up.shape)}; leave out what shrinks or pools"
        )
    whole = (up - down)[0, 0] / (2 * _IMPULSE)
    inside = torch.zeros_like(whole)
    inside[1 : size - 1, 1 : size - 1] = whole[1 : size - 1, 1 : size - 1]
    if bool((whole - inside).abs().max() > 1e-6):
        raise ValueError(f"size {size} is too small: the answer to an impulse reaches the border")
    return whole[:size, :size]


def plot_frequency_responses(responses: Mapping[str, FrequencyResponse]) -> Figure:
    """Responses along the axis and the diagonal, and over the plane of frequencies.

    Args:
        responses: title to response.

    Reference: Park & Kim 2022, Proposition 2.2.
    """
    from matplotlib.figure import Figure

    if not responses:
        raise ValueError("responses must hold at least one response, got none")
    count = len(responses)
    figure = Figure(figsize=(5.0 + 2.6 * count, 3.2), layout="constrained")
    axes = figure.subplots(1, 1 + count, width_ratios=[1.6, *[1.0] * count], squeeze=False)[0]
    for number, (title, response) in enumerate(responses.items()):
        color = f"C{number}"
        axes[0].plot(response.frequencies, response.along_axis, color=color, label=title)
        axes[0].plot(response.frequencies, response.along_diagonal, "--", color=color)
        plane = axes[1 + number]
        shown = plane.imshow(
            response.amplitude.numpy(), origin="lower", extent=(0, 1, 0, 1), vmin=0, cmap="magma",
            vmax=max(1.0, float(max(each.amplitude.max() for each in responses.values()))),
        )  # fmt: skip
        plane.set_title(title, fontsize="medium")
        plane.set_xlabel("frequency / π")
    axes[0].plot([], [], "--", color="0.4", label="diagonal")
    axes[0].set_xlabel("frequency / π")
    axes[0].set_ylabel("amplification")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize="small")
    axes[0].spines[["top", "right"]].set_visible(False)
    figure.colorbar(shown, ax=list(axes[1:]), shrink=0.85)
    return figure
