"""An audit for the terminal and as a folder with a web page: sentences first, then tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sfumato._core.files import write_json, write_text
from sfumato.report.audit_advice import next_steps
from sfumato.report.audit_page import audit_page
from sfumato.report.audit_sentences import sentences, warnings_of
from sfumato.report.audit_tables import AuditTable, detail_tables, verdict_table
from sfumato.report.expected_view import expected_view

_LONGEST = 10


def audit_view(found: Mapping[str, Any]) -> list[RenderableType]:
    """Verdicts in sentences, warnings, then tables that fit 80 columns; for the terminal."""
    if not found.get("is_labelled", True):
        return expected_view(found, _rich)
    parts: list[RenderableType] = [Text(f"{line}\n") for line in sentences(found)]
    parts += [Text(f"warning: {line}\n", style="yellow") for line in warnings_of(found)]
    parts.append(_rich(verdict_table(found)))
    parts += [_rich(each) for each in detail_tables(found) if not each.on_page_only]
    step = next_steps(found["models"][0])[0]
    return [*parts, Text(f"{step.why}\n  {step.command}")]


def write_audit(found: Mapping[str, Any], folder: Path) -> Path:
    """Write `audit.json` and the page; the path of its `index.html`."""
    write_json(folder / "audit.json", found)
    write_text(folder / "index.html", audit_page(found))
    return folder / "index.html"


def _rich(content: AuditTable) -> Table:
    view = Table(title=Text(content.title), title_justify="left")  # names from files are no markup
    for place, cell in enumerate(content.head):
        # A long name goes on in the next line: nothing is cut, on the narrowest terminal.
        view.add_column(Text(cell), justify="right" if place else "left", overflow="fold")
    for row in content.rows[:_LONGEST]:
        view.add_row(*(Text(cell) for cell in row))
    if len(content.rows) > _LONGEST:
        view.caption = f"and {len(content.rows) - _LONGEST} more rows on the page"
    return view
