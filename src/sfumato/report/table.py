"""The results tables for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sfumato.report.read import StudyResults
from sfumato.report.summary import Column, Value, shown_columns, summarise

_COLUMNS_AT_ONCE = 4  # fit a terminal of 80 characters


def results_tables(results: StudyResults) -> list[Table]:
    """Mean over seeds and 95 % interval over the test images, a row a method."""
    columns = shown_columns(results.methods)
    groups = [
        columns[start : start + _COLUMNS_AT_ONCE]
        for start in range(0, len(columns), _COLUMNS_AT_ONCE)
    ]
    tables = [_table(results, group) for group in groups]
    if tables:
        tables[0].title = results.title
        tables[-1].caption = "mean over seeds; in brackets 95 % bootstrap interval, test images"
    return tables


def _table(results: StudyResults, columns: list[Column]) -> Table:
    table = Table(title_justify="left", caption_justify="left", show_lines=True)
    table.add_column("method", min_width=12)
    for column in columns:
        table.add_column(column.heading, justify="right", min_width=10)
    for method in results.methods:
        values = [summarise(method, column.key, column.split) for column in columns]
        cells = [_cell(v, c.percent) for c, v in zip(columns, values, strict=True)]
        table.add_row(Text(method.name), *cells)
    return table


def _cell(value: Value | None, percent: bool) -> Text:
    return Text("-" if value is None else value.lines(percent))
