"""From the columns of a file to numbers and tensors, with each bad row named."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_checks import SKIP, RowChecks


def numbers(checks: RowChecks, name: str, column: np.ndarray) -> np.ndarray:
    """Floating point numbers in single or double precision; text is read as numbers."""
    if column.dtype in (np.float32, np.float64):
        return column
    if column.dtype == np.float16:
        return column.astype(np.float32)
    try:
        return column.astype(np.float64)
    except (ValueError, TypeError):
        found = np.array([as_number(value) for value in column])
        checks.refuse(
            np.isnan(found) & np.array([not _is_nan(value) for value in column]),
            f"no number in {name!r}",
            lambda row: (
                f"column {name!r} holds no numbers: {str(column[row])!r}; {_remedy(column[row])}"
            ),
        )
        return found


def matrix(checks: RowChecks, names: list[str], columns: list[np.ndarray]) -> np.ndarray:
    """Scores (N, C): a column for each class, or one column of lists."""
    if len(columns) > 1:
        parts = [numbers(checks, name, c) for name, c in zip(names, columns, strict=True)]
        table = np.empty((len(parts), len(parts[0])), np.result_type(*parts))
        for place, part in enumerate(parts):
            table[place] = part
        return table.T  # a plane for each class in memory, as the file has it
    column = columns[0]
    if column.dtype == object:
        lists = [_listed(value) for value in column]
        if any(isinstance(value, list) for value in lists):
            return _rows_of_lists(checks, names[0], lists)
    return numbers(checks, names[0], column)


def _rows_of_lists(checks: RowChecks, name: str, rows: list[Any]) -> np.ndarray:
    """As many numbers a row as most have; others are bad rows."""
    sizes = np.array([len(value) if isinstance(value, list) else 0 for value in rows])
    counts = np.bincount(sizes)
    counts[0] = 0  # rows without any are not usual, however many
    usual = int(counts.argmax())
    checks.refuse(
        sizes != usual,
        "mixed sizes",
        lambda row: (
            f"{name!r} has {sizes[row]} numbers where other rows have {usual}; every "
            "row needs as many"
        ),
    )
    nothing = [math.nan] * usual
    filled = [
        value if size == usual and size else nothing
        for value, size in zip(rows, sizes, strict=True)
    ]
    try:
        return np.array(filled, dtype=np.float64)
    except (ValueError, TypeError):
        is_bad = np.array([not _are_numbers(value) for value in filled])
    checks.refuse(
        is_bad,
        f"no number in {name!r}",
        lambda row: f"{name!r} holds what is no number: {str(rows[row])[:60]}; {SKIP}",
    )
    kept = [nothing if bad else value for value, bad in zip(filled, is_bad, strict=True)]
    return np.array(kept, dtype=np.float64)


def _listed(value: Any) -> Any:
    """A list that is written as text, as it stands in a CSV; all else as it is."""
    if not isinstance(value, str) or not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _are_numbers(values: list[Any]) -> bool:
    try:
        return np.array(values, dtype=np.float64).ndim == 1
    except (ValueError, TypeError):
        return False


def tensor(array: np.ndarray) -> Tensor:
    """As a tensor; a copy where the memory belongs to a file and must not be written."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def whether(checks: RowChecks, name: str, column: np.ndarray) -> np.ndarray:
    """True and false, also written as 1 and 0."""
    if column.dtype == bool:
        return column
    if column.dtype.kind in "iuf":
        values = column.astype(np.float64)
    else:
        words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
        values = np.array([words.get(str(value).strip().lower(), math.nan) for value in column])
    checks.refuse(
        ~np.isin(values, (0.0, 1.0)),
        f"{name!r} neither true nor false",
        lambda row: f"{name!r} must be true or false (1 or 0), got {column[row]!r}",
    )
    return values == 1


def as_number(value: Any) -> float:
    """The number that a value is, or NaN."""
    try:
        return float(value)
    except (ValueError, TypeError):
        return math.nan


def _is_nan(value: Any) -> bool:
    return str(value).strip().lower() == "nan"


def _remedy(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]*,[0-9]+\s*", value):
        return "write numbers with a decimal point, 0.5"
    if isinstance(value, str) and value.startswith("["):
        return 'write lists as JSON, "[0.1, 0.9]"'
    return SKIP
