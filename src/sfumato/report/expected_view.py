"""Predictions without labels, for the terminal and as a page: what they promise, and if what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from sfumato.report.audit_sentences import skipped_line, time_text
from sfumato.report.audit_tables import AuditTable
from sfumato.report.export import markdown_row, one_line

ASSUMPTION = (
    "Assumption: each confidence is right on these data, which only labels can check. A model that "
    "is confidently wrong about inputs of a new kind promises what it does not hold."
)
LEFT_OUT = (
    "Left out, because it needs labels: calibration errors, likelihood, thresholds with a "
    "guarantee, prediction sets, mistakes."
)
NEXT = "Label some hundred of these, drawn at random, and audit them: that checks the assumption."
COMMAND = "sfumato audit LABELLED_SAMPLE --target-risk 0.02"


def expected_headline(model: Mapping[str, Any]) -> str:
    """The accuracy to expect, and if what."""
    part = model["expected"]
    low, high = (100 * end for end in part["interval"])
    return (
        f"{model['name']}: an accuracy of {100 * part['accuracy']:.1f} % is to be expected of "
        f"{model['samples']:,} predictions without labels [95 %: {low:.1f}, {high:.1f}], if its "
        "confidences are right."
    )


def expected_warnings(model: Mapping[str, Any]) -> list[str]:
    """What speaks against the number, besides the assumption."""
    lines = []
    if model["images"] is not None:
        lines.append(
            f"{model['name']}: several predictions are of one image and err together: the interval "
            "is too narrow for them"
        )
    return [*lines, *skipped_line(model)]


def expected_tables(found: Mapping[str, Any]) -> list[AuditTable]:
    """What is to be expected of each model, and of its parts."""
    rows = [_row({**model["expected"], "name": model["name"]}) for model in found["models"]]
    tables = [AuditTable("Accuracy to expect, if confidences are right", _head("model"), rows)]
    for model in found["models"]:
        named = [
            {**row, "name": time_text(row["start"], model["is_dated"])} for row in model["by_time"]
        ]
        for what, parts in (
            ("group", model["by_group"]),
            ("predicted class", model["by_class"]),
            ("time", named),
        ):
            if len(parts) > 1:
                title = f"{model['name']} by {what}"
                tables.append(AuditTable(title, _head(what), [_row(row) for row in parts]))
    return tables


def expected_lines(found: Mapping[str, Any]) -> list[str]:
    """The whole in sentences."""
    return [*map(expected_headline, found["models"]), ASSUMPTION, LEFT_OUT]


def expected_view(found: Mapping[str, Any], rich: Any) -> list[RenderableType]:
    """For the terminal; `rich` turns a table into one of its own."""
    parts: list[RenderableType] = [Text(f"{line}\n") for line in expected_lines(found)]
    for model in found["models"]:
        parts += [Text(f"warning: {line}\n", style="yellow") for line in expected_warnings(model)]
    parts += [rich(each) for each in expected_tables(found)]
    return [*parts, Text(f"{NEXT}\n  {COMMAND}")]


def expected_markdown(found: Mapping[str, Any]) -> str:
    """A block for a model card; names are escaped."""
    lines = ["## Accuracy to expect", ""]
    said = [*expected_lines(found), *(w for m in found["models"] for w in expected_warnings(m))]
    lines += [f"{one_line(line.replace('<', '&lt;').replace('`', ''))}\n" for line in said]
    for content in expected_tables(found):
        rule = "| --- |" + " ---: |" * (len(content.head) - 1)
        rows = [markdown_row(row) for row in content.rows]
        lines += [f"### {one_line(content.title.replace('<', '&lt;'))}", ""]
        lines += [markdown_row(content.head), rule, *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def expected_screen(model: Mapping[str, Any], place: int) -> str:
    """The first screen of the page: what is to be expected, if what, and where it is doubtful."""
    warned = "".join(f"<p class='warning'>{escape(line)}</p>" for line in expected_warnings(model))
    tag = "h1" if place == 0 else "h2"
    return (
        f"<section class='first' id='model-{place}'>"
        f"<{tag} class='verdict open'>{escape(expected_headline(model))}</{tag}>"
        f"<p class='lead'>{escape(ASSUMPTION)} {escape(LEFT_OUT)}</p>{warned}"
        f"<div class='pair'><div data-figure='confidences' data-model='{place}'></div>"
        f"<div data-figure='risk' data-model='{place}'></div></div>"
        f"<div class='advice next'><p class='headline'>What to do next</p><div class='step'>"
        f"<p>{escape(NEXT)}</p><pre tabindex='0'><code>{escape(COMMAND)}</code></pre></div></div>"
        "</section>"
    )


def _head(what: str) -> Sequence[str]:
    return (what, "predictions", "right, to be expected % [95 % for all]")


def _row(part: Mapping[str, Any]) -> list[str]:
    low, high = part["interval"]
    value = f"{100 * part['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return [part["name"], f"{part['count']:,}", value]
