"""The page of an analysis: a table of numbers and a picture for each question."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Any

from sfumato._core.files import read_json, write_text
from sfumato.report.document import document, section, table


def write_analysis_page(folder: Path) -> Path:
    """Write `index.html` beside the `analysis.json` that `sfumato analyse` wrote."""
    content = read_json(folder / "analysis.json")
    sections = [_summary(content["summary"])]
    sections += [_section(each, folder) for each in content["sections"]]
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


def _section(content: dict[str, Any], folder: Path) -> str:
    title = content["name"].replace("_", " ")
    # In the page itself: its policy allows no other file, and one file is easily passed on.
    picture = base64.b64encode((folder / Path(content["picture"]).name).read_bytes()).decode()
    return section(
        title.capitalize(),
        f"<p>{escape(content['caption'])}</p>"
        f"<p><img class='analysis' src='data:image/png;base64,{picture}' "
        f"alt='{escape(title, quote=True)} of {len(content['results'])} networks'></p>",
    )
