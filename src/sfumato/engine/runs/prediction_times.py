"""The times of predictions: numbers, or dates in text or as NumPy has them."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import Any

import numpy as np

from sfumato.engine.runs.prediction_checks import SKIP, RowChecks
from sfumato.engine.runs.prediction_columns import as_number, numbers


def seconds(checks: RowChecks, name: str, column: np.ndarray) -> tuple[np.ndarray, bool]:
    """Times as numbers, and whether they were dates, which become seconds since 1970.

    Text is read as numbers where its first entry is one.
    """
    is_dated = column.dtype.kind == "M"
    if is_dated:
        found = column.astype("datetime64[us]").astype(np.float64) / 1e6
        found[np.isnat(column)] = math.nan
    elif column.dtype.kind in "iuf":
        found = column.astype(np.float64)
    else:
        given = next((value for value in column if value not in (None, "")), None)
        is_dated = given is not None and math.isnan(as_number(given)) and str(given) != "nan"
        if is_dated:
            found = np.array([_date(value) for value in column], dtype=np.float64)
        else:
            found = np.array(numbers(checks, name, column), dtype=np.float64)
    checks.refuse(
        ~np.isfinite(found),
        "time",
        lambda row: (
            f"{name!r} must be a number or a date such as 2026-01-31 12:00, got "
            f"{str(column[row])!r}; {SKIP}"
        ),
    )
    return found, is_dated


def _date(value: Any) -> float:
    """Seconds since 1970 of a date with or without a time zone; NaN of other text."""
    text = re.sub(r"[Zz]$", "+00:00", str(value).strip())
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except ValueError:
        pass
    try:  # months, and fractions of other lengths
        if re.fullmatch(r"\d{4}-[\d\-T :.]+", text):
            return float(np.datetime64(text, "us").astype(np.int64)) / 1e6
    except ValueError:
        pass
    return math.nan
