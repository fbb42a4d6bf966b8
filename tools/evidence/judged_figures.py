"""Figures of judged studies: means with the intervals of `sfumato report`, one line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from figures import BLUE, GOLD, GREEN, RED
from judged import DATA_SETS, REGRETS, JudgedColumn, regrets
from matplotlib.figure import Figure

COLOURS = (BLUE, RED, GREEN, GOLD)


def by_method(
    studies: Mapping[str, str], columns: Sequence[JudgedColumn], *, left_out: Sequence[str] = ()
) -> Figure:
    """A panel for each column, a colour for each study; a line where the first method stands.

    Args:
        studies: the study by what the legend calls it; methods that one of them lacks are left out.
        columns: what the panels show.
        left_out: methods whose numbers lie so far off that no others could be read.
    """
    of_each = [columns[0].numbers(study) for study in studies.values()]
    methods = [name for name in of_each[0] if all(name in found for found in of_each)]
    methods = [name for name in methods if name not in left_out]
    figure, panels = plt.subplots(
        1,
        len(columns),
        figsize=(3.4 * len(columns), 0.32 * len(methods) + 1.2),
        layout="constrained",
        sharey=True,
    )
    for axes, column in zip(panels, columns, strict=True):
        for place, (label, study) in enumerate(studies.items()):
            numbers = column.numbers(study)
            means = [numbers[name][0] for name in methods]
            below = [numbers[name][0] - numbers[name][1] for name in methods]
            above = [numbers[name][2] - numbers[name][0] for name in methods]
            shift = 0.22 * (place - (len(studies) - 1) / 2)
            axes.errorbar(
                means,
                [number + shift for number in range(len(methods))],
                xerr=(below, above),
                fmt="o",
                color=COLOURS[place],
                label=label,
                capsize=2,
                markersize=4,
            )
            axes.axvline(means[0], color=COLOURS[place], lw=0.8, ls=":")
        axes.set(yticks=range(len(methods)), yticklabels=methods, xlabel=column.title)
        axes.grid(axis="y", lw=0.3)
    panels[0].invert_yaxis()
    if len(studies) > 1:
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(studies), fontsize=8)
    return figure


def regret() -> Figure:
    """A panel for each column of `judged.REGRETS`: a dot for each data set, a bar for the mean."""
    figure, panels = plt.subplots(
        1, len(REGRETS), figsize=(9.6, 3.6), layout="constrained", sharey=True
    )
    markers = dict(zip(DATA_SETS, "osD^v", strict=True))
    colours = dict(zip(DATA_SETS, (*COLOURS, "0.3"), strict=True))
    for axes, column in zip(panels, REGRETS, strict=True):
        found = regrets(column)
        means = [sum(values.values()) / len(values) for values in found.values()]
        axes.barh(range(len(found)), means, color="0.85", height=0.7, label="mean")
        for data, marker in markers.items():
            places = [
                (place, values[data])
                for place, values in enumerate(found.values())
                if data in values
            ]
            if places:
                rows, values = zip(*places, strict=True)
                axes.scatter(
                    values, rows, marker=marker, color=colours[data], s=26, label=data, zorder=3
                )
        axes.set(yticks=range(len(found)), yticklabels=list(found))
        axes.set_xlabel(f"{column.title} above the best choice")
        axes.grid(axis="x", lw=0.3)
    panels[0].invert_yaxis()
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8)
    return figure
