"""Loss landscapes of several models side by side (Fig. 7 and C.2 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sfumato._core.checks import check_number
from sfumato.analysis.landscape.surface import LossLandscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_loss_landscapes(
    landscapes: Mapping[str, LossLandscape], *, ceiling: float | None = None
) -> Figure:
    """Surfaces above, contours below, one column per model, all on one scale; lines in one axis.

    Args:
        landscapes: title to landscape, all of the same dimensions. Several samples of a plane are
            averaged in the surface; on a line each is drawn.
        ceiling: losses above are cut off, for far points tend to dwarf the basin; None for twice
            the largest loss that any of the models has within half of the extent.

    Reference: Park & Kim 2022, Fig. 7.
    """
    if not landscapes:
        raise ValueError("landscapes must hold at least one landscape, got none")
    ranks = {landscape.losses.ndim for landscape in landscapes.values()}
    if len(ranks) > 1:
        raise ValueError("landscapes must all have one or all two dimensions, got both")
    top = _ceiling(landscapes) if ceiling is None else ceiling
    check_number("ceiling", top)
    return _draw_lines(landscapes, top) if ranks == {2} else _draw_planes(landscapes, top)


def _ceiling(landscapes: Mapping[str, LossLandscape]) -> float:
    inner, outer = [0.0], [0.0]
    for landscape in landscapes.values():
        near = landscape.coordinates.abs() <= landscape.coordinates.max() / 2
        mean = landscape.mean
        close = mean[near] if mean.ndim == 1 else mean[near][:, near]
        inner += close[close.isfinite()].tolist()
        outer += mean[mean.isfinite()].tolist()
    return min(2 * max(inner), 1.02 * max(outer)) or 1.0


def _draw_lines(landscapes: Mapping[str, LossLandscape], ceiling: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for number, (title, landscape) in enumerate(landscapes.items()):
        for sample in landscape.losses:
            axis.plot(landscape.coordinates, sample, color=f"C{number}", alpha=0.35, linewidth=0.8)
        axis.plot(landscape.coordinates, landscape.mean, color=f"C{number}", label=title)
    axis.set_ylim(top=ceiling)
    axis.set_xlabel("distance along the direction")
    axis.set_ylabel("loss")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_planes(landscapes: Mapping[str, LossLandscape], ceiling: float) -> Figure:
    from matplotlib.figure import Figure

    columns = len(landscapes)
    figure = Figure(figsize=(3.6 * columns, 6.4), layout="constrained")
    surfaces = {title: _cut(each.mean.numpy(), ceiling) for title, each in landscapes.items()}
    floor = min(float(surface.min()) for surface in surfaces.values())
    levels = np.linspace(floor, max(ceiling, floor + 1e-12), 21)
    for column, (title, landscape) in enumerate(landscapes.items(), 1):
        # coordinates of the second direction are the columns of the losses
        across, along = np.meshgrid(landscape.coordinates, landscape.coordinates)
        surface = surfaces[title]
        axis = figure.add_subplot(2, columns, column, projection="3d")
        axis.plot_surface(
            along, across, surface, cmap="viridis", vmin=floor, vmax=ceiling,
            rcount=60, ccount=60, linewidth=0.1, edgecolor="0.3",
        )  # fmt: skip
        axis.set_zlim(floor, ceiling)
        axis.set_title(title)
        axis.tick_params(labelsize="x-small")
        reach = float(landscape.coordinates[-1])
        axis.set_xticks([-reach, 0, reach])
        axis.set_yticks([-reach, 0, reach])
        flat = figure.add_subplot(2, columns, columns + column)
        shown = flat.contourf(along, across, surface, levels=levels, cmap="viridis")
        flat.contour(along, across, surface, levels=levels, colors="black", linewidths=0.3)
        flat.set_aspect("equal")
        flat.set_xlabel("first direction")
        if column == 1:
            flat.set_ylabel("second direction")
    figure.colorbar(shown, ax=flat, label="loss", shrink=0.8)
    return figure


def _cut(surface: np.ndarray, ceiling: float) -> np.ndarray:
    """Nothing above the ceiling; what is not a number lies there too."""
    return np.minimum(np.nan_to_num(surface, nan=ceiling, posinf=ceiling), ceiling)
