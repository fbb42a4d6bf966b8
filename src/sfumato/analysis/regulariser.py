"""How many samples a regulariser acts on: a histogram of its values.

Reference: Park et al., ACLS: Adaptive and Conditional Label Smoothing for Network Calibration, ICCV
2023, Fig. 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from sfumato._core.checks import check_floating, check_integer, check_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RegulariserValues:
    """What a regulariser adds to the loss of each sample.

    Attributes:
        values: (N,), 0 where it does nothing.
    """

    values: Tensor

    def __post_init__(self) -> None:
        check_floating("values", self.values)
        if self.values.ndim != 1 or not len(self.values):
            raise ValueError(
                f"values must be (N,), one for each sample, got {tuple(self.values.shape)}"
            )

    @property
    def inactive(self) -> float:
        """Share of samples on which it does nothing."""
        return float((self.values == 0).double().mean())


def plot_regularisers(
    found: Mapping[str, RegulariserValues], *, upper: float = 0.1, bins: int = 20
) -> Figure:
    """Histograms side by side, each with the share of samples that are left alone.

    Args:
        found: title to values.
        upper: values are clipped into [0, upper], as in the paper.
        bins: number of bars.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    if not found:
        raise ValueError("found must hold the values of at least one network, got none")
    check_number("upper", upper, low=0.0, open_low=True)
    check_integer("bins", bins, low=1)
    figure = Figure(figsize=(3.4 * len(found) + 0.4, 3.0), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axis, (title, each) in zip(axes, found.items(), strict=True):
        counts = each.values.double().cpu().clamp(0, upper).histc(bins, 0, upper)
        width = upper / bins
        left = [number * width for number in range(bins)]
        shares = (counts / len(each.values)).tolist()
        axis.bar(left, shares, width, align="edge", color="#3b6ea5", edgecolor="white", lw=0.6)
        axis.set_title(f"{title}\nnothing for {each.inactive:.1%}", fontsize="medium")
        axis.set(xlabel="value of the regulariser", xlim=(0, upper))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of samples")
    return figure
