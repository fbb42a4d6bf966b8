"""Texts in tables: CSV, JSON lines or Parquet, with a column of texts and one of labels."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato._core.exports import optional
from sfumato._core.files import (
    FREE_BYTES,
    MOST_RATIO,
    ContentError,
    csv_rows,
    parquet_file,
    words_of_rows,
)
from sfumato.data.dataset import DataSplits
from sfumato.data.splits import Shared, source
from sfumato.data.text.documents import OPTIONS, Documents, Part, read_text, token_splits

# Where each row stands, for messages, and what it holds by column.
Rows = Iterator[tuple[str, Mapping[str, Any]]]
_Pairs = list[tuple[str, str]]
_ROW_BYTES = 100  # of the objects that a row is in Python
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


@source(*OPTIONS)
def load_table(
    shared: Shared,
    *,
    train: str | Path,
    test: str | Path | float | int = 0.2,
    validation: str | Path | float | int = 0.1,
    text: str = "text",
    label: str = "label",
    encoding: str = "utf-8",
) -> DataSplits:
    """Splits from files with a column of texts and one of labels.

    A file is CSV with a header (`.csv`; `.tsv` with tabs), JSON lines (`.jsonl`, `.ndjson`) or
    Parquet (`.parquet`, with the study extra). Labels are words or whole numbers and name the
    classes of the training file, sorted: numbers by value, words by letters.

    Args:
        train: the training file.
        test: the test file, or a share or count of the training file's rows.
        validation: a file of its own, or a share or count of what is left.
        text: the column of texts.
        label: the column of labels.
        encoding: of CSV and JSON lines, as Python names it.
    """
    rows = _read(Path(train).expanduser(), text, label, encoding)
    classes = sorted({name for _, name in rows}, key=_by_value)

    def part(given: str | Path | float | int) -> Part:
        if not isinstance(given, str | Path):
            return given
        path = Path(given).expanduser()
        return _documents(_read(path, text, label, encoding), classes, path)

    trained = _documents(rows, classes, Path(train))
    tested, validated = part(test), part(validation)
    return token_splits(trained, classes, test=tested, validation=validated, shared=shared)


def _documents(rows: _Pairs, classes: list[str], path: Path) -> Documents:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ContentError(f"{path}: labels {unknown} are not in the training file")
    return Documents([text for text, _ in rows], [numbers[name] for _, name in rows])


def _read(path: Path, text: str, label: str, encoding: str) -> _Pairs:
    if not path.is_file():
        raise FileNotFoundError(f"{path.absolute()}: no such file")
    if path.suffix not in _READERS:
        raise ContentError(f"{path}: expected a table that ends in {', '.join(_READERS)}")
    rows = [
        (_text(row, text, where), _label(row, label, where))
        for where, row in _READERS[path.suffix](path, encoding, (text, label))
    ]
    if not rows:
        raise ContentError(f"{path}: has no rows")
    return rows


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _value(row, column, where, "text")
    if not isinstance(value, str) or not value.strip():
        raise ContentError(f"{where}: {column} must be a text, got {value!r}; remove the row")
    return value


def _label(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _value(row, column, where, "label")
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ContentError(
            f"{where}: {column} must be a word or a whole number, got {value!r}; label the row or "
            "remove it"
        )
    return str(value).strip()


def _value(row: Mapping[str, Any], column: str, where: str, option: str) -> Any:
    if column not in row:
        raise ContentError(
            f"{where}: no column {column!r}, there are {sorted(map(str, row))}; name the right one "
            f"with {option}:"
        )
    return row[column]


def _by_value(name: str) -> tuple[int, int, str]:
    # Numbers before words, and 9 before 10.
    return (0, int(name), name) if _WHOLE_NUMBER.fullmatch(name) else (1, 0, name)


def _refuse_twice(names: Sequence[str], columns: Sequence[str], where: str) -> None:
    """Raise where a column that is read is there twice, of which one would be ignored."""
    for column in columns:
        if names.count(column) > 1:
            raise ContentError(
                f"{where}: {names.count(column)} columns are called {column!r}; rename all but one"
            )


def _csv_rows(path: Path, encoding: str, columns: Sequence[str]) -> Rows:
    content = read_text(path, encoding).removeprefix("\ufeff")
    lines = io.StringIO(content, newline="")
    rows = csv_rows(path, lines, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    usual = csv.field_size_limit(len(content))  # a text may be as long as its file
    try:
        _, names = next(rows, (0, []))
        _refuse_twice(names, columns, str(path))
        for number, row in rows:
            where = f"{path}, line {number}"
            if row and len(row) != len(names):
                raise ContentError(f"{where}: not as many fields as the header has")
            if row:
                yield where, dict(zip(names, row, strict=True))
    finally:
        csv.field_size_limit(usual)


def _json_rows(path: Path, encoding: str, columns: Sequence[str]) -> Rows:
    # Not `splitlines`, which also breaks at marks that may stand inside of a JSON string.
    for number, line in enumerate(read_text(path, encoding).removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_Pairwise)
        except (ValueError, RecursionError) as error:
            raise ContentError(f"{where}: not JSON ({error}); correct or remove the line") from None
        if not isinstance(row, _Pairwise):
            raise ContentError(f"{where}: expected an object of columns, got {type(row).__name__}")
        _refuse_twice([name for name, _ in row], columns, where)
        yield where, dict(row)


class _Pairwise(list[tuple[str, Any]]):
    """A JSON object as its pairs, which shows a name that is there twice."""


def _parquet_rows(path: Path, encoding: str, columns: Sequence[str]) -> Rows:
    # The encoding is not asked for: Parquet has one of its own.
    arrow = optional("pyarrow", f"{path}: Parquet needs", "study")
    try:
        file = parquet_file(path)
        names = file.schema_arrow.names
        _refuse_twice(names, columns, str(path))
        for option, column in zip(("text", "label"), columns, strict=True):
            _value(dict.fromkeys(names), column, str(path), option)
        number, room = 0, FREE_BYTES + MOST_RATIO * path.stat().st_size
        for batch in file.iter_batches(1024, columns=list(dict.fromkeys(columns))):
            found = [words_of_rows(column, room) for column in batch.columns]
            room -= sum(column.nbytes for column in found) + _ROW_BYTES * len(batch)
            if room < 0:
                raise ContentError(f"{path}: its rows need far more memory than the file: refused")
            for values in zip(*(column.to_pylist() for column in found), strict=True):
                number += 1
                yield f"{path}, row {number}", dict(zip(batch.schema.names, values, strict=True))
    except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise ContentError(f"{path}: not readable as Parquet: {error}") from error


_READERS: dict[str, Callable[[Path, str, Sequence[str]], Rows]] = {
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}
