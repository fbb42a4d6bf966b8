"""Labels and predicted classes of a file: names or numbers, in whatever way they are written."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_checks import SKIP, RowChecks

_BOOLEANS = {"true": 1, "false": 0}
_MISSING = ("", "nan")
_LARGEST = 2**62  # beyond any number of classes, and still an int64


def class_numbers(
    checks: RowChecks,
    name: str,
    column: np.ndarray,
    classes: list[str] | None,
    *,
    count: int,
    ignored: int | None = None,
) -> Tensor:
    """A label is a class's name, or else its number; what is neither is refused.

    Args:
        checks: takes the bad rows.
        name: of the column, for messages.
        column: the labels.
        classes: names of the classes; None where they have none.
        count: how many classes there are; true and false stand for 1 and 0 where they are two.
        ignored: a number that is a label though it is no class.
    """
    if column.dtype.kind in "iu" and not _names_are_numbers(classes):
        return torch.from_numpy(np.ascontiguousarray(column).astype(np.int64))
    if column.dtype.kind == "f":
        _refuse_fractions(checks, name, column)
        column = np.nan_to_num(column).astype(np.int64)
    places = {each: place for place, each in enumerate(classes or ())}
    codes, names = spelled(column)
    known = [_class_number(each, places, count == 2, ignored) for each in names]
    found = np.array([each or 0 for each in known], dtype=np.int64)[codes]
    what = f"a class name of the header nor a class number; {SKIP}"
    if not classes:
        what = "a class name nor a number; name the classes: --classes cat,dog (Python: classes=)"
    is_unknown = np.array([each is None for each in known], dtype=bool)
    is_missing = is_unknown & np.array(
        [_is_missing(each) or each == "None" for each in names], dtype=bool
    )
    checks.refuse(is_missing[codes], "missing label", lambda _: f"{name!r} is missing; {SKIP}")
    checks.refuse(
        is_unknown[codes],
        "unknown label",
        lambda row: f"label {str(column[row])!r} is neither {what}",
    )
    return torch.from_numpy(found)


def spelled(column: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Places in a list of the names that occur, and that list: text without blanks around it.

    A whole number is the same name with a fraction of zeros and without.
    """
    values, inverse = np.unique(
        column.astype(str) if column.dtype == object else column, return_inverse=True
    )
    names = [_spelling(value) for value in values.tolist()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    codes = np.array([places[name] for name in names], dtype=np.int64)
    return codes[inverse], list(places)


def same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Where two columns name the same class; as numbers where both hold nothing else."""
    (ours, our_names), (theirs, their_names) = spelled(first), spelled(second)
    numbers = {each: exact_number(each) for each in (*our_names, *their_names)}
    are_numbers = all(numbers[each] is not None for each in numbers if not _is_missing(each))
    keys: dict[Any, int] = {}

    def coded(names: list[str]) -> np.ndarray:
        known = [numbers[each] if are_numbers else each for each in names]
        return np.array([keys.setdefault(each, len(keys)) for each in known], dtype=np.int64)

    return np.asarray(coded(our_names)[ours] == coded(their_names)[theirs])


def refuse_missing(checks: RowChecks, name: str, column: np.ndarray) -> None:
    """Bad are the rows in which a column holds nothing: None, NaN, empty text."""
    if column.dtype.kind in "iub":
        return
    if column.dtype == object:
        mask = np.array([_is_missing(value) for value in column], dtype=bool)
    else:
        codes, names = spelled(column)
        mask = np.array([_is_missing(each) for each in names], dtype=bool)[codes]
    checks.refuse(mask, "missing label", lambda _: f"{name!r} is missing; {SKIP}")


def names_of(column: np.ndarray) -> list[str]:
    """Text without blanks around it, one for each row."""
    return [_text(value) for value in column.tolist()]


def exact_number(name: str) -> int | float | None:
    """The number that a text is, whole ones exactly; true and false are 1 and 0; else None."""
    if re.fullmatch(r"[+-]?[0-9]+", name):
        return int(name)
    if name.lower() in _BOOLEANS:
        return _BOOLEANS[name.lower()]
    try:
        value = float(name)
    except ValueError:
        return None
    return None if value != value else value


def _refuse_fractions(checks: RowChecks, name: str, column: np.ndarray) -> None:
    refuse_missing(checks, name, column)
    checks.refuse(
        ~(column % 1 == 0),
        "label",
        lambda row: f"{name!r} must hold whole numbers, got {column[row]}; {SKIP}",
    )


def _class_number(
    name: str, places: dict[str, int], are_two: bool, ignored: int | None
) -> int | None:
    if name in places:
        return places[name]
    if ignored is not None and name == str(ignored):
        return ignored
    if are_two and name.lower() in _BOOLEANS:
        return _BOOLEANS[name.lower()]
    return min(int(name), _LARGEST) if name.isdecimal() else None


def _names_are_numbers(classes: list[str] | None) -> bool:
    """Whether a number could be a name that means another place."""
    if classes is None or classes == [str(place) for place in range(len(classes))]:
        return False
    return any(name.isdecimal() for name in classes)


def _text(value: Any) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


def _spelling(value: Any) -> str:
    text = _text(value)
    whole = re.fullmatch(r"([+-]?[0-9]+)\.0*", text)
    return text if whole is None else whole[1]


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    return value is None or bool(value != value)
