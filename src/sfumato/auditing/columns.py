"""Read the columns of a file, give them their roles, and check them row by row.

Nothing in a file is executed: no pickles are read. Tables are never in memory as a whole.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import MOST_WHOLE, are_probabilities, plain_array, whole_numbers
from sfumato._core.files import (
    MOST_WORDS,
    ContentError,
    checked_file,
    csv_rows,
    map_array,
    open_arrays,
    open_file,
    parquet_file,
    text_lines,
    words_of_rows,
)
from sfumato._core.text import reason
from sfumato._core.torch_files import read_tensors


class PredictionFileError(ContentError):
    """A file that can't be audited; the message names it, says why, and what would work."""


BATCH = 131_072  # rows at a time, fewer where they are wide
_ENTRIES = 2**21
_JSON_LINES = 8192  # which may hold long lists

Columns = dict[str, np.ndarray]
Broken = dict[int, str]  # place in a batch to why that line is no row of the table
Table = Iterator[tuple[int, Columns, Broken]]
# Names of the columns that are read, of all names and of those that hold lists.
Wanted = Callable[[list[str], list[str]], list[str]]

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def batch_rows(columns: int) -> int:
    """Rows that are read at a time: some megabytes, however wide they are."""
    return min(BATCH, max(1024, _ENTRIES // max(1, columns)))


def read_npz(path: Path) -> Columns:
    with open_arrays(path) as content:
        return {key: content[key] for key in content.files}


def read_safetensors(path: Path) -> Columns:
    from safetensors.torch import load_file

    found = load_file(checked_file(path))
    are_small = {k: v.is_floating_point() and v.element_size() < 4 for k, v in found.items()}
    return {k: (v.float() if are_small[k] else v).numpy() for k, v in found.items()}


def read_pt(path: Path) -> Columns:
    """Tensors of a dictionary by name, or one without a name; lists of numbers and text, too."""
    content = read_tensors(path)
    if isinstance(content, Tensor):
        content = {"array": content}
    if not isinstance(content, Mapping):
        raise ValueError(
            f"it holds {type(content).__name__}; save a dictionary: torch.save({{'probs': ..., "
            "'labels': ...}, FILE)"
        )
    _check_room(content)
    return {
        str(name): _from_tensor(str(name), value) if isinstance(value, Tensor) else _listing(value)
        for name, value in content.items()
        if isinstance(value, Tensor)
        or (isinstance(value, list) and all(isinstance(v, str | int | float) for v in value))
    }


def _check_room(content: Mapping[Any, Any]) -> None:
    """Raise where tensors that share memory would take far more of it once they are float32."""
    tensors = [each for each in content.values() if isinstance(each, Tensor) and not each.is_meta]
    halves = [
        each for each in tensors if each.dtype == torch.bfloat16 and each.layout == torch.strided
    ]
    kept = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in halves}
    if sum(4 * each.numel() for each in halves) > 2 * sum(kept.values()):
        raise ValueError("its tensors are views of each other; save them with .clone()")


def _listing(values: list[Any]) -> np.ndarray:
    return _objects(values) if any(isinstance(each, str) for each in values) else np.array(values)


def array_of_tensor(name: str, value: Tensor) -> np.ndarray:
    """NumPy's view of a tensor on any device; sparse, quantised and other odd ones are refused."""
    kinds = {"nested": value.is_nested, "meta": value.is_meta, "quantised": value.is_quantized}
    kind = next((each for each, is_it in kinds.items() if is_it), None)
    if kind is None and value.layout != torch.strided:
        kind = str(value.layout).removeprefix("torch.")
    if kind is not None:
        raise ValueError(f"{name!r} is a {kind} tensor; make it a dense one")
    found = value.detach().cpu()
    array: np.ndarray = (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    return array


def _from_tensor(name: str, value: Tensor) -> np.ndarray:
    array = array_of_tensor(name, value)
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ValueError(f"{name!r} is an expanded view; save it with .contiguous()")
    return array


def columns_of_frame(frame: Any) -> Columns:
    """The columns of a frame of pandas, Polars or pyarrow, or of a mapping of names to columns."""
    is_arrow = hasattr(frame, "column_names") and hasattr(frame, "combine_chunks")
    if is_arrow:
        names = frame.column_names
    else:
        names = list(frame.keys() if isinstance(frame, Mapping) else frame.columns)
    if len({str(name) for name in names}) != len(names):
        raise PredictionFileError("the frame has several columns of one name; keep one of them")
    if not is_arrow:
        return {str(name): _plain(str(name), frame[name]) for name in names}
    found = {}
    for name, each in zip(names, frame.combine_chunks().columns, strict=True):
        whole = each.combine_chunks() if each.num_chunks != 1 else each.chunk(0)
        found[name] = _from_arrow(whole, sys.maxsize)  # of the caller's own memory: no bound
    return found


def _plain(name: str, column: Any) -> np.ndarray:
    if isinstance(column, Tensor):
        return _from_tensor(name, column)
    array = plain_array(name, column)
    if array.dtype.kind == "M" and str(getattr(column, "dtype", "")).count(","):
        array = array.astype("datetime64[us]")  # with a time zone
    if array.dtype == object and len(array) and isinstance(array[0], (np.ndarray, list)):
        return _objects([list(each) if isinstance(each, np.ndarray) else each for each in array])
    return array


def read_npy(path: Path) -> Columns:
    """One array without a name; mapped, so that only what is looked at is read."""
    try:
        return {"array": map_array(path)}
    except (ValueError, OSError) as error:
        raise PredictionFileError(f"{path}: can't be read ({reason(error)})") from None


def csv_batches(path: Path, wanted: Wanted, on_bad_row: str = "stop") -> Table:
    """Columns of text without blanks around it, and the number of their first row, from 1.

    A line with other fields than the header stops, or is a broken one with None for all of them.
    Empty lines are none. Fields end at commas, semicolons or tabs, as in the header.
    """
    with TextIOWrapper(open_file(path), "utf-8-sig", newline="") as file:
        outside_quotes = re.sub(r'"[^"]*"', "", next(text_lines(file), ""))
        delimiter = max(_DELIMITERS, key=outside_quotes.count)  # the one of the most fields
        file.seek(0)
        form = {"delimiter": delimiter, "skipinitialspace": True}
        read = csv_rows(path, text_lines(file), **form)
        rows: Iterator[list[str]] = (line for _, line in read if line)
        header = [name.strip() for name in next(rows, [])]
        ahead = list(islice(rows, 1))
        cells = zip(header, ahead[0], strict=False) if ahead else ()
        lists = [name for name, cell in cells if cell.startswith("[")]
        places = {name: place for place, name in reversed([*enumerate(header)])}
        chosen = [(places[name], name) for name in wanted(header, lists)]
        rows = chain(ahead, rows)
        number, step, size = 1, batch_rows(len(header)), len(header)
        quote = f"fields where the header has {size}; quote fields that hold"
        while lines := list(islice(rows, step)):
            bad = {
                place: _NoRow(
                    "too few fields" if len(line) < size else "too many fields",
                    f"{len(line)} {quote} {_DELIMITERS[delimiter]}",
                )
                for place, line in enumerate(lines)
                if len(line) != size
            }
            broken = _broken(path, number + 1, bad, on_bad_row)
            columns = {
                name: _objects(
                    [None if at in broken else line[place].strip() for at, line in enumerate(lines)]
                )
                for place, name in chosen
            }
            yield number, columns, broken
            number += len(lines)


class _NoRow(NamedTuple):
    """Why a line is no row: in two words for a count, and as a message."""

    reason: str
    message: str


def _broken(path: Path, first: int, bad: Mapping[int, _NoRow], on_bad_row: str) -> Broken:
    """Name the lines that are no rows, or raise for the first of them."""
    if bad and on_bad_row == "stop":
        at = min(bad)
        raise PredictionFileError(f"{path}, line {first + at}: {bad[at].message}")
    return {at: each.reason for at, each in bad.items()}


def json_batches(path: Path, wanted: Wanted, on_bad_row: str = "stop") -> Table:
    """One object a line; lists stay lists. Keys are those of the first one; empty lines are none.

    A line that is no object stops, or is a broken one without keys.
    """
    with TextIOWrapper(open_file(path), "utf-8-sig") as opened:
        file = (line for line in text_lines(opened) if line.strip())
        number, names = 1, None
        while lines := list(islice(file, min(BATCH, _JSON_LINES))):
            read = [_json_row(line) for line in lines]
            bad = {at: row for at, row in enumerate(read) if isinstance(row, _NoRow)}
            broken = _broken(path, number, bad, on_bad_row)
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


def _json_row(line: str) -> dict[str, Any] | _NoRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _NoRow("not valid JSON", f"not valid JSON ({error})")
    if not isinstance(row, dict):
        example = '{"label": 0, "probs": [0.9, 0.1]}'
        return _NoRow("no object", f"an object with names is needed, such as {example}")
    return row


def parquet_batches(
    path: Path, wanted: Wanted, on_bad_row: str = "stop", groups: list[int] | None = None
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
        import pyarrow  # noqa: F401
    except ImportError:
        raise PredictionFileError(
            f"{path}: reading Parquet needs pyarrow: python3 -m pip install 'sfumato[study]'"
        ) from None
    try:
        return parquet_file(path)
    except Exception as error:
        raise PredictionFileError(f"{path}: can't be read ({reason(error)})") from None


def _from_arrow(column: Any, most: int = MOST_WORDS) -> np.ndarray:
    column = words_of_rows(column, most)
    if _are_lists(column.type):
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(sizes) and not column.null_count and (sizes == sizes[0]).all():
            values = column.flatten().to_numpy(zero_copy_only=False)
            return values.reshape(len(column), int(sizes[0]))
        return _objects(column.to_pylist())
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
    ".pt": read_pt,
    ".pth": read_pt,
}

TABLES: dict[str, Callable[..., Table]] = {
    ".csv": csv_batches,
    ".jsonl": json_batches,
    ".ndjson": json_batches,
    ".parquet": parquet_batches,
}

Kind = Literal["probs", "logits"]

LOGITS = ("logits", "logit")
PROBS = (
    *("probs", "prob", "probabilities", "probability", "proba", "y_prob", "y_proba", "softmax"),
    *("pred_probs", "predicted_probs", "p"),
)
UNNAMED = ("predictions", "preds", "outputs", "output", "scores", "y_score", "y_pred", "array")
PREDICTED = (
    *("predicted", "prediction", "pred_label", "pred_labels", "predicted_label", "pred_class"),
    *("predicted_labels", "predicted_class", "pred", "y_pred", "predictions", "preds"),
)
# Of what a name alone decides; fields of `Roles`.
NAMES: dict[str, tuple[str, ...]] = {
    "labels": (
        *("labels", "label", "target", "targets", "ground_truth", "true_label", "true_labels"),
        *("y_true", "true_class", "true_classes", "ground_truths", "gt", "y"),
    ),
    "confidence": ("confidence", "confidences", "conf", "score", "max_prob", "top_prob"),
    "correct": ("correct", "is_correct", "matched", "hit"),
    "groups": ("group", "groups"),
    "times": ("time", "timestamp", "times", "date", "datetime"),
    "index": ("index",),
    "boxes": ("box", "boxes"),
    "images": ("image", "image_id", "image_ids", "img_id"),
    "class_names": ("classes", "class_names", "class_name"),
    "familiar": ("in_distribution",),
}
_BY_CLASS: dict[str, tuple[str, ...]] = {
    "logits": ("logit_", "logits_"),
    "probs": ("prob_", "probs_", "probability_", "proba_", "p_"),
}


@dataclass
class Roles:
    """Names of a file by what they hold; None and empty where there is none."""

    labels: str | None = None
    scores: list[str] = field(default_factory=list)  # one name, or a column for each class
    kind: Kind | None = None  # of the scores; None where their name doesn't say it
    both: bool = False  # logits and probabilities
    classes: list[str] | None = None  # named by the columns
    confidence: str | None = None
    predicted: str | None = None
    correct: str | None = None
    groups: str | None = None
    times: str | None = None
    index: str | None = None
    boxes: str | None = None
    images: str | None = None
    class_names: str | None = None
    familiar: str | None = None  # false where an input is of none of the classes
    beside: str | None = None  # predicted classes, of which the one score of a row may speak


# What a column can be told to be, and the role's own name.
TOLD = {
    "label": "labels",
    "probs": "scores",
    "logits": "scores",
    "confidence": "confidence",
    "correct": "correct",
    "predicted": "predicted",
    "group": "groups",
    "time": "times",
    "index": "index",
    "image": "images",
    "box": "boxes",
    "in_distribution": "familiar",
}


def told_roles(
    names: Sequence[str],
    told: Mapping[str, Sequence[str]],
    flat: Iterable[str] = (),
    lists: Iterable[str] = (),
) -> Roles:
    """`roles_of` where the user says of some names what they hold; others are not asked for it."""
    spoken = {name for each in told.values() for name in each}
    missing = sorted(spoken - set(names))
    if missing:
        raise ValueError(f"has no column {missing[0]!r}; has {list(names)[:12]}")
    for key, each in told.items():
        if key not in TOLD:
            raise ValueError(f"columns can be {', '.join(TOLD)}, got {key!r}")
        if len(each) != 1 and TOLD[key] != "scores":
            raise ValueError(f"{key} is one column, got {list(each)}")
    scores = [key for key in ("probs", "logits", "confidence") if key in told]
    if len(scores) > 1:
        raise ValueError(f"give one of probs, logits and confidence, got {' and '.join(scores)}")
    found = roles_of([name for name in names if name not in spoken], flat, lists)
    if scores:
        found.both, found.beside, found.confidence = False, None, None
        found.scores, found.kind, found.classes = [], None, None
    for key, each in told.items():
        if TOLD[key] != "scores":
            setattr(found, TOLD[key], each[0])
            continue
        found.scores, found.kind = list(each), "logits" if key == "logits" else "probs"
        found.classes = list(each) if len(each) > 1 else None
    return found


def roles_of(names: Iterable[str], flat: Iterable[str] = (), lists: Iterable[str] = ()) -> Roles:
    """Give each name of a file its role.

    Args:
        names: arrays or columns, in the order of the file.
        flat: those of them that can't be scores, because they hold one whole number a row.
        lists: those of them that hold several numbers a row.
    """
    names, lists = list(names), set(lists)
    known = {name.strip().lower(): name for name in reversed(names)}

    def first(candidates: Iterable[str]) -> str | None:
        return next((known[name] for name in candidates if name in known), None)

    found = Roles(**{role: first(known_as) for role, known_as in NAMES.items()})  # type: ignore[arg-type]
    has_outcome = found.correct or (found.labels and first(PREDICTED))
    is_enough = bool(found.confidence and has_outcome)
    kinds: tuple[Kind, Kind] = ("logits", "probs")
    named = {kind: _named(names, first, kind, is_enough=is_enough) for kind in kinds}
    found.both = all(columns for columns, _ in named.values())
    found.kind = next((kind for kind, (columns, _) in named.items() if columns), None)
    if found.kind is not None:
        found.scores, found.classes = named[found.kind]
    else:
        no_scores = {name.strip().lower() for name in flat}
        if found.confidence:  # beside which the predicted class is what is missing
            no_scores |= {
                each for each in set(UNNAMED) & set(PREDICTED) if known.get(each) not in lists
            }
        found.scores, found.classes = _unnamed(names, first, no_scores)
    found.predicted = first(name for name in PREDICTED if known.get(name) not in found.scores)
    if is_enough and found.labels is None:  # scores without labels tell less
        found.scores, found.classes, found.kind = [], None, None
    if len(found.scores) == 1 and found.scores[0] not in lists:
        is_any_class = found.scores[0].strip().lower() in (*PROBS, *UNNAMED)
        found.beside = found.predicted if is_any_class else None
    return found


def _named(
    names: list[str], first: Callable[[Iterable[str]], str | None], kind: Kind, *, is_enough: bool
) -> tuple[list[str], list[str] | None]:
    """One array or column under a usual name, or a column for each class, with the classes.

    A single column `prob_<class>` is that of the second of two classes, if it is called so; where
    confidences are enough it is none, since `p_value` begins like one.
    """
    one = first(LOGITS if kind == "logits" else PROBS)
    if one is not None:
        return [one], None
    found: list[tuple[list[str], list[str]]] = []
    for prefix in _BY_CLASS[kind]:
        columns = [name for name in names if name.strip().lower().startswith(prefix)]
        found.append((columns, [name.strip()[len(prefix) :].strip() for name in columns]))
    columns, classes = max(found, key=lambda each: min(len(each[0]), 2))
    if len(columns) == 1 and is_enough:
        return [], None
    if len(columns) == 1 and kind == "probs" and classes[0].lower() in ("1", "true"):
        return columns, None
    return columns, classes or None


def _unnamed(
    names: list[str], first: Callable[[Iterable[str]], str | None], no_scores: set[str]
) -> tuple[list[str], list[str] | None]:
    """Columns called 0, 1, 2 ..., or an array whose name doesn't say what it holds."""
    numbered = sorted((name for name in names if re.fullmatch(r"\s*\d+\s*", name)), key=int)
    if len(numbered) > 1 and [int(name) for name in numbered] == list(range(len(numbered))):
        return numbered, [name.strip() for name in numbered]
    one = first(name for name in UNNAMED if name not in no_scores)
    return ([] if one is None else [one]), None


OnBadRow = Literal["stop", "skip"]
TOLERANCE = 1e-3
_PROBABILITIES = "name them 'probs' (--kind probs), or say --any-logits if they are logits"
IGNORED = "with the label of --ignore-index"


@dataclass
class RowChecks:
    """Checks of one part of a file."""

    where: str  # name of the file, for messages
    first: int  # number of the part's first row in the file
    count: int
    on_bad_row: OnBadRow = "stop"
    of_arrays: bool = False  # rows are arguments of a function, which has no options of a command
    any_logits: bool = False  # logits may look like probabilities
    reasons: Counter[str] = field(default_factory=Counter)
    bad: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.bad = np.zeros(self.count, dtype=bool)

    @property
    def skip(self) -> str:
        """The remedy for a bad row, for messages."""
        if self.of_arrays:
            return "correct the row, or leave such rows out of every array"
        return "correct the row, or leave such rows out with --on-bad-row skip"

    def refuse(self, mask: np.ndarray, reason: str, describe: Callable[[int], str]) -> None:
        """Bad are the rows of `mask`; `describe(row)` says what is wrong and what to do."""
        rows = np.flatnonzero(mask & ~self.bad)
        if len(rows) and self.on_bad_row == "stop":
            text = describe(int(rows[0]))
            raise PredictionFileError(f"{self.where}, row {self.first + int(rows[0])}: {text}")
        self.drop(mask, reason)

    def drop(self, mask: np.ndarray, reason: str) -> None:
        """Leave the rows of `mask` out and count them, without a word against them."""
        rows = mask & ~self.bad
        if rows.any():
            self.reasons[reason] += int(rows.sum())
            self.bad |= mask

    def leave_out(self, broken: Mapping[int, str]) -> None:
        """Count lines that are no rows: place to reason. Nothing else is said of them."""
        self.reasons.update(broken.values())
        self.bad[list(broken)] = True

    def kept(self) -> np.ndarray | None:
        """Positions of the good rows; None where all are good."""
        return np.flatnonzero(~self.bad) if self.bad.any() else None


def check_probabilities(checks: RowChecks, name: str, probs: Tensor) -> Tensor:
    """No NaN, nothing negative, rows that sum to one within 1e-3 and the rounding of their type."""
    totals, low = probs.sum(1), probs.amin(1)
    sums, high = totals, totals
    if probs.ndim > 2:
        low, sums, high = low.flatten(1).amin(1), sums.flatten(1).amin(1), sums.flatten(1).amax(1)
    slack = max(1e-9, 4 * torch.finfo(probs.dtype).eps)
    within = TOLERANCE - slack
    if bool(((low >= 0) & (sums >= 1 - within) & (high <= 1 + within)).all()):
        return probs
    if bool(((probs == probs.bfloat16()) | probs.isnan()).all()):  # were bfloat16 before
        slack = max(slack, 2**-8)
    lowest, smallest, largest = (each.double().numpy() for each in (low, sums, high))
    checks.refuse(
        np.isnan(smallest) | np.isnan(lowest), "NaN", lambda _: f"{name!r} holds NaN; {checks.skip}"
    )
    checks.refuse(
        lowest < 0,
        "negative probability",
        lambda row: f"{name!r} is negative ({lowest[row]:.4g}); {_raw_scores(checks, name)}",
    )
    off = np.where(np.abs(smallest - 1) > np.abs(largest - 1), smallest, largest)
    checks.refuse(
        np.abs(off - 1) > TOLERANCE + slack,
        "sum of probabilities",
        lambda row: (
            f"{name!r} sums to {off[row]:.6g}, not to 1; {_raw_scores(checks, name)}, "
            "other rows are to be divided by their sum"
        ),
    )
    is_beyond = (totals - 1).abs() > within
    return probs.where(~is_beyond.unsqueeze(1), probs / totals.unsqueeze(1))


def check_logits(checks: RowChecks, name: str, logits: Tensor) -> None:
    """Finite numbers only, and no probabilities."""
    if not checks.any_logits and are_probabilities(logits):
        raise PredictionFileError(
            f"{checks.where}: {name!r} must be raw scores, got probabilities (no entry is "
            f"negative, and every row sums to 1); {_PROBABILITIES}"
        )
    bad = ~logits.isfinite().flatten(1).all(1).numpy()
    checks.refuse(bad, "NaN or infinity", lambda _: f"{name!r} is not finite; {checks.skip}")


def check_labels(checks: RowChecks, labels: Tensor, classes: int, ignored: int | None) -> None:
    """Class numbers from 0 on; `ignored` may occur in segmentation masks."""
    bad = (labels < 0) | (labels >= classes)
    bad = bad if ignored is None else bad & (labels != ignored)
    if not bool(bad.any()):
        return
    remedy = checks.skip
    if labels.ndim > 1:
        remedy = "name the label of void pixels with --ignore-index"
        remedy = "leave images with void pixels out" if checks.of_arrays else remedy
    elif int(labels.min()) >= 1:
        remedy = "classes are counted from 0: subtract the smallest label"
    checks.refuse(
        bad.reshape(len(bad), -1).any(1).numpy(),
        "label outside the classes",
        lambda row: (
            f"label {int(labels[row][bad[row]].flatten()[0])} is outside [0, {classes}); {remedy}"
        ),
    )


def check_class_names(checks: RowChecks, classes: Sequence[str] | None) -> None:
    """Every name once."""
    twice = [name for name, count in Counter(classes or ()).items() if count > 1]
    if twice:
        raise PredictionFileError(
            f"{checks.where}: {twice[0]!r} names several classes; give each a name of its own"
        )


def check_confidence(checks: RowChecks, name: str, confidence: Tensor) -> None:
    """Numbers from 0 to 1."""
    checks.refuse(
        ~((confidence >= 0) & (confidence <= 1 + TOLERANCE)).numpy(),
        "confidence outside [0, 1]",
        lambda row: (
            f"{name!r} is {float(confidence[row]):.6g}, outside [0, 1]; give probabilities of the "
            "predicted class, percentages divided by 100"
        ),
    )


def check_boxes(checks: RowChecks, name: str, corners: np.ndarray) -> None:
    """Corners x1 <= x2, y1 <= y2 in [0, 1], but for roundings."""

    def shown(row: int) -> str:
        return f"{name!r} is [" + ", ".join(f"{number:.4g}" for number in corners[row]) + "]"

    remedy = f"or leave {name!r} out to audit by confidence alone"
    checks.refuse(
        ~np.asarray(((corners >= -1e-6) & (corners <= 1 + 1e-6)).all(1)),
        "box outside the image",
        lambda row: (
            f"{shown(row)}, not in [0, 1]: divide pixels by width and height of the image, {remedy}"
        ),
    )
    checks.refuse(
        np.asarray((corners[:, 2:] < corners[:, :2]).any(1)),
        "corners in the wrong order",
        lambda row: f"{shown(row)}: give x1 y1 x2 y2 with x1 <= x2 and y1 <= y2, {remedy}",
    )


def _raw_scores(checks: RowChecks, name: str) -> str:
    """Return the remedy for raw scores under a name that may say they are none."""
    if checks.of_arrays:
        return "raw scores go to logits="
    if name.strip().lower() in UNNAMED or name.strip().isdecimal():
        return "raw scores need --kind logits"
    return "raw scores are to be called 'logits', or 'logit_<class>'"


def numbers(checks: RowChecks, name: str, column: np.ndarray) -> np.ndarray:
    """Floating point numbers in single or double precision; text is read as numbers."""
    if column.dtype in (np.float32, np.float64):
        return column
    if column.dtype == np.float16:
        return column.astype(np.float32)
    if column.dtype.kind not in "biufOSU":
        raise PredictionFileError(f"{checks.where}: {name!r} holds {column.dtype}, not numbers")
    try:
        return column.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.array([as_number(value) for value in column])
    is_none = np.isnan(found) & np.array([str(v).strip().lower() != "nan" for v in column])

    def describe(row: int) -> str:
        value, remedy = column[row], checks.skip
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]*,[0-9]+\s*", value):
            remedy = "write numbers with a decimal point, 0.5"
        elif isinstance(value, str) and value.startswith("["):
            remedy = 'write lists as JSON, "[0.1, 0.9]"'
        return f"column {name!r} holds no numbers: {str(value)!r}; {remedy}"

    checks.refuse(is_none, f"no number in {name!r}", describe)
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
    """Return as many numbers a row as most have; others are bad rows."""
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
        lambda row: f"{name!r} holds what is no number: {str(rows[row])[:60]}; {checks.skip}",
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
    """Convert to a tensor; a copy where the memory belongs to a file and must not be written."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def truth_values(checks: RowChecks, name: str, column: np.ndarray) -> np.ndarray:
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
    except (ValueError, TypeError, OverflowError):
        return math.nan


_BOOLEANS = {"true": 1, "false": 0}


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
        return torch.from_numpy(whole_numbers(np.ascontiguousarray(column)))
    if column.dtype.kind == "f":
        refuse_missing(checks, name, column)
        checks.refuse(
            ~(column % 1 == 0),
            "label",
            lambda row: f"{name!r} must hold whole numbers, got {column[row]}; {checks.skip}",
        )
        column = whole_numbers(column)
    places = {each: place for place, each in enumerate(classes or ())}
    codes, names = spelled(column)
    known = [_class_number(each, places, count == 2, ignored) for each in names]
    found = np.array([each or 0 for each in known], dtype=np.int64)[codes]
    what = f"a class name of the header nor a class number; {checks.skip}"
    if not classes:
        how = "classes=['cat', 'dog']" if checks.of_arrays else "--classes cat,dog"
        what = f"a class name nor a number; name the classes: {how}"
    is_unknown = np.array([each is None for each in known], dtype=bool)
    is_missing = is_unknown & np.array([_is_missing(n) or n == "None" for n in names], dtype=bool)
    _refuse_missing(checks, name, is_missing[codes])
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
    if column.dtype == object:  # never numpy's text: each row takes the room of the longest
        texts = [_text(value) for value in column]
        known = {text: place for place, text in enumerate(sorted(set(texts)))}
        inverse = np.array([known[text] for text in texts], dtype=np.int64)
        names = [_spelling(text) for text in known]
    else:
        values, inverse = np.unique(column, return_inverse=True)
        names = [_spelling(value) for value in values.tolist()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    codes = np.array([places[name] for name in names], dtype=np.int64)
    return codes[inverse], list(places)


def same_classes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows where two columns name the same class; numbers where both hold only those."""
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
    _refuse_missing(checks, name, mask)


def _refuse_missing(checks: RowChecks, name: str, mask: np.ndarray) -> None:
    checks.refuse(mask, "missing label", lambda _: f"{name!r} is missing; {checks.skip}")


def names_of(column: np.ndarray) -> list[str]:
    """Text without blanks around it, one for each row."""
    return [_text(value) for value in column.tolist()]


def exact_number(name: str) -> int | float | None:
    """The number that a text is, whole ones exactly; true and false are 1 and 0; else None."""
    if re.fullmatch(r"[+-]?[0-9]+", name):
        return int(name)
    value = _BOOLEANS.get(name.lower(), as_number(name))
    return None if value != value else value


def _class_number(
    name: str, places: dict[str, int], are_two: bool, ignored: int | None
) -> int | None:
    if name in places:
        return places[name]
    if ignored is not None and name == str(ignored):
        return ignored
    if are_two and name.lower() in _BOOLEANS:
        return _BOOLEANS[name.lower()]
    return min(int(name), MOST_WHOLE) if name.isdecimal() else None


def _names_are_numbers(classes: list[str] | None) -> bool:
    """True if a number could be the name of a class at another place."""
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
        return value.strip().lower() in ("", "nan")
    differs = None if value is None else value != value  # pandas' NA is neither
    return not isinstance(differs, (bool, np.bool_)) or bool(differs)


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
            f"{str(column[row])!r}; {checks.skip}"
        ),
    )
    return found, is_dated


