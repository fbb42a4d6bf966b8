"""An audit for the terminal and as a web page: sentences first, then tables."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sfumato._core.files import write_json, write_text
from sfumato._core.metric_descriptions import describe_metric
from sfumato.report.audit_sentences import number, sentences, warnings_of
from sfumato.report.diagram import reliability_svg
from sfumato.report.document import DIAGRAM_KEY, document, figure, section, table
from sfumato.report.statistics import verdict_of_interval
from sfumato.report.summary import DiagramBins

_VERDICT_HEAD = ("model", "says %", "is right %", "gap in points [95 %]", "ECE % [95 %]")
_RANKING_HEAD = ("model", "NLL", "Brier", "AURC %", "accuracy % at 80 % coverage")
_TITLE = "Can these confidences be trusted?"
_LONGEST_BREAKDOWN = 10


def audit_view(found: Mapping[str, Any]) -> list[RenderableType]:
    """Verdicts in sentences, warnings, then tables that fit 80 columns; for the terminal."""
    parts: list[RenderableType] = [Text(f"{line}\n") for line in sentences(found)]
    parts += [Text(f"warning: {line}\n", style="yellow") for line in warnings_of(found)]
    parts.append(_rich(_TITLE, _VERDICT_HEAD, _verdict_rows(found)))
    for title, head, rows in _details(found):
        parts.append(_rich(title, head, rows[:_LONGEST_BREAKDOWN]))
    return parts


def write_audit(found: Mapping[str, Any], folder: Path) -> Path:
    """Write `audit.json` and the page; the path of its `index.html`."""
    write_json(folder / "audit.json", found)
    sections = [
        section(
            _TITLE,
            "".join(f"<p>{escape(line)}</p>" for line in sentences(found))
            + "".join(f"<p><strong>Warning:</strong> {escape(w)}</p>" for w in warnings_of(found))
            + table(_VERDICT_HEAD, _verdict_rows(found))
            + "<p class='note'>The gap is mean confidence minus accuracy. A verdict needs "
            "an interval without zero; «right on average, wrong in places» where a model with true "
            "confidences would show such an ECE in fewer than 5 of 100 test sets.</p>",
        ),
        section(
            "Do confidences match reality?",
            f"{DIAGRAM_KEY}<div class='grid'>"
            + "".join(_diagram(model) for model in found["models"])
            + "</div>",
        ),
    ]
    for title, head, rows in _details(found):
        sections.append(section(title, table(head, rows)))
    write_text(folder / "index.html", document("Sfumato audit", sections))
    return folder / "index.html"


def _verdict_rows(found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            model["name"],
            f"{100 * model['metrics']['average_confidence']:.1f}",
            f"{100 * model['metrics']['accuracy']:.1f}",
            _gap(model["gap"]),
            _value(model["metrics"], "ece", 100),
        ]
        for model in found["models"]
    ]


def _ranking_rows(found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            model["name"],
            number(model["metrics"]["nll"]),
            f"{model['metrics']['brier']:.3f}",
            f"{100 * model['metrics']['aurc']:.2f}",
            f"{100 * model['metrics']['accuracy_at_80']:.1f}",
        ]
        for model in found["models"]
    ]


def _details(found: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    parts = [("Likelihood, and which to reject", list(_RANKING_HEAD), _ranking_rows(found))]
    for compared in found["comparisons"]:
        title = (
            f"{compared['second']} against {compared['first']}, same {compared['samples']} samples"
        )
        head = ["metric", compared["first"], compared["second"], "difference [95 %]", "verdict"]
        parts.append((title, head, _comparison_rows(compared["metrics"])))
    scaled = [model for model in found["models"] if "scaled" in model]
    if scaled:
        head = ["model", "T", "ECE %", "scaled", "NLL", "scaled", "verdict"]
        parts.append(("Temperature scaling", head, [_scaled_row(model) for model in scaled]))
    for model in found["models"]:
        for key, name in (("by_group", "group"), ("by_class", "predicted class")):
            if model[key]:
                head = [name, "predictions", "gap in points [95 % for all rows]", "verdict"]
                rows = [
                    [row["name"], str(row["count"]), _gap(row), row["direction"]]
                    for row in model[key]
                ]
                parts.append((f"{model['name']} by {name}", head, rows))
    return parts


def _comparison_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, each in metrics.items():
        title, better, bounds = describe_metric(key)
        is_share = bounds == "share"
        scale, digits = (100, 2) if is_share else (1, 4)
        verdict = verdict_of_interval(each["low"], each["high"], better) if better else ""
        numbers = [f"{scale * each[part]:.{digits}f}" for part in ("first", "second")]
        difference = (
            f"{scale * each['difference']:+.{digits}f} "
            f"[{scale * each['low']:+.{digits}f}, {scale * each['high']:+.{digits}f}]"
        )
        rows.append([title + (" %" if is_share else ""), *numbers, difference, verdict])
    return rows


def _scaled_row(model: Mapping[str, Any]) -> list[str]:
    before, after = model["metrics"], model["scaled"]["metrics"]
    return [
        model["name"],
        f"{model['scaled']['temperature']:.3g}",
        f"{100 * before['ece']:.1f}",
        f"{100 * after['ece']:.1f}",
        number(before["nll"]),
        number(after["nll"]),
        model["scaled"]["verdict"],
    ]


def _gap(part: Mapping[str, Any]) -> str:
    low, high = part["interval"]
    gap = f"{100 * part['gap']:+.1f}"
    return gap if low != low else f"{gap} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _value(metrics: Mapping[str, Any], key: str, scale: float) -> str:
    text = f"{scale * metrics[key]:.1f}"
    interval = metrics.get(f"{key}_interval")
    if interval is None:
        return text
    return f"{text} [{scale * interval[0]:.1f}, {scale * interval[1]:.1f}]"


def _diagram(model: Mapping[str, Any]) -> str:
    bins = model["reliability"]
    fields = [[0 if v is None or v != v else v for v in bins[key]] for key in bins]
    picture = reliability_svg(DiagramBins(*fields), model["name"])
    return figure(model["name"], f"ECE {100 * model['metrics']['ece']:.1f} %", picture)


def _rich(title: str, head: tuple[str, ...] | list[str], rows: list[list[str]]) -> Table:
    view = Table(title=Text(title), title_justify="left")  # names from files are no markup
    for place, cell in enumerate(head):
        # A long name goes on in the next line: nothing is cut, on the narrowest terminal.
        view.add_column(Text(cell), justify="right" if place else "left", overflow="fold")
    for row in rows:
        view.add_row(*(Text(cell) for cell in row))
    return view
