"""From the columns of a file to tensors: numbers, class numbers, times, with each bad row named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_checks import SKIP, RowChecks


def numbers(checks: RowChecks, name: str, column: np.ndarray) -> np.ndarray:
    """Floating point numbers, at least single precision; text is read as numbers."""
    if column.dtype.kind == "f":
        return column if column.dtype.itemsize >= 4 else column.astype(np.float32)
    if column.dtype.kind in "iub":
        return column.astype(np.float64)
    try:
        return column.astype(np.float64)
    except (ValueError, TypeError):
        found = np.array([_number(value) for value in column])
        checks.refuse(
            np.isnan(found) & np.array([not _is_nan(value) for value in column]),
            f"no number in {name!r}",
            lambda row: f"column {name!r} holds no numbers: {column[row]!r}; {SKIP}",
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
    if column.dtype != object or not any(isinstance(value, list) for value in column):
        return numbers(checks, names[0], column)
    sizes = np.array([len(value) if isinstance(value, list) else 0 for value in column])
    counts = np.bincount(sizes)
    counts[0] = 0  # rows without any are not usual, however many
    usual = int(counts.argmax())
    checks.refuse(
        sizes != usual,
        "mixed sizes",
        lambda row: (
            f"{names[0]!r} has {sizes[row]} numbers where other rows have {usual}; every "
            "row needs as many"
        ),
    )
    filled = [
        value if size == usual and size else [math.nan] * usual
        for value, size in zip(column, sizes, strict=True)
    ]
    return np.array(filled, dtype=np.float64)


def class_numbers(
    checks: RowChecks, name: str, column: np.ndarray, classes: list[str] | None
) -> Tensor:
    """A label is a class's name, or else its number; what is neither becomes -1 and is refused."""
    if column.dtype.kind in "iu" and not _names_are_numbers(classes):
        return torch.from_numpy(np.ascontiguousarray(column).astype(np.int64))
    if column.dtype.kind == "f":
        checks.refuse(
            ~(column % 1 == 0),
            "label",
            lambda row: f"{name!r} must hold whole numbers, got {column[row]}; {SKIP}",
        )
        column = np.nan_to_num(column).astype(np.int64)
    places = {each: place for place, each in enumerate(classes or ())}
    values, inverse = np.unique(column.astype(str), return_inverse=True)
    known = np.array([_class_number(value, places) for value in values], dtype=np.int64)
    found = known[inverse]
    what = f"a class name of the header nor a class number; {SKIP}"
    if not classes:
        what = "a class name nor a number; name the classes: --classes cat,dog (Python: classes=)"
    missing = np.isin(values, ("", "None"))[inverse] & (found == -1)
    checks.refuse(missing, "missing label", lambda _: f"{name!r} is missing; {SKIP}")
    checks.refuse(
        found == -1,
        "unknown label",
        lambda row: f"label {str(column[row])!r} is neither {what}",
    )
    return torch.from_numpy(found)


def tensor(array: np.ndarray) -> Tensor:
    """As a tensor; a copy where the memory belongs to a file and must not be written."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def names_of(column: np.ndarray) -> list[str]:
    return [str(value) for value in column.tolist()]


def coded(column: np.ndarray) -> tuple[Tensor, list[str]]:
    """Places in a list of the names that occur, and that list."""
    values, inverse = np.unique(
        column.astype(str) if column.dtype == object else column, return_inverse=True
    )
    return torch.from_numpy(inverse.astype(np.int64)), names_of(values)


def same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Where two columns name the same class; as numbers where both hold nothing else."""
    try:
        return np.asarray(first, dtype=np.float64) == np.asarray(second, dtype=np.float64)
    except (ValueError, TypeError):
        return first.astype(str) == second.astype(str)


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


def seconds(checks: RowChecks, name: str, column: np.ndarray) -> tuple[np.ndarray, bool]:
    """Times as numbers, and whether they were dates, which become seconds since 1970."""
    if column.dtype.kind == "M":
        return column.astype("datetime64[us]").astype(np.float64) / 1e6, True
    if column.dtype.kind in "iuf":
        return column.astype(np.float64), False
    values = [_number(value) for value in column[:1]]
    if not math.isnan(values[0] if values else 0.0):
        return numbers(checks, name, column), False
    found = np.array([_date(value) for value in column])
    checks.refuse(
        np.isnan(found),
        "time",
        lambda row: (
            f"{name!r} must be a number or a date such as 2026-01-31 12:00, got {column[row]!r}"
        ),
    )
    return found, True


def _date(value: Any) -> float:
    try:
        return float(np.datetime64(str(value).strip().rstrip("Z"), "us").astype(np.int64)) / 1e6
    except ValueError:
        return math.nan


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        return math.nan


def _is_nan(value: Any) -> bool:
    return str(value).strip().lower() == "nan"


def _class_number(value: str, places: dict[str, int]) -> int:
    if value in places:
        return places[value]
    return int(value) if value.isdigit() else -1


def _names_are_numbers(classes: list[str] | None) -> bool:
    """Whether a number could be a name that means another place."""
    if classes is None or classes == [str(place) for place in range(len(classes))]:
        return False
    return any(name.isdigit() for name in classes)
