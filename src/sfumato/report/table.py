"""The results tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sfumato.report.columns import COLUMNS, Column, column
from sfumato.report.findings import Findings, Row
from sfumato.report.notes import note
from sfumato.report.statistics import SYMBOLS, verdict_of_interval

_COLUMNS_AT_ONCE = 4  # fit a terminal of 80 characters
_STYLES = {"better": "bold blue", "worse": "yellow", "can't tell": "dim", None: ""}


def results_tables(findings: Findings) -> list[Table]:
    """Mean over seeds, 95 % interval and verdict against the baseline, a row a method."""
    usual = {each.id for each in COLUMNS}
    shown = [c for c in findings.columns if c.id in usual or c.id.partition(".")[0] != "test"]
    shown = [c for c in shown if c.is_main] or findings.columns
    groups = [
        shown[start : start + _COLUMNS_AT_ONCE] for start in range(0, len(shown), _COLUMNS_AT_ONCE)
    ]
    tables = [_table(findings, group) for group in groups]
    if tables:
        tables[0].title = Text(findings.title)
        tables[-1].caption = Text(note(findings))
    return tables


def comparison_table(compared: Mapping[str, Any]) -> Table:
    """Two models on the same samples, as `compare_files` of the engine found them."""
    first, second = str(compared["first"]), str(compared["second"])
    table = Table(
        title=Text(f"{second} against {first}, same {compared['samples']} samples"),
        title_justify="left",
        caption="each metric by itself, over the test images: about these networks, not methods",
        caption_justify="left",
    )
    table.add_column("metric")
    for heading in (first, second, "difference [95 %]", "verdict"):
        table.add_column(Text(heading), justify="right")
    for key, each in compared["metrics"].items():
        table.add_row(*_comparison_row(column(key), each))
    return table


def _comparison_row(metric: Column, each: Mapping[str, float]) -> list[Text]:
    low, high = each["low"], each["high"]
    verdict = None if metric.better is None else verdict_of_interval(low, high, metric.better)
    bounds = ", ".join(metric.number(bound, sign=True) for bound in (low, high))
    cells = [
        metric.heading,
        metric.number(each["first"]),
        metric.number(each["second"]),
        f"{metric.number(each['difference'], sign=True)} [{bounds}]",
    ]
    judged = f"{SYMBOLS[verdict]} {verdict}" if verdict else ""
    return [*(Text(cell) for cell in cells), Text(judged, style=_STYLES[verdict])]


def _table(findings: Findings, columns: Sequence[Column]) -> Table:
    table = Table(title_justify="left", caption_justify="left", show_lines=True)
    table.add_column("method", min_width=12)
    for each in columns:
        table.add_column(Text(each.heading), justify="right", min_width=10)
    for row in findings.rows:
        table.add_row(Text(row.name), *(_cell(row, each) for each in columns))
    return table


def _cell(row: Row, each: Column) -> Text:
    value, difference = row.values.get(each.id), row.differences.get(each.id)
    if value is None:
        return Text("-")
    mean, _, interval = value.text(each).partition(" [")
    text = Text(mean)
    if difference is not None and difference.verdict is not None:
        text.append(f" {SYMBOLS[difference.verdict]}", style=_STYLES[difference.verdict])
    parts = (f"[{interval}" if interval else "", value.floor_text(each))
    return text.append("".join(f"\n{part}" for part in parts if part))
