"""Texts in tables: CSV, JSON lines or Parquet, with a column of texts and one of labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sfumato.data.dataset import DataSplits
from sfumato.data.text.documents import (
    Documents,
    TokenOptions,
    Unknown,
    cut_parts,
    token_splits,
)
from sfumato.data.text.folders import read_text

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""Where each row stands, for messages, and what it holds by column."""
_Pairs = list[tuple[str, str]]


def load_table(
    *,
    train: str | Path,
    test: str | Path | float | int = 0.2,
    validation: str | Path | float | int = 0.1,
    text: str = "text",
    label: str = "label",
    encoding: str = "utf-8",
    vocabulary: int = 20000,
    length: int = 500,
    unknown: Unknown = "token",
    embeddings: str | Path | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
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
        vocabulary: words that are kept, the most frequent ones of the training part.
        length: tokens that are kept of each text, from its beginning.
        unknown: other words are one `token`, or are left out (`drop`).
        embeddings: file of word vectors: GloVe's text format, or an npz of `words` and `vectors`.
        limit_train: size of the training set, stratified. None keeps all.
        limit_test: size of the test set, stratified. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: no such file.
        ImportError: a Parquet file without pyarrow.
        ValueError: what is wrong in which file and row.
    """
    options = TokenOptions(vocabulary, length, unknown, embeddings)
    rows = _read(Path(train).expanduser(), text, label, encoding)
    classes = sorted({name for _, name in rows}, key=_by_value)

    def part(given: str | Path | float | int) -> Documents | float | int:
        if not isinstance(given, str | Path):
            return given
        path = Path(given).expanduser()
        return _documents(_read(path, text, label, encoding), classes, path)

    documents, parts = cut_parts(
        _documents(rows, classes, Path(train)),
        classes,
        test=part(test),
        validation=part(validation),
        limit_train=limit_train,
        limit_test=limit_test,
        seed=seed,
    )
    return token_splits(documents, parts, classes, options)


def _documents(rows: _Pairs, classes: list[str], path: Path) -> Documents:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"{path}: labels {unknown} are not in the training file")
    return Documents([text for text, _ in rows], [numbers[name] for _, name in rows])


def _read(path: Path, text: str, label: str, encoding: str) -> _Pairs:
    if not path.is_file():
        raise FileNotFoundError(f"{path.absolute()}: no such file")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: expected a table that ends in {', '.join(_READERS)}")
    rows = [
        (_text(row, text, where), _label(row, label, where))
        for where, row in _READERS[path.suffix](path, encoding)
    ]
    if not rows:
        raise ValueError(f"{path}: has no rows")
    return rows


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _value(row, column, where, "text")
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {column} must be a text, got {value!r}; remove the row")
    return value


def _label(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _value(row, column, where, "label")
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(
            f"{where}: {column} must be a word or a whole number, got {value!r}; label the row or "
            "remove it"
        )
    return str(value).strip()


def _value(row: Mapping[str, Any], column: str, where: str, option: str) -> Any:
    if column not in row:
        raise ValueError(
            f"{where}: no column {column!r}, there are {sorted(map(str, row))}; name the right one "
            f"with {option}:"
        )
    return row[column]


def _by_value(name: str) -> tuple[int, int, str]:
    """Numbers before words, and 9 before 10."""
    return (0, int(name), "") if name.lstrip("-").isdecimal() else (1, 0, name)


def _csv_rows(path: Path, encoding: str) -> Rows:
    lines = io.StringIO(read_text(path, encoding).removeprefix("\ufeff"), newline="")
    reader = csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ValueError(f"{where}: not as many fields as the header has")
            yield where, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(path: Path, encoding: str) -> Rows:
    # Not `splitlines`, which also breaks at marks that may stand inside of a JSON string.
    for number, line in enumerate(read_text(path, encoding).removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected an object of columns, got {type(row).__name__}")
        yield where, row


def _parquet_rows(path: Path, encoding: str) -> Rows:
    """Parquet has an encoding of its own."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError(f"{path}: Parquet needs pyarrow: pip install 'sfumato[study]'") from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: not readable as Parquet: {error}") from error
    for number, row in enumerate(table.to_pylist(), 1):
        yield f"{path}, row {number}", row


_READERS: dict[str, Callable[[Path, str], Rows]] = {
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}
