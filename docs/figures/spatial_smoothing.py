"""Draws docs/figures/spatial-smoothing.svg: where Smooth and dropout go.

Run: python docs/figures/spatial_smoothing.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

PLAIN, STAGE, SMOOTH, DROP = "#e9ecef", "#cfe2ff", "#ffd8a8", "#d3f9d8"
INK = "#343a40"


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str
) -> None:
    """A rounded box with its centre at (x, y)."""
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=colour,
        edgecolor=INK,
        linewidth=0.8,
    )
    axes.add_patch(patch)
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=INK)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.9})


def network(axes: Axes) -> None:
    """The whole chain; heights fall with the resolution."""
    y = 4.2
    items = [("stem", 0.75, 1.9, PLAIN)]
    for number, height in enumerate((1.5, 1.2, 0.95, 0.75), 1):
        items += [(f"stage {number}", 0.85, height, STAGE), ("Smooth", 0.8, height, SMOOTH)]
    items += [("global\npooling", 0.8, 0.6, PLAIN), ("linear", 0.65, 0.6, PLAIN)]
    x = 0.1
    axes.text(x, y, "image", ha="left", va="center", fontsize=8.5, color=INK)
    x += 0.55
    for text, width, height, colour in items:
        arrow(axes, (x, y), (x + 0.3, y))
        x += 0.3 + width / 2
        box(axes, x, y, width, height, text, colour)
        x += width / 2
    axes.text(
        0.1,
        5.35,
        "Smooth ends each stage, before the next one down-samples and before global pooling; "
        "none in the stem",
        fontsize=9.5,
        color=INK,
    )


def block(axes: Axes) -> None:
    """The first block of a stage: both branches read the smoothed map."""
    axes.text(0.1, 2.75, "First block of the next stage (ResNet)", fontsize=9.5, color=INK)
    y, low = 2.0, 1.0
    box(axes, 0.6, y, 0.8, 0.6, "Smooth", SMOOTH)
    x = 1.0
    steps = [
        ("3x3 conv\nstride 2", STAGE),
        ("norm\nReLU", STAGE),
        ("dropout", DROP),
        ("3x3 conv", STAGE),
        ("norm", STAGE),
    ]
    for text, colour in steps:
        arrow(axes, (x, y), (x + 0.3, y))
        box(axes, x + 0.75, y, 0.9, 0.6, text, colour)
        x += 1.2
    arrow(axes, (x, y), (x + 0.32, y))
    axes.text(x + 0.45, y, "+", ha="center", va="center", fontsize=13, color=INK)
    arrow(axes, (x + 0.58, y), (x + 0.95, y))
    axes.text(x + 1.0, y, "ReLU", va="center", fontsize=8.5, color=INK)
    axes.plot([1.12, 1.12], [y, low], color=INK, linewidth=0.9)
    arrow(axes, (1.12, low), (3.3, low))
    box(axes, 3.95, low, 1.3, 0.5, "1x1 conv, stride 2", STAGE)
    axes.plot([4.6, x + 0.45], [low, low], color=INK, linewidth=0.9)
    arrow(axes, (x + 0.45, low), (x + 0.45, y - 0.18))


def layer(axes: Axes) -> None:
    """What Smooth does."""
    axes.text(9.45, 2.75, "Smooth = Blur after Prob", fontsize=9.5, color=INK)
    box(axes, 10.15, 2.0, 1.4, 0.6, r"$\tau\,\tanh(z/\tau)$", SMOOTH)
    arrow(axes, (10.85, 2.0), (11.1, 2.0))
    box(axes, 11.45, 2.0, 0.7, 0.6, "ReLU", SMOOTH)
    arrow(axes, (11.8, 2.0), (12.05, 2.0))
    box(axes, 12.6, 2.0, 1.1, 0.6, "2x2 mean", SMOOTH)
    axes.text(10.8, 1.5, "Prob", ha="center", fontsize=8.5, color=INK)
    axes.text(12.6, 1.5, "Blur", ha="center", fontsize=8.5, color=INK)
    axes.text(9.45, 1.0, "no weights, no state-dict entries, size kept", fontsize=8.5, color=INK)


def main() -> None:
    figure, axes = plt.subplots(figsize=(13.4, 5.2))
    axes.set_xlim(0, 13.4)
    axes.set_ylim(0.5, 5.7)
    axes.axis("off")
    network(axes)
    block(axes)
    layer(axes)
    figure.tight_layout(pad=0.3)
    path = Path(__file__).with_name("spatial-smoothing.svg")
    figure.savefig(path, metadata={"Date": None})
    print(path.name)


if __name__ == "__main__":
    main()
