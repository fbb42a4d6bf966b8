"""The figures of docs/results, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from papers import MBLS_TABLE_1_NEWSGROUPS
from readings import (
    ACCURACY,
    CONFIDENCE,
    ECE,
    NLL,
    ROOT,
    WITHOUT_OBJECT,
    Column,
    Curves,
    Runs,
    at,
    of_size,
    t_interval,
)
from tables import with_scaled

BLUE, RED, GREEN, GOLD = "#30607f", "#c4452f", "#5f8f3e", "#d9a441"


def labels(runs: Runs) -> Figure:
    runs = with_scaled(runs)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    names = sorted(runs, key=lambda name: fmean(map(ECE.read, runs[name].values())))
    _before_and_after(axes, {name: runs[name] for name in names})
    axes.legend()
    return figure


def _before_and_after(axes: Axes, runs: Runs) -> None:
    """ECE of each method as trained and after a temperature, as pairs of bars."""
    for offset, (what, read, colour) in enumerate(
        (
            ("as trained", ECE.read, BLUE),
            ("after temperature scaling", at("scaled", "ece"), GOLD),
        )
    ):
        values = [[100 * read(metrics) for metrics in found.values()] for found in runs.values()]
        places = [place + 0.38 * offset - 0.19 for place in range(len(runs))]
        axes.barh(places, list(map(fmean, values)), 0.36, color=colour, label=what)
        axes.errorbar(
            list(map(fmean, values)), places, xerr=_spread(values), fmt="none", ecolor="black", lw=1
        )
    axes.set(yticks=range(len(runs)), yticklabels=list(runs), xlabel="ECE on the test set, %")
    axes.set_xlim(left=0)
    axes.invert_yaxis()


def newsgroups(full: Curves, runs: Runs) -> Figure:
    """ECE of each loss before and after scaling; the whole protocol epoch by epoch."""
    figure, (bars, ece, accuracy) = plt.subplots(
        1, 3, figsize=(11, 3.8), layout="constrained", width_ratios=(1.5, 1, 1)
    )
    _before_and_after(bars, runs)
    papers = [MBLS_TABLE_1_NEWSGROUPS.get(name, "nan;").split(";")[0] for name in runs]
    bars.plot(
        list(map(float, papers)), range(len(runs)), "D", color=RED, ms=5, label="paper, as trained"
    )
    bars.set_xlim(0, 25)
    bars.legend(fontsize=8, loc="center right")
    colours = (BLUE, RED, GREEN, GOLD)
    for axes, name in ((ece, "validation_ece"), (accuracy, "validation_accuracy")):
        for (method, curves), colour in zip(full.items(), colours, strict=False):
            values = [100 * value for value in curves[name]]
            axes.plot(range(1, len(values) + 1), values, color=colour, label=method, lw=1)
        axes.set(
            xlabel="epoch",
            ylabel=f"{name.split('_')[1]} on validation texts, %".replace("ece", "ECE"),
        )
        axes.set_ylim(bottom=0 if axes is ece else None)
    accuracy.legend(fontsize=8)
    return figure


def mollification(runs: Runs) -> Figure:
    severities = next(iter(runs["FCR"].values()))["corrupted"]["severities"]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    colours = {"FCR": BLUE, "FCR + TrivAug": RED, "FCR + MixUp": GREEN}
    for axes, key, title in zip(panels, ("error", "ece"), ("error %", "ECE %"), strict=True):
        for place, (name, found) in enumerate(runs.items()):
            plain = name.removesuffix(" + mollification")
            by_severity = [
                [
                    100 * fmean(row[level] for row in metrics["corrupted"]["cells"][key])
                    for metrics in found.values()
                ]
                for level in range(len(severities))
            ]
            style = {"ls": "--", "marker": "o"} if name == plain else {"ls": "-", "marker": "s"}
            axes.errorbar(
                [severity + 0.1 * (place - 2.5) for severity in severities],
                list(map(fmean, by_severity)),
                _spread(by_severity),
                color=colours[plain],
                label=name,
                markersize=4,
                elinewidth=0.8,
                **style,
            )
        axes.set(xlabel="severity", ylabel=f"corrupted {title}", xticks=severities)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    return figure


def spatial(runs: Runs) -> Figure:
    figure, panels = plt.subplots(2, 3, figsize=(9.5, 5.6), layout="constrained", sharex=True)
    shown = (("nll", NLL), ("accuracy", ACCURACY), ("ece", ECE))
    for row, network in zip(panels, ("ResNet", "VGG"), strict=True):
        for axes, (key, column) in zip(row, shown, strict=True):
            level = column.scale * fmean(map(column.read, runs[network].values()))
            axes.axhline(level, color="black", ls=":", label="deterministic")
            for end, colour in ((", MC dropout", BLUE), (", MC dropout + smooth", RED)):
                found = runs[network + end]
                numbers = next(iter(found.values()))["ensemble"]["sizes"]
                values = [
                    [column.scale * of_size(key, place)(metrics) for metrics in found.values()]
                    for place in range(len(numbers))
                ]
                style = {"marker": "o", "markersize": 4, "capsize": 2}
                axes.errorbar(
                    numbers,
                    list(map(fmean, values)),
                    _spread(values),
                    color=colour,
                    label=end[2:],
                    **style,
                )
            axes.set(xscale="log", xticks=numbers, xticklabels=numbers)
            axes.set(title=network, ylabel=column.title)
            axes.minorticks_off()
    for axes in panels[1]:
        axes.set_xlabel("number of samples N")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    return figure


def objectness(tiny: Runs, scenes: Runs) -> Figure:
    """Draw the gain and the cost of adaptive labels."""
    figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.6), layout="constrained", sharey=True)
    for axes, column in zip(panels, (WITHOUT_OBJECT[1], CONFIDENCE[0], ACCURACY), strict=True):
        _by_method(axes, tiny, column, BLUE, "Tiny-ImageNet-40")
        _by_method(axes, scenes, column, RED, "scenes")
        axes.set_xlabel(column.title)
        axes.set_xlim(left=0)
    panels[0].invert_yaxis()
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _by_method(axes: Axes, runs: Runs, column: Column, colour: str, label: str) -> None:
    """Mean and interval of a number, one line a method."""
    values = [
        [column.scale * column.read(metrics) for metrics in found.values()]
        for found in runs.values()
    ]
    axes.errorbar(
        list(map(fmean, values)),
        range(len(runs)),
        xerr=_spread(values),
        fmt="o",
        color=colour,
        label=label,
        capsize=2,
    )
    axes.set(yticks=range(len(runs)), yticklabels=list(runs))
    axes.grid(axis="y", lw=0.4)


def sizes(runs: Runs) -> Figure:
    numbers = sorted({int(name.split(", ")[1]) for name in runs})
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, colour in (("cross entropy", BLUE), ("ACLS", RED)):
        values = [
            [100 * ECE.read(metrics) for metrics in runs[f"{name}, {number}"].values()]
            for number in numbers
        ]
        axes.errorbar(
            numbers, list(map(fmean, values)), _spread(values), marker="o", color=colour, label=name
        )
    axes.set(xscale="log", xticks=numbers, xticklabels=[f"{number:,}" for number in numbers])
    axes.set(xlabel="training images", ylabel="ECE on the test set, %", ylim=(0, None))
    axes.minorticks_off()
    axes.legend()
    return figure


def _spread(values: Sequence[Sequence[float]]) -> list[float]:
    """Half the t interval of each; 0 with one value."""
    found = [t_interval(each) for each in values]
    return [0.0 if interval is None else (interval[1] - interval[0]) / 2 for interval in found]


def save(figure: Figure, name: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / f"docs/figures/{name}.png", dpi=110)
    plt.close(figure)
