"""The page of an analysis: a table of numbers and a picture for each question."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from sfumato._files import read_json, write_text
from sfumato.report.document import document, table


def write_analysis_page(folder: Path) -> Path:
    """Write `index.html` beside the `analysis.json` that `sfumato analyse` wrote."""
    content = read_json(folder / "analysis.json")
    sections = [_summary(content["summary"])]
    sections += [_section(each) for each in content["sections"]]
    page = folder / "index.html"
    write_text(page, document("Why it works: " + ", ".join(content["titles"]), sections))
    return page


def _summary(summary: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in summary.values() for name in row))
    rows = [
        [title, *(f"{row[name]:.4g}" if name in row else "" for name in names)]
        for title, row in summary.items()
    ]
    return table(["network", *names], rows)


def _section(section: dict[str, Any]) -> str:
    title = section["name"].replace("_", " ")
    return (
        f"<h2>{escape(title.capitalize())}</h2><p>{escape(section['caption'])}</p>"
        f"<p><img class='analysis' src='{escape(section['picture'], quote=True)}' "
        f"alt='{escape(title, quote=True)} of {len(section['results'])} networks'></p>"
    )
