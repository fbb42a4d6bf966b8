"""The web page: one self-contained file that opens from disk."""

from __future__ import annotations

from html import escape
from importlib import resources
from pathlib import Path

import yaml

from sfumato._files import write_text
from sfumato.report.diagram import reliability_svg
from sfumato.report.read import MethodResults, StudyResults, read_study
from sfumato.report.summary import COLUMNS, pooled_bins, summarise


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the study in `folder`; the path of its `index.html`."""
    path = (out or folder / "report") / "index.html"
    write_text(path, render(read_study(folder)))
    return path


def render(results: StudyResults) -> str:
    """The page as HTML; everything that a user wrote is escaped."""
    style = resources.files("sfumato.report").joinpath("style.css").read_text(encoding="utf-8")
    sections = "".join((_table(results), _diagrams(results), _configuration(results)))
    title = escape(results.title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head>"
        f"<body><main><h1>{title}</h1>{sections}</main></body></html>\n"
    )


def _table(results: StudyResults) -> str:
    heads = "".join(
        f'<th scope="col">{escape(c.title)}{" (%)" if c.percent else ""} '
        f'<span class="better">{"↑" if c.better == "higher" else "↓"}</span></th>'
        for c in COLUMNS
    )
    rows = "".join(_row(method) for method in results.methods)
    return (
        "<section><h2>Results on the test set</h2><div class='wide'><table><thead><tr>"
        f"<th scope='col'>method</th><th scope='col'>seeds</th>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        "<p class='note'>Mean over seeds; in brackets the 95 % bootstrap interval over the test "
        "images. ECE and AECE: 15 bins of equal width and of equal mass. AURC: the error left when "
        "the least confident predictions are set aside, averaged over how many are.</p></section>"
    )


def _row(method: MethodResults) -> str:
    cells = []
    for column in COLUMNS:
        value = summarise(method, column.key)
        cells.append(f"<td>{'no result' if value is None else value.text(column.percent)}</td>")
    seeds = str(len(method.runs))
    if method.unfinished:
        seeds += f" ({len(method.unfinished)} unfinished)"
    return f"<tr><th scope='row'>{escape(method.name)}</th><td>{seeds}</td>{''.join(cells)}</tr>"


def _diagrams(results: StudyResults) -> str:
    figures = []
    for method in results.methods:
        bins, ece = pooled_bins(method), summarise(method, "ece")
        if bins is None or ece is None:
            continue
        caption = f"{escape(method.name)}<br><span class='note'>ECE {100 * ece.mean:.1f} %</span>"
        picture = reliability_svg(bins, method.name)
        figures.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
    return (
        "<section><h2>Do confidences match reality?</h2><p>Bars are the accuracy of predictions "
        "made with about that confidence. On the diagonal a confidence means what it says. "
        "<span class='key over'></span> more confident than right, "
        "<span class='key under'></span> more right than confident.</p>"
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
