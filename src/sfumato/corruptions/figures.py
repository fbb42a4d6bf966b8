"""Figures of robustness; matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice
from sfumato._core.plots import new_figure, open_axes
from sfumato.corruptions.catalogue import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    Constants,
    check_corruptible,
    corrupt,
)
from sfumato.corruptions.storage import corruption_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def corruption_sheet(
    image: Tensor,
    *,
    names: Sequence[str] = (*CORRUPTIONS, *EXTRA_CORRUPTIONS),
    constants: Constants | None = None,
    seed: int = 0,
    cell_inches: float = 1.0,
) -> Figure:
    """One image under every corruption: a row for each type, a column for each severity.

    Args:
        image: (C, H, W), uint8 or in [0, 1].
        names: the rows.
        constants: see `corrupt`.
        seed: of the random types.
        cell_inches: side of one picture.
    """
    check_corruptible(image.unsqueeze(0))
    figure = new_figure(cell_inches * (len(SEVERITIES) + 1.6), cell_inches * len(names) + 0.3)
    grid = figure.subplots(len(names), len(SEVERITIES), squeeze=False)
    white = 255 if image.dtype == torch.uint8 else 1
    for row, name in zip(grid, names, strict=True):
        for axes, severity in zip(row, SEVERITIES, strict=True):
            generator = corruption_generator(seed, name, severity)
            changed = corrupt(image[None], name, severity, constants=constants, generator=generator)
            pixels = changed[0].permute(1, 2, 0).squeeze(2).cpu().numpy()
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=white, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(_words(name), rotation=0, ha="right", va="center")
    for axes, severity in zip(grid[0], SEVERITIES, strict=True):
        axes.set_title(f"severity {severity}" if severity == 1 else str(severity), fontsize=10)
    return figure


def corruption_heatmap(
    scores: Any,
    *,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    label: str = "error",
) -> Figure:
    """A score for each type and severity as a table of colours with its numbers.

    Args:
        scores: (types, severities).
        names, severities: of its rows and columns.
        label: what the score is.
    """
    table = _table(scores, names, severities)
    figure = new_figure(5.2, 0.9 + 0.3 * len(table))
    axes = figure.subplots()
    picture = axes.imshow(table.numpy(), aspect="auto", cmap="cividis")
    axes.set_xticks(range(len(severities)), map(str, severities))
    axes.set_yticks(range(len(table)), map(_words, names))
    axes.set_xlabel("severity")
    middle = float(table.min() + table.max()) / 2
    for row, values in enumerate(table.tolist()):
        for column, value in enumerate(values):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(column, row, f"{value:.3g}", color="k" if value > middle else "w", **style)
    figure.colorbar(picture, ax=axes, label=label)
    return figure


def corruption_boxes(
    scores: Mapping[str, Any],
    *,
    by: Literal["severity", "type"] = "severity",
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    label: str = "error",
) -> Figure:
    """Box plot of one or several models: median, quartiles, minimum and maximum.

    Args:
        scores: (types, severities) for each model's name.
        by: a box at each "severity", over the types (figure E.2 of the spatial smoothing paper), or
            one for each "type", over the severities.
        names, severities, label: as in `corruption_heatmap`.
    """
    check_choice("by", by, ("severity", "type"))
    tables = {model: _table(values, names, severities) for model, values in scores.items()}
    groups = [*map(str, severities)] if by == "severity" else [*map(_words, names)]
    width = max(5.0, 0.28 * len(groups) * (1 + len(tables)) + 1.5)
    figure = new_figure(width, 3.6 if by == "severity" else 4.6)
    axes = figure.subplots()
    share = 0.8 / max(1, len(tables))
    for number, (model, table) in enumerate(tables.items()):
        shift = (number - (len(tables) - 1) / 2) * share
        axes.boxplot(
            (table if by == "severity" else table.T).numpy(),
            positions=[shift + place for place in range(len(groups))],
            widths=0.85 * share,
            whis=(0, 100),
            patch_artist=True,
            boxprops={"facecolor": f"C{number}", "alpha": 0.6},
            medianprops={"color": "black"},
            label=model,
        )
    axes.set_xticks(range(len(groups)), groups)
    if by == "type":
        axes.tick_params(axis="x", rotation=90)
    return _finish(figure, axes, xlabel=by, ylabel=label)


def severity_curve(
    scores: Mapping[str, Any],
    *,
    clean: Mapping[str, float] | None = None,
    severities: Sequence[int] = SEVERITIES,
    label: str = "error",
) -> Figure:
    """Mean over the types against severity, a line for each model; severity 0 is the clean set.

    Args:
        scores: (types, severities) for each model's name.
        clean: the score of each model on clean images.
        severities, label: as in `corruption_heatmap`.
    """
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    places = list(severities) if clean is None else [0, *severities]
    for model, values in scores.items():
        means = torch.as_tensor(values, dtype=torch.float64).mean(dim=0).tolist()
        start = [] if clean is None else [clean[model]]
        axes.plot(places, start + means, marker="o", label=model)
    axes.set_xticks(places)
    return _finish(figure, axes, xlabel="severity", ylabel=label)


def frequency_curve(
    frequencies: Sequence[float], accuracies: Mapping[str, Any], *, label: str = "accuracy"
) -> Figure:
    """Accuracy against the frequency of the noise (figure 6c of the spatial smoothing paper).

    Args:
        frequencies: middles of the bands, in radians per pixel.
        accuracies: (frequencies,) for each model's name.
        label: what the score is.
    """
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    for model, values in accuracies.items():
        axes.plot([f / math.pi for f in frequencies], list(values), marker="o", label=model)
    return _finish(figure, axes, xlabel="frequency / π", ylabel=label)


def _finish(figure: Figure, axes: Axes, *, xlabel: str, ylabel: str) -> Figure:
    open_axes(axes, xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _words(name: str) -> str:
    return name.replace("_", " ").replace("jpeg", "JPEG")


def _table(scores: Any, names: Sequence[str], severities: Sequence[int]) -> Tensor:
    table = torch.as_tensor(scores, dtype=torch.float64)
    if table.shape != (len(names), len(severities)):
        raise ValueError(
            f"scores must be ({len(names)}, {len(severities)}) for {len(names)} types and "
            f"{len(severities)} severities, got {tuple(table.shape)}"
        )
    return table
