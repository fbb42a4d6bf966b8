"""The results table for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sfumato.report.read import StudyResults
from sfumato.report.summary import shown_columns, summarise


def results_table(results: StudyResults) -> Table:
    """Mean over seeds and 95 % interval over the test images, a row a method."""
    table = Table(
        title=results.title,
        title_justify="left",
        caption="mean over seeds [95 % bootstrap interval over test images]",
        caption_justify="left",
    )
    columns = shown_columns(results.methods)
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right")
    for method in results.methods:
        values = [summarise(method, column.key, column.split) for column in columns]
        cells = [
            "-" if value is None else value.text(column.percent)
            for column, value in zip(columns, values, strict=True)
        ]
        table.add_row(Text(method.name), *(Text(cell) for cell in cells))
    return table
