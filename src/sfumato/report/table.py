"""The results table for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sfumato.report.read import StudyResults
from sfumato.report.summary import COLUMNS, summarise


def results_table(results: StudyResults) -> Table:
    """Mean over seeds and 95 % interval over the test images, a row a method."""
    table = Table(
        title=results.title,
        title_justify="left",
        caption="mean over seeds [95 % bootstrap interval over test images]",
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for column in COLUMNS:
        unit = " %" if column.percent else ""
        arrow = "↑" if column.better == "higher" else "↓"
        table.add_column(f"{column.title}{unit} {arrow}", justify="right")
    for method in results.methods:
        values = [summarise(method, column.key) for column in COLUMNS]
        cells = [
            "-" if value is None else value.text(column.percent)
            for column, value in zip(COLUMNS, values, strict=True)
        ]
        table.add_row(Text(method.name), *(Text(cell) for cell in cells))
    return table
