"""An audit as one matplotlib figure: reliability with what chance would show, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _OVER, _UNDER, _INK = "#4477aa", "#cc6677", "#ddaa33", "#222222"


def audit_figure(model: Mapping[str, Any]) -> Figure:
    """Reliability diagram with consistency bars beside the risk-coverage curve of one model.

    Args:
        model: a judgement of `Audit.to_dict()["models"]`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    _reliability(left, model)
    _risk(right, model)
    return figure


def _reliability(axes: Axes, model: Mapping[str, Any]) -> None:
    bins = model["reliability"]
    size = len(bins["counts"])
    filled = [at for at, count in enumerate(bins["counts"]) if count]
    for at in filled:
        accuracy, confidence = bins["accuracy"][at], bins["confidence"][at]
        colour = _OVER if confidence > accuracy else _UNDER
        low = min(accuracy, confidence)
        axes.bar(at / size, accuracy, 1 / size, align="edge", color=_BAR, edgecolor="white", lw=0.6)
        height = abs(confidence - accuracy)
        axes.bar(at / size, height, 1 / size, low, align="edge", color=colour, alpha=0.5)
    middle = [(at + 0.5) / size for at in filled]
    mean = [bins["confidence"][at] for at in filled]
    ends = [
        [max(0.0, m - bins["low"][at]) for at, m in zip(filled, mean, strict=True)],
        [max(0.0, bins["high"][at] - m) for at, m in zip(filled, mean, strict=True)],
    ]
    style: dict[str, Any] = {"fmt": "none", "ecolor": _INK, "elinewidth": 1.4, "capsize": 2.5}
    axes.errorbar(middle, mean, ends, label="95 % of honest models", **style)
    axes.plot([0, 1], [0, 1], "--", color=_INK, lw=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.set_title(f"ECE {model['metrics']['ece']:.2%}, n = {model['samples']:,}", loc="left")
    axes.legend(frameon=False, loc="upper left")


def _risk(axes: Axes, model: Mapping[str, Any]) -> None:
    from matplotlib.ticker import PercentFormatter

    curve = model["curve"]
    share = [kept / model["samples"] for kept in curve["kept"]]
    risk = [wrong / kept for wrong, kept in zip(curve["wrong"], curve["kept"], strict=True)]
    axes.plot(share, risk, color=_BAR, lw=1.8, label="error of those kept")
    axes.plot(share, curve["bound"], color=_BAR, lw=0.9, ls=":", label="95 % bound")
    chosen = (model.get("thresholds") or {}).get("accept")
    if chosen is not None:
        axes.axhline(chosen["target_risk"], color=_OVER, lw=1, ls="--", label="target")
        if chosen["confidence"] is not None:
            text = f"confidence {chosen['confidence']:.3g}"
            axes.plot([chosen["coverage"]], [chosen["risk"]], "o", color=_OVER, label=text)
    highest = max(risk)
    axes.set(xlim=(0, 1), ylim=(0, 1.3 * highest or 1.0), xlabel="share of predictions kept")
    axes.set_ylabel("error of those kept")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title("which to act on", loc="left")
    axes.legend(frameon=False)
