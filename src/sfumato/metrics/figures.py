"""Figures of calibration: reliability diagram, confidence histogram and map, risk-coverage curve.

Each function returns a `matplotlib.figure.Figure`; save it with `figure.savefig("name.pdf")`.
matplotlib is imported on use, so a metric doesn't pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sfumato._core.checks import numpy_to_tensor
from sfumato._core.plots import new_figure
from sfumato.metrics.calibration import ReliabilityBins, reliability
from sfumato.metrics.groups import check_shapes
from sfumato.metrics.scores import RiskCoverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _OVER, _UNDER, _GREY = "#3b6ea5", "#c8553d", "#e0a526", "#666666"
_new_figure = partial(new_figure, dpi=150)


def reliability_diagram(bins: ReliabilityBins, *, title: str = "") -> Figure:
    """Accuracy against confidence, the gap between them shaded, and how many samples each bin has.

    The hatched part of a bar lies between accuracy and mean confidence: red where confidence is
    higher, yellow where accuracy is. ECE and MCE of the bins are in the title.

    Args:
        bins: from `reliability` or `Reliability`; 15, 25 and 100 bins are all readable.
        title: first line of the title.

    Example:
        >>> from sfumato.metrics import reliability
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> figure = reliability_diagram(reliability(probs, torch.tensor([0, 0, 1, 1])))
        >>> len(figure.axes)
        2
    """
    figure = _new_figure(4.2, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    _draw_gaps(upper, bins)
    upper.set_title(
        _heading(title, "ECE {:.2%}   MCE {:.2%}   n = {:,}", *_errors(bins)),
        loc="left",
        fontsize=10,
    )
    edges, share, _, _ = _as_lists(bins)
    width = [b - a for a, b in pairwise(edges)]
    line = _line(width)
    lower.bar(edges[:-1], share, width, align="edge", color=_GREY, edgecolor="white", lw=line)
    lower.set(xlabel="confidence", ylabel="share")
    _percent(lower.yaxis)
    _gap_legend(figure)
    return figure


def draw_reliability(bins: ReliabilityBins, axes: Axes | None = None) -> tuple[Any, Axes]:
    """Draw accuracy against confidence in axes of a figure, or in new ones."""
    axes = _new_figure(4.2, 4.2).subplots() if axes is None else axes
    _draw_gaps(axes, bins)
    axes.set(xlabel="confidence")
    axes.set_title("ECE {:.2%}   MCE {:.2%}   n = {:,}".format(*_errors(bins)), fontsize=10)
    return axes.figure, axes


def _draw_gaps(axes: Axes, bins: ReliabilityBins) -> None:
    """Bars of accuracy with the gap to the mean confidence, and the diagonal."""
    edges, _, confidence, accuracy = _as_lists(bins)
    left, width = edges[:-1], [b - a for a, b in pairwise(edges)]
    line = _line(width)
    base = [min(pair) for pair in zip(accuracy, confidence, strict=True)]
    over = [c - b for c, b in zip(confidence, base, strict=True)]
    under = [a - b for a, b in zip(accuracy, base, strict=True)]
    axes.bar(left, base, width, align="edge", color=_ACCURACY, edgecolor="white", lw=line)
    for gap, colour, hatch in ((over, _OVER, "///"), (under, _UNDER, "\\\\\\")):
        shown = [edge for edge, height in zip(left, gap, strict=True) if height]
        heights = [height for height in gap if height]
        bottoms = [bottom for bottom, height in zip(base, gap, strict=True) if height]
        style: dict[str, Any] = {"color": colour + "50", "edgecolor": colour, "hatch": hatch}
        style["lw"] = line
        axes.bar(shown, heights, width[0], bottoms, align="edge", **style)
    axes.plot([0, 1], [0, 1], "--", color="black", lw=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")


def _line(widths: Sequence[float]) -> float:
    """Width of the lines around bars: thin ones where bars are many."""
    return 0.6 if len(widths) <= 30 else 0.2


def confidence_histogram(bins: ReliabilityBins, *, title: str = "") -> Figure:
    """Histogram of confidences, with accuracy and mean confidence marked.

    The distance between the two lines is the net over- or underconfidence.

    Args:
        bins: from `reliability` or `Reliability`.
        title: first line of the title.

    Example:
        >>> from sfumato.metrics import reliability
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> figure = confidence_histogram(reliability(probs, torch.tensor([0, 0, 1, 1])))
        >>> len(figure.axes)
        1
    """
    figure = _new_figure(4.2, 3.2)
    axes = figure.subplots()
    edges, share, _, _ = _as_lists(bins)
    width = [b - a for a, b in pairwise(edges)]
    line = _line(width)
    axes.bar(edges[:-1], share, width, align="edge", color=_ACCURACY, edgecolor="white", lw=line)
    total = float(bins.counts.sum()) or 1.0
    mean = float((bins.confidences * bins.counts).nansum()) / total
    accuracy = float((bins.accuracies * bins.counts).nansum()) / total
    axes.axvline(accuracy, color="black", lw=1.4, label=f"accuracy {accuracy:.1%}")
    axes.axvline(mean, color=_OVER, lw=1.4, ls="--", label=f"mean confidence {mean:.1%}")
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of predictions")
    _percent(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.set_title(_heading(title, "n = {:,}", int(total)), loc="left", fontsize=10)
    return figure


def confidence_map(
    probs: Tensor,
    target: Tensor,
    *,
    image: Tensor | None = None,
    title: str = "",
    num_bins: int | None = None,
    ignore_index: int = -100,
) -> Figure:
    """Confidence of every pixel of one image beside the pixels that are wrong.

    A trustworthy segmentation is pale where it is wrong. Deeper colour is higher confidence;
    ignored pixels are grey. `num_bins` adds the reliability diagram of this one image.

    Args:
        probs: class probabilities of one image; (C, H, W).
        target: class indices; (H, W).
        image: the image itself, uint8 or floating point in [0, 1]; (3, H, W) or (1, H, W).
        title: title of the figure.
        num_bins: bins of the reliability diagram, or None for no diagram.
        ignore_index: label of pixels that count for nothing.

    Example:
        >>> probs = torch.full((2, 4, 4), 0.5)
        >>> len(confidence_map(probs, torch.zeros(4, 4, dtype=torch.long)).axes)
        3
    """
    probs, target, image = (numpy_to_tensor(each) for each in (probs, target, image))
    check_shapes("probs[None]", probs.unsqueeze(0), target.unsqueeze(0))
    # bfloat16 has no numpy type, and a GPU tensor no picture.
    confidence, predicted = (x.detach().cpu() for x in probs.float().max(0))
    label = target.cpu()
    ignored = label == ignore_index
    wrong = (predicted != label).float().masked_fill(ignored, torch.nan)
    shown = confidence.masked_fill(ignored, torch.nan)
    panels = 2 + (image is not None) + (num_bins is not None)
    height, width = label.shape
    figure = _new_figure(2.9 * panels + 0.8, 2.9 * min(max(height / width, 0.3), 2.5) + 0.9)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if image is not None:
        _show(axes.pop(0), image.detach().cpu().movedim(0, -1).squeeze(-1), "image", cmap="gray")
    share = float(wrong.nanmean())
    _show(axes[0], wrong, f"wrong ({share:.1%})", cmap="Greys", vmin=0, vmax=1)
    drawn = _show(axes[1], shown, "confidence", cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, ax=axes[1], shrink=0.8, anchor=(0.0, 1.0), panchor=False)
    if num_bins is not None:
        rows, known = probs.detach().cpu().float().flatten(1).T, ~ignored.flatten()
        bins = reliability(rows[known], label.flatten()[known], num_bins=num_bins)
        _draw_gaps(axes[2], bins)
        axes[2].set_title(f"ECE {_errors(bins)[0]:.2%}")
        axes[2].set(xlabel="confidence", aspect=1, anchor="N")
        _gap_legend(figure)
    if title:
        figure.suptitle(title)
    return figure


def risk_coverage_curve(curves: Mapping[str, RiskCoverage], *, title: str = "") -> Figure:
    """Error of the predictions that are kept against the share that is kept, one line per model.

    Args:
        curves: name to `risk_coverage(...)`.
        title: title of the figure.

    Example:
        >>> from sfumato.metrics import risk_coverage
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> curve = risk_coverage(probs, torch.tensor([0, 0, 1, 1]))
        >>> len(risk_coverage_curve({"model": curve}).axes)
        1
    """
    figure = _new_figure(4.6, 3.4, curves=curves)
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        line = ("-", "--", "-.", ":")[number % 4]
        x, y = curve.coverage.tolist(), curve.risk.tolist()
        axes.step(x, y, line, where="post", label=name, lw=1.5)
    axes.set(xlim=(0, 1), xlabel="share of predictions kept", ylabel="error of those kept")
    axes.set_ylim(bottom=0)
    _percent(axes.xaxis)
    _percent(axes.yaxis)
    axes.legend(frameon=False)
    axes.set_title(title, loc="left", fontsize=10)
    return figure


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def objectness_curve(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Mean confidence and accuracy against objectness, a line for each model.

    Args:
        curves: by name of the model; each with `counts`, `objectness`, `confidence` and `accuracy`
            of the same length, one a bin, as a run's metrics hold them at `objectness.curve`.
            Empty bins draw nothing.

    Example:
        >>> curve = {"counts": [2, 0], "objectness": [0.2, float("nan")]}
        >>> curve |= {"confidence": [0.9, float("nan")], "accuracy": [0.5, float("nan")]}
        >>> len(objectness_curve({"hard label": curve}).axes)
        2

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    figure = _new_figure(7.6, 3.6, curves=curves)
    plots = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, key in zip(plots, ("confidence", "accuracy"), strict=True):
        for name, curve in curves.items():
            real = [i for i, count in enumerate(curve["counts"]) if count]
            across = [curve["objectness"][i] for i in real]
            axes.plot(across, [curve[key][i] for i in real], marker="o", ms=3.5, label=name)
        axes.plot([0, 1], [0, 1], "--", color="black", lw=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="objectness", ylabel=f"mean {key}")
    plots[0].legend(frameon=False, fontsize="small")
    return figure


def _heading(title: str, form: str, *numbers: float) -> str:
    return f"{title}\n{form.format(*numbers)}".strip()


def _gap_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    over = Patch(facecolor=_OVER + "50", edgecolor=_OVER, hatch="///", label="overconfident")
    under = Patch(facecolor=_UNDER + "50", edgecolor=_UNDER, hatch="\\\\\\", label="underconfident")
    figure.legend(handles=[over, under], loc="outside lower center", ncols=2, frameon=False)


def _show(axes: Axes, picture: Tensor, title: str, **style: Any) -> Any:
    axes.set_title(title)
    axes.set(xticks=[], yticks=[], facecolor="#d9d9d9", anchor="N")
    return axes.imshow(picture.numpy(), interpolation="nearest", **style)


def _as_lists(bins: ReliabilityBins) -> tuple[list[float], list[float], list[float], list[float]]:
    """Edges, shares, mean confidences and accuracies; empty bins draw nothing."""
    share = bins.counts / bins.counts.sum().clamp(min=1)
    confidence, accuracy = bins.confidences.nan_to_num(), bins.accuracies.nan_to_num()
    return bins.edges.tolist(), share.tolist(), confidence.tolist(), accuracy.tolist()


def _errors(bins: ReliabilityBins) -> tuple[float, float, int]:
    gap = (bins.confidences - bins.accuracies).abs().nan_to_num()
    total = int(bins.counts.sum())
    return float((gap * bins.counts).sum()) / max(total, 1), float(gap.max()), total
