"""Results as Markdown, CSV and LaTeX, and as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sfumato._core.files import write_text
from sfumato._core.text import csv_text, latex_row, markdown_line, markdown_table
from sfumato.report.columns import COLUMNS, Column, column as column_of, columns_of
from sfumato.report.findings import Findings, Row
from sfumato.report.recommendation import (
    DECIDING,
    Recommendation,
    listed,
    note,
    recommend,
    strange_inputs,
)
from sfumato.report.statistics import SYMBOLS, Difference, Estimate, verdict_of_interval

_CSV_HEAD = (
    *("method", "baseline", "metric", "better", "seeds", "mean", "low", "high", "interval_over"),
    *("difference", "difference_low", "difference_high", "shared_seeds", "verdict"),
    *("difference_over", "p", "adjusted_p", "compared", "perfect"),
)
_OF_ESTIMATE = ("seeds", "mean", "low", "high", "over")
_OF_DIFFERENCE = (
    *("mean", "low", "high", "seeds", "verdict"),
    *("over", "p", "adjusted", "compared"),
)


def to_markdown(findings: Findings, columns: Sequence[Column] = ()) -> str:
    """Tabulate the main metrics, or `columns`, in Markdown, the recommendation under it."""
    columns = columns or _main(findings)
    head = ["method", "seeds", *(column.heading for column in columns)]
    lines = markdown_table(head, [_cells(row, columns) for row in findings.rows])
    said = (note(findings), recommend(findings).headline)
    return "\n".join([*lines, *(f"\n{markdown_line(each)}" for each in said)]) + "\n"


def to_csv(findings: Findings) -> str:
    """Every metric of every method, one line each, in full precision."""
    found = ((row, column) for row in findings.rows for column in findings.columns)
    rows = (_csv_row(row, column) for row, column in found if column.id in row.values)
    return csv_text([_CSV_HEAD, *rows])


def to_latex(findings: Findings, columns: Sequence[Column] = ()) -> str:
    """Tabulate the main metrics, or `columns`, for LaTeX with booktabs and amssymb."""
    columns = columns or _main(findings)
    head = ["method", "seeds", *(column.heading for column in columns)]
    rows = "\n".join(latex_row(_cells(row, columns)) for row in findings.rows)
    return (
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\toprule\n{latex_row(head)}\n"
        f"\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n"
    )


FORMATS: dict[str, Callable[[Findings], str]] = {
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}


def write_table(findings: Findings, form: str, path: Path) -> None:
    """Write the results in one of `FORMATS`."""
    write_text(path, FORMATS[form](findings))


def _main(findings: Findings) -> list[Column]:
    return [column for column in findings.columns if column.is_main]


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    cells = [row.name, seeds_text(row)]
    for column in columns:
        value, difference = row.values.get(column.id), row.differences.get(column.id)
        mark = SYMBOLS[difference.verdict] if difference else ""
        parts = () if value is None else (value.text(column), mark, value.floor_text(column))
        cells.append(" ".join(filter(None, parts)))
    return cells


def seeds_text(row: Row) -> str:
    """Count the seeds that finished, failed or have not ended: `3 (1 failed)`."""
    failed = len(row.method.failures)
    counts = {"failed": failed, "unfinished": len(row.method.unfinished) - failed}
    others = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{len(row.method.runs)}{f' ({others})' if others else ''}"


def _csv_row(row: Row, column: Column) -> list[str | float | None]:
    value, difference = row.values[column.id], row.differences.get(column.id)
    return [
        *(row.name, row.baseline or "", column.id, column.better or ""),
        *(getattr(value, name) for name in _OF_ESTIMATE),
        *(getattr(difference, name, None) for name in _OF_DIFFERENCE),
        value.floor,
    ]


_COLUMNS_AT_ONCE = 4  # fit a terminal of 80 characters
_STYLES = {"better": "bold blue", "worse": "yellow", "inconclusive": "dim", None: ""}


def results_tables(findings: Findings) -> list[Table]:
    """Mean over seeds, 95 % interval and verdict against the baseline, a row a method."""
    rows = [(row.name, row.values, row.differences) for row in findings.rows]
    tables = _tables(findings.columns, rows, findings.title)
    if tables:
        tables[-1].caption = Text(note(findings))
    return tables


_MOST_ROWS = 10  # with verdict, legend and next command, 24 lines of 80 characters
_LEGEND = "✓ significantly better than the baseline, ✗ worse, ? inconclusive (95 %)."


def summary_lines(findings: Findings, advice: Recommendation) -> list[Table | Text]:
    """Return the answer for a terminal: a line a method with what decides, then the verdict."""
    columns = [column for column in findings.columns if column.id in DECIDING]
    finished = [row for row in findings.rows if row.values]
    kept = _first_rows(finished, advice.method)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="ellipsis", no_wrap=True)
    for each in columns:
        table.add_column(Text(each.heading), justify="right", min_width=min(9, len(each.heading)))
    for row in kept:
        table.add_row(Text(row.name), *(_short_cell(row, column) for column in columns))
    open_ = [row.name for row in findings.rows if row.method.unfinished]
    said = [_LEGEND]
    if len(kept) < len(finished):
        said.append(f"{len(finished) - len(kept)} more methods are in the report.")
    if open_:
        named = listed(open_) if len(open_) == 1 else f"{len(open_)} methods"
        said.append(f"Without results: {named}.")
    parts: list[Table | Text] = [table] if kept and columns else []
    parts.append(Text(" ".join(said), style="dim"))
    parts += [Text(line) for line in strange_inputs(findings)]
    return [*parts, Text(advice.short, style="bold")]


def _first_rows(rows: Sequence[Row], recommended: str | None) -> list[Row]:
    """Keep as many as a screen has room for, the recommended method among them."""
    kept, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    named = [row for row in rest if row.name == recommended]
    return [*kept[: len(kept) - len(named)], *named]


def _short_cell(row: Row, column: Column) -> Text:
    value, difference = row.values.get(column.id), row.differences.get(column.id)
    if value is None:
        return Text("-")
    verdict = difference.verdict if difference else None
    return Text(f"{column.number(value.mean)} ").append(
        SYMBOLS[verdict] or " ", style=_STYLES[verdict]
    )


def metrics_tables(name: str, metrics: Mapping[str, Any]) -> list[Table]:
    """Metrics of one network with their intervals over the test images."""
    columns, values = columns_of([metrics]), {}
    for each in columns:
        value, (low, high) = each.value(metrics), each.interval(metrics) or (None, None)
        if value is not None:
            floor = each.floor(metrics)
            values[each.id] = Estimate(value, low, high, seeds=1, over="images", floor=floor)
    return _tables(columns, [(name, values, {})], name)


def comparison_table(compared: Mapping[str, Any]) -> Table:
    """Two models on the same samples, as `compare_files` of the engine found them."""
    table = Table(
        title=Text(
            f"{compared['second']} against {compared['first']}, same {compared['samples']} samples"
        ),
        title_justify="left",
        caption=f"{_LEGEND.replace('the baseline', 'the first')} Each metric by itself, over the "
        "test images: about these networks, not methods.",
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("metric", no_wrap=True)
    for heading in ("first", "second", "difference [95 %]", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, each in compared["metrics"].items():
        table.add_row(*_comparison_row(column_of(key), each))
    return table


def _comparison_row(metric: Column, each: Mapping[str, float]) -> list[Text]:
    low, high = each["low"], each["high"]
    verdict = None if metric.better is None else verdict_of_interval(low, high, metric.better)
    cells = [
        metric.heading,
        *(metric.number(each[name]) for name in ("first", "second")),
        metric.with_interval(each["difference"], low, high, sign=True),
    ]
    return [*map(Text, cells), Text(SYMBOLS[verdict], style=_STYLES[verdict])]


_Cells = tuple[str, Mapping[str, Estimate], Mapping[str, Difference]]

"""A row: its name, and by the id of the column its values and differences."""


def _tables(columns: Sequence[Column], rows: Sequence[_Cells], title: str) -> list[Table]:
    usual = {each.id for each in COLUMNS}
    shown = [c for c in columns if c.id in usual or c.id.partition(".")[0] != "test"]
    shown = [c for c in shown if c.is_main] or list(columns)
    starts = range(0, len(shown), _COLUMNS_AT_ONCE)
    tables = [_table(shown[start : start + _COLUMNS_AT_ONCE], rows) for start in starts]
    if tables:
        tables[0].title = Text(title)
    return tables


def _table(columns: Sequence[Column], rows: Sequence[_Cells]) -> Table:
    table = Table(title_justify="left", caption_justify="left", show_lines=True)
    table.add_column("method", min_width=12)
    for each in columns:
        table.add_column(Text(each.heading), justify="right", min_width=10)
    for name, values, differences in rows:
        cells = (_cell(values.get(each.id), differences.get(each.id), each) for each in columns)
        table.add_row(Text(name), *cells)
    return table


def _cell(value: Estimate | None, difference: Difference | None, each: Column) -> Text:
    if value is None:
        return Text("-")
    mean, _, interval = value.text(each).partition(" [")
    verdict = difference.verdict if difference else None
    text = Text(mean).append(f" {SYMBOLS[verdict]}".rstrip(), style=_STYLES[verdict])
    parts = (f"[{interval}" if interval else "", value.floor_text(each))
    return text.append("".join(f"\n{part}" for part in parts if part))
