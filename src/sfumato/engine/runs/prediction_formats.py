"""The formats of saved predictions: arrays (.npz, .npy, .safetensors) and tables in batches.

Nothing in a file is executed: no pickles are read. Tables are never in memory as a whole.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sfumato.engine.runs.prediction_rows import PredictionFileError

BATCH = 131_072  # rows at a time, fewer where they are wide
_ENTRIES = 2**21
_JSON_LINES = 8192  # which may hold long lists
Columns = dict[str, np.ndarray]
Broken = dict[int, str]
"""Place in a batch to why that line is no row of the table."""
Table = Iterator[tuple[int, Columns, Broken]]
Wanted = Callable[[list[str], list[str]], list[str]]
"""Names of the columns that are read, of all names and of those that hold lists."""
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def batch_rows(columns: int) -> int:
    """Rows that are read at a time: some megabytes, however wide they are."""
    return min(BATCH, max(1024, _ENTRIES // max(1, columns)))


def read_npz(path: Path) -> Columns:
    with np.load(path, allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


def read_safetensors(path: Path) -> Columns:
    from safetensors.torch import load_file

    content = {
        key: value.float() if value.is_floating_point() and value.element_size() < 4 else value
        for key, value in load_file(path).items()
    }
    return {key: value.numpy() for key, value in content.items()}


def read_npy(path: Path) -> Columns:
    """One array without a name; mapped, so that only what is looked at is read."""
    return {"array": np.load(path, allow_pickle=False, mmap_mode="r")}


def csv_batches(path: Path, wanted: Wanted, on_bad_row: str = "stop") -> Table:
    """Columns of text without blanks around it, and the number of their first row, from 1.

    A line with other fields than the header stops, or is a broken one with None for all of them.
    Empty lines are none. Fields end at commas, semicolons or tabs, as in the header.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = _delimiter(file.readline())
        file.seek(0)
        read = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        rows: Iterator[list[str]] = (line for line in read if line)
        header = [name.strip() for name in next(rows, [])]
        ahead = list(islice(rows, 1))
        cells = zip(header, ahead[0], strict=False) if ahead else ()
        lists = [name for name, cell in cells if cell.startswith("[")]
        chosen = [(header.index(name), name) for name in wanted(header, lists)]
        rows = chain(ahead, rows)
        number, step = 1, batch_rows(len(header))
        while lines := list(islice(rows, step)):
            if on_bad_row == "stop":
                _check_fields(path, header, lines, number, _DELIMITERS[delimiter])
            broken = {
                place: "too few fields" if len(line) < len(header) else "too many fields"
                for place, line in enumerate(lines)
                if len(line) != len(header)
            }
            columns = {
                name: _objects(
                    [None if at in broken else line[place].strip() for at, line in enumerate(lines)]
                )
                for place, name in chosen
            }
            yield number, columns, broken
            number += len(lines)


def _delimiter(header: str) -> str:
    """What divides the header into the most fields."""
    return max(_DELIMITERS, key=lambda each: len(next(csv.reader([header], delimiter=each), [])))


def _check_fields(
    path: Path, header: list[str], lines: list[list[str]], number: int, what: str
) -> None:
    for place, line in enumerate(lines):
        if len(line) != len(header):
            raise PredictionFileError(
                f"{path}, line {number + place + 1}: {len(line)} fields where the header has "
                f"{len(header)}; quote fields that hold {what}"
            )


