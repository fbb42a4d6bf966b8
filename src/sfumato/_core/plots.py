"""Figures: made where matplotlib is installed, and for at least one thing to show."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from sfumato._core.checks import check_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, *, dpi: float | None = None, **shown: Sized) -> Figure:
    """An empty figure of a size in inches; what it shows, by its argument's name, has entries."""
    for name, each in shown.items():
        if not len(each):
            raise ValueError(f"{name} must hold at least one entry to draw, got none")
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def open_axes(axes: Axes, **settings: Any) -> None:
    """Set labels and limits, and leave out the frame above and to the right."""
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)
