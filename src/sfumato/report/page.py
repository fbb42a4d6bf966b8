"""The report of a study: one folder that opens from disk, without network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from sfumato._core.files import DamagedFileError, remove_leftovers, write_text
from sfumato.report.document import asset, embedded, head, script_of
from sfumato.report.findings import Findings, compare_methods
from sfumato.report.merge import read_studies
from sfumato.report.payload import payload

# Joined in this order into the page's one script.
SCRIPTS = ("dom.js", "table.js", "chart.js", "reliability.js", "figures.js", "theme.js", "page.js")


def write_report(folder: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of the study in `folder`, or of several; the path of its `index.html`.

    Beside it stand the tables: `results.csv`, `results.tex`, `results.md`.

    Args:
        folder: what `sfumato run` wrote; several folders become one page.
        out: where the page goes; `report` in the (first) folder by default.
    """
    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    results = read_studies(folders)
    place = Path(folders[0]) / "report" if out is None else Path(out)
    if out is None and place.is_symlink():  # a stranger's folder may lead anywhere
        raise DamagedFileError(
            f"{place} is a link, and no study writes one: remove it, or say where the page goes "
            "(--out)"
        )
    findings = compare_methods(results)
    content = payload(results, findings)
    page = place / "index.html"
    for path, text in (
        *((place / name, text) for name, text in content["downloads"].items()),
        (page, render(content, findings)),
    ):
        remove_leftovers(path)
        write_text(path, text)
    return page


def render(content: dict[str, Any], findings: Findings) -> str:
    """The page as HTML; what users wrote reaches it only as data, never as markup."""
    script = script_of(SCRIPTS)
    return (
        f"{head(findings.title, style=asset('report.css'), script=script)}"
        f"<body><main><h1>{escape(findings.title)}</h1><noscript>This page draws its tables and "
        "figures with a script; without one, read results.md or results.csv beside it.</noscript>"
        "</main>"
        f'<script type="application/json" id="data">{embedded(content)}</script>'
        f"<script>{script}</script></body></html>\n"
    )