def json_batches(path: Path, wanted: Wanted, on_bad_row: str = "stop") -> Table:
    """One object a line; lists stay lists. Keys are those of the first one; empty lines are none.

    A line that is no object stops, or is a broken one without keys.
    """
    with path.open(encoding="utf-8-sig") as opened:
        file = (line for line in opened if line.strip())
        number, names = 1, None
        while lines := list(islice(file, min(BATCH, _JSON_LINES))):
            read = [_json_row(line) for line in lines]
            broken = {at: row.reason for at, row in enumerate(read) if isinstance(row, _NoRow)}
            for at, row in enumerate(read):
                if isinstance(row, _NoRow) and on_bad_row == "stop":
                    raise PredictionFileError(f"{path}, line {number + at}: {row.message}")
            found = [{} if isinstance(row, _NoRow) else row for row in read]
            if names is None:
                lists = {
                    name for row in found for name, each in row.items() if isinstance(each, list)
                }
                names = wanted(list(next(filter(None, found), {})), list(lists))
            columns = {name: _objects([row.get(name) for row in found]) for name in names}
            yield number, columns, broken
            number += len(lines)
        if names is None:
            wanted([], [])


class _NoRow(NamedTuple):
    """Why a line is no row: in two words for a count, and as a message."""

    reason: str
    message: str


def _json_row(line: str) -> dict[str, Any] | _NoRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        return _NoRow("not valid JSON", f"not valid JSON ({error})")
    if not isinstance(row, dict):
        example = '{"label": 0, "probs": [0.9, 0.1]}'
        return _NoRow("no object", f"an object with names is needed, such as {example}")
    return row


def parquet_batches(
    path: Path,
    wanted: Wanted,
    on_bad_row: str = "stop",
    groups: list[int] | None = None,
) -> Table:
    """Only the columns that are wanted, of all row groups or of some; its rows are all whole."""
    parquet = open_parquet(path)
    schema = parquet.schema_arrow
    columns = wanted(schema.names, [each.name for each in schema if _are_lists(each.type)])
    facts = parquet.metadata
    number = 1 + sum(facts.row_group(i).num_rows for i in range(groups[0] if groups else 0))
    read = list(range(facts.num_row_groups)) if groups is None else groups
    step = batch_rows(_values_per_row(facts, columns, read))
    for batch in parquet.iter_batches(step, row_groups=read, columns=columns, use_threads=False):
        yield number, {name: _from_arrow(batch.column(name)) for name in columns}, {}
        number += len(batch)


def _values_per_row(facts: Any, columns: list[str], groups: list[int]) -> int:
    """Numbers in a row of these row groups, those in lists counted one by one.

    Columns are asked for their names, not `facts.schema`: the two would hold each other, and what
    is known of a file of many row groups would stay in memory for each time that it is opened.
    """
    values: Counter[str] = Counter()
    rows = 0
    for group in map(facts.row_group, groups):
        rows += group.num_rows
        for column in map(group.column, range(group.num_columns)):
            values[column.path_in_schema] += column.num_values
    of_columns = (v for name, v in values.items() if name.partition(".")[0] in columns)
    return sum(-(-each // max(1, rows)) for each in of_columns)


def open_parquet(path: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise PredictionFileError(
            f"{path}: reading Parquet needs pyarrow: python3 -m pip install 'sfumato[study]'"
        ) from None
    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise PredictionFileError(f"{path}: can't be read ({error})") from None


def _from_arrow(column: Any) -> np.ndarray:
    import pyarrow as arrow

    kind = column.type
    if _are_lists(kind):
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(sizes) and not column.null_count and (sizes == sizes[0]).all():
            values = column.flatten().to_numpy(zero_copy_only=False)
            return values.reshape(len(column), int(sizes[0]))
        return _objects(column.to_pylist())
    if arrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    return column.to_numpy(zero_copy_only=False)


def _are_lists(kind: Any) -> bool:
    from pyarrow import types

    are = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(each(kind) for each in are)


def _objects(values: list[Any]) -> np.ndarray:
    """One Python object a row, lists included."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


ARRAYS: dict[str, Callable[[Path], Columns]] = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".safetensors": read_safetensors,
}
TABLES: dict[str, Callable[..., Table]] = {
    ".csv": csv_batches,
    ".jsonl": json_batches,
    ".ndjson": json_batches,
    ".parquet": parquet_batches,
}