def _date(value: Any) -> float:
    """Seconds since 1970 of a date with or without a time zone; NaN of other text."""
    text = re.sub(r"[Zz]$", "+00:00", str(value).strip())
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):  # months, fractions of other lengths, the year 0
        if not re.fullmatch(r"\d{4}-[\d\-T :.]+", text):
            return math.nan
    try:
        return float(np.datetime64(text, "us").astype(np.int64)) / 1e6
    except ValueError:
        return math.nan


class Meaning:
    """The meaning of one probability a row, the same in all batches of a file."""

    def __init__(self, where: str, classes: list[str] | None) -> None:
        self.where = where
        self.numbers = {name: float(place) for place, name in enumerate(classes or ())}
        self.numbers |= dict.fromkeys(("", "nan", "None"), math.nan) | self.numbers
        self.is_confidence: bool | None = None

    def settle(self, roles: Roles, columns: Columns) -> Roles:
        """Roles with probabilities as the confidence of the predicted class, where they are that.

        They are those of class 1 where this fits the predicted classes of the first part.
        """
        if roles.beside is None:
            return roles
        name = roles.scores[0]
        is_confidence = self._is_confidence(columns[name], columns[roles.beside])
        self.is_confidence = is_confidence if self.is_confidence is None else self.is_confidence
        if is_confidence is None or is_confidence is not self.is_confidence:
            raise PredictionFileError(
                f"{self.where}: {name!r} fits {roles.beside!r} neither as the probability of class "
                f"1 nor as that of the predicted class; leave {roles.beside!r} out, or call it "
                "'confidence' if it is that"
            )
        if not is_confidence:
            return roles
        return replace(roles, scores=[], kind=None, confidence=roles.confidence or name)

    def _is_confidence(self, column: np.ndarray, predicted: np.ndarray) -> bool | None:
        """False where probabilities of class 1 fit, None where those of no class do."""
        codes, names = spelled(predicted)
        found = [self.numbers.get(name, exact_number(name)) for name in names]
        # A name that is no number is of neither class.
        numbers = np.array([2.0 if n is None else float(n) for n in found])[codes]
        values = np.array([as_number(value) for value in column.tolist()], dtype=np.float64)
        known = ~np.isnan(values) & ~np.isnan(numbers)
        values, numbers = values[known], numbers[known]
        if not np.isin(numbers, (0, 1)).all():
            return True
        least, most = 0.5 - 1e-6, 0.5 + 1e-6  # but for roundings
        if np.where(numbers == 1, values >= least, values <= most).all():
            return False
        return True if (values >= least).all() else None
