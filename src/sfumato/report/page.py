"""The report of a study as one web page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import yaml

from sfumato._files import write_text
from sfumato.report.diagram import reliability_svg
from sfumato.report.document import DIAGRAM_KEY, document, figure, table
from sfumato.report.objectness import objectness_section
from sfumato.report.read import MethodResults, StudyResults, read_study
from sfumato.report.summary import Column, pooled_bins, shown_columns, summarise


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the study in `folder`; the path of its `index.html`."""
    path = (out or folder / "report") / "index.html"
    write_text(path, render(read_study(folder)))
    return path


def render(results: StudyResults) -> str:
    """The page as HTML; everything that a user wrote is escaped."""
    sections = (_results, _diagrams, objectness_section, _configuration)
    return document(results.title, [section(results) for section in sections])


def _results(results: StudyResults) -> str:
    columns = shown_columns(results.methods)
    head = ["method", "seeds", *(column.heading for column in columns)]
    return (
        "<section><h2>Results on the test set</h2>"
        + table(head, [_row(method, columns) for method in results.methods])
        + "<p class='note'>Mean over seeds; in brackets the 95 % bootstrap interval over the test "
        "images. ECE and AECE: 15 bins of equal width and of equal mass. AURC: the error left when "
        "the least confident predictions are set aside, averaged over how many are. Corrupted: "
        "mean over the corruptions and severities that the study names.</p></section>"
    )


def _row(method: MethodResults, columns: Sequence[Column]) -> list[str]:
    seeds = str(len(method.runs))
    if method.unfinished:
        seeds += f" ({len(method.unfinished)} unfinished)"
    values = [(column, summarise(method, column.key, column.split)) for column in columns]
    cells = ["no result" if v is None else v.lines(column.percent) for column, v in values]
    return [method.name, seeds, *cells]


def _diagrams(results: StudyResults) -> str:
    figures = []
    for method in results.methods:
        bins, ece = pooled_bins(method), summarise(method, "ece")
        if bins is not None and ece is not None:
            picture = reliability_svg(bins, method.name)
            figures.append(figure(method.name, f"ECE {100 * ece.mean:.1f} %", picture))
    return (
        f"<section><h2>Do confidences match reality?</h2>{DIAGRAM_KEY}"
        f"<div class='grid'>{''.join(figures)}</div></section>"
    )


def _configuration(results: StudyResults) -> str:
    text = escape(yaml.safe_dump(results.study, sort_keys=False))
    blocks = [f"<details open><summary>Study file</summary><pre>{text}</pre></details>"]
    for method in results.methods:
        if method.runs:
            full = escape(yaml.safe_dump(method.runs[0].config, sort_keys=False))
            name = escape(method.name)
            blocks.append(
                f"<details><summary>{name}: everything resolved, first seed</summary>"
                f"<pre>{full}</pre></details>"
            )
    return f"<section><h2>Configuration</h2>{''.join(blocks)}</section>"
