"""An audit as a block of Markdown for a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.audit_sentences import sentences, warnings_of
from sfumato.report.audit_tables import metrics_table
from sfumato.report.export import markdown_row, one_line


def to_markdown(found: Mapping[str, Any]) -> str:
    """Verdict, warnings, and every number with its interval; names are escaped."""
    lines = ["## Calibration", ""]
    lines += [f"{_text(line)}\n" for line in sentences(found)]
    lines += [f"- Warning: {_text(line)}" for line in warnings_of(found)]
    for model in found["models"]:
        content = metrics_table(model)
        lines += ["", f"### {_text(model['name'])}, {model['samples']:,} predictions", ""]
        lines += _pipes(content.head, content.rows)
    return "\n".join(lines).rstrip() + "\n"


def _pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return [markdown_row(head), rule, *(markdown_row(row) for row in rows)]


def _text(line: str) -> str:
    return one_line(line.replace("<", "&lt;").replace("`", "\\`"))
