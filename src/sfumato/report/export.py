"""The results as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from sfumato._core.files import write_text
from sfumato.report.columns import Column
from sfumato.report.findings import Findings, Row
from sfumato.report.notes import note
from sfumato.report.recommendation import recommend
from sfumato.report.statistics import SYMBOLS

_CSV_HEAD = (
    *("method", "baseline", "metric", "better", "seeds", "mean", "low", "high", "interval_over"),
    *("difference", "difference_low", "difference_high", "shared_seeds", "verdict"),
    *("difference_over", "p", "adjusted_p", "compared", "perfect"),
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    "\u2212": "$-$",
    "\n": " ",
}


def to_markdown(findings: Findings) -> str:
    """The main metrics as a table of GitHub's Markdown, the recommendation under it."""
    columns = _main(findings)
    head = ["method", "seeds", *(column.heading for column in columns)]
    lines = [markdown_row(head), markdown_row(["---", *["---:"] * (len(head) - 1)])]
    lines += [markdown_row(_cells(row, columns)) for row in findings.rows]
    return "\n".join([*lines, "", note(findings), "", one_line(recommend(findings).text)]) + "\n"


def to_csv(findings: Findings) -> str:
    """Every metric of every method, one line each, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for row in findings.rows:
        for column in findings.columns:
            if column.id in row.values:
                writer.writerow(_csv_row(row, column))
    return text.getvalue()


def to_latex(findings: Findings) -> str:
    """The main metrics as a booktabs table; needs the packages booktabs and amssymb."""
    columns = _main(findings)
    head = ["method", "seeds", *(column.heading for column in columns)]
    rows = [_latex_row(head), *(_latex_row(_cells(row, columns)) for row in findings.rows)]
    return "\n".join(
        [
            "\\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
            "\\toprule",
            rows[0],
            "\\midrule",
            *rows[1:],
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
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
    """How many seeds finished, and how many failed or did not."""
    method = row.method
    failed = len(method.failures)
    waiting = len(method.unfinished) - failed
    parts = [str(len(method.runs))]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{waiting} unfinished"] if waiting else []
    return parts[0] if len(parts) == 1 else f"{parts[0]} ({', '.join(parts[1:])})"


def _csv_row(row: Row, column: Column) -> list[str | float | int | None]:
    value, difference = row.values[column.id], row.differences.get(column.id)
    cells: list[str | float | int | None] = [
        *(_no_formula(row.name), _no_formula(row.baseline or ""), column.id, column.better or ""),
        *(value.seeds, value.mean, value.low, value.high, value.over),
    ]
    if difference is None:
        return [*cells, *[None] * 9, value.floor]
    return [
        *cells,
        *(difference.mean, difference.low, difference.high, difference.seeds, difference.verdict),
        *(difference.over, difference.p, difference.adjusted, difference.compared, value.floor),
    ]


def _no_formula(text: str) -> str:
    """A spreadsheet would run a name that begins like a formula; an apostrophe makes it text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a Markdown table; nothing in a cell is markup."""
    return "| " + " | ".join(_markdown_text(cell) for cell in cells) + " |"


def _markdown_text(text: str) -> str:
    for old, new in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "\\`")):
        text = text.replace(old, new)
    return one_line(text)


def one_line(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"
