"""Read saved predictions from files, shards or arrays; nothing in them is executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timezone
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import check_logit_values, plain_array, whole_numbers
from sfumato._core.files import ContentError, checked_file
from sfumato._core.text import reason
from sfumato.auditing.columns import (
    ARRAYS,
    IGNORED,
    NAMES,
    TABLES,
    Columns,
    Kind,
    Meaning,
    OnBadRow,
    PredictionFileError,
    Roles,
    RowChecks,
    array_of_tensor,
    batch_rows,
    check_boxes,
    check_class_names,
    check_confidence,
    check_labels,
    check_logits,
    check_probabilities,
    class_numbers,
    columns_of_frame,
    matrix,
    names_of,
    numbers,
    read_npy,
    read_pt,
    refuse_missing,
    same_classes,
    seconds,
    spelled,
    tensor,
    told_roles,
    truth_values,
)
from sfumato.predictions.calibrator import Calibrator


class Origin(NamedTuple):
    """A file whose rows begin at this place among those of several files."""

    start: int
    name: str


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Columns beside the predictions; None where the file doesn't have them."""

    index: Tensor | None = None  # (N,) int64
    groups: list[str] | None = None
    classes: list[str] | None = None
    times: Tensor | None = None  # (N,) float64
    is_dated: bool = False  # whether times are seconds since 1970
    rows: Tensor | None = None  # (N,) int64, positions in the file
    skipped: dict[str, int] = field(default_factory=dict)  # rows that were left out, by reason
    origins: tuple[Origin, ...] = ()  # the files that were merged
    # Scores as those of the rows, (M, C) or (M,), of inputs that are of none of the classes.
    strange: Tensor | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def positions(self) -> Tensor:
        """Positions of the rows in their file, (N,); those in memory where no file told any."""
        return torch.arange(len(self)) if self.rows is None else self.rows


@dataclass(frozen=True)
class PredictionFile(_Rows):
    """Predictions with their labels: logits or probabilities, never guessed from the values.

    Dense predictions have axes behind those named here: predictions (N, C, H, W), labels (N, H, W).
    """

    name: str
    labels: Tensor  # (N,) int64
    logits: Tensor | None = None  # (N, C)
    probs: Tensor | None = None  # (N, C)
    void: int = -100  # label of pixels that count for nothing
    own_classes: list[str] | None = None  # as the file itself names them

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predictions(self) -> Tensor:
        """Logits or probabilities, whichever the file holds, (N, C)."""
        found = self.probs if self.logits is None else self.logits
        if found is None:
            raise ValueError("a prediction file holds logits or probs")
        return found

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities in double precision, (N, C)."""
        values = self.predictions.double()
        return values if self.logits is None else values.softmax(1)

    def chosen(self, rows: Tensor) -> PredictionFile:
        """Labels and predictions of these rows, without what stands beside them."""
        kind = "probs" if self.logits is None else "logits"
        return PredictionFile(self.name, self.labels[rows], **{kind: self.predictions[rows]})  # type: ignore[arg-type]


@dataclass(frozen=True)
class ConfidenceFile(_Rows):
    """Predictions of which only the confidence and whether they were right is known."""

    name: str
    confidence: Tensor  # (N,)
    correct: Tensor  # (N,) bool
    predicted: Tensor | None = None  # (N,) int64, places in `classes`
    boxes: Tensor | None = None  # (N, 4), of detections
    images: list[str] | None = None  # of which each prediction is one of perhaps several
    truth: list[str] | None = None  # names of the labels, where they are known
    is_labelled: bool = True  # False where nothing is known of `correct`, which then is false

    def __len__(self) -> int:
        return len(self.confidence)


AnyPredictions = PredictionFile | ConfidenceFile


def file_of(predictions: AnyPredictions, place: int) -> str:
    """Name of the file that the row at this place is from."""
    began = [origin for origin in predictions.origins if origin.start <= place]
    return began[-1].name if began else predictions.name


def file_numbers(predictions: AnyPredictions) -> Tensor:
    """Number of the merged file that each row is from, (N,), from 0."""
    starts = torch.tensor([origin.start for origin in predictions.origins[1:]], dtype=torch.int64)
    return torch.searchsorted(starts, torch.arange(len(predictions)), right=True)


def joined(parts: Sequence[AnyPredictions]) -> AnyPredictions:
    """Parts of one file after each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(type(part) is not type(first) for part in parts):
        raise PredictionFileError(
            f"{first.name}: some parts hold all classes, others confidences only; give one kind"
        )
    if isinstance(first, PredictionFile):
        _check_shapes([part for part in parts if isinstance(part, PredictionFile)])
    else:
        parts = _with_shared_names([part for part in parts if isinstance(part, ConfidenceFile)])
    of_rows: dict[str, Any] = {}
    for name in {each.name for each in fields(first)} - _OF_FILE:
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            of_rows[name] = None
        elif isinstance(values[0], Tensor):
            of_rows[name] = torch.cat(values)
        else:
            of_rows[name] = [each for value in values for each in value]
    return replace(parts[0], **of_rows)


# What holds for a file as a whole, so that every part of it has the same.
_OF_FILE = frozenset(
    ("name", "classes", "own_classes", "void", "is_dated", "is_labelled", "skipped", "origins")
)


def _check_shapes(files: Sequence[PredictionFile]) -> None:
    first = files[0]
    ours = first.predictions.shape
    for part in files[1:]:
        theirs = part.predictions.shape
        if theirs[1:] != ours[1:]:
            raise PredictionFileError(
                f"{part.name} has {theirs[1]} classes where {first.name} has {ours[1]}: parts of "
                "one model have the same"
            )
        if (part.logits is None) is not (first.logits is None):
            raise PredictionFileError(f"{part.name} and {first.name} mix logits and probabilities")


def _with_shared_names(parts: Sequence[ConfidenceFile]) -> list[ConfidenceFile]:
    """The same with predicted classes as places in one list: each part names what it has seen."""
    names = list(dict.fromkeys(name for part in parts for name in part.classes or ()))
    places = {name: place for place, name in enumerate(names)}
    changed = []
    for part in parts:
        predicted = None
        if part.predicted is not None and part.classes is not None:
            table = torch.tensor([places[name] for name in part.classes], dtype=torch.int64)
            predicted = table[part.predicted]
        changed.append(replace(part, predicted=predicted, classes=names or None))
    return changed


def needs(path: Path, roles: Roles, names: list[str], *, is_table: bool, unlabelled: bool) -> None:
    """Raise unless the names of a file say what was predicted, and what was right."""
    known = list(names)[:12]
    if roles.both:
        raise PredictionFileError(
            f"{path}: needs exactly one of 'logits' and 'probs', has both; leave one out"
        )
    if unlabelled:
        _needs_no_labels(path, roles, known)
        return
    can_tell = roles.correct or (roles.labels and roles.predicted)
    if roles.labels is not None if roles.scores else roles.confidence and can_tell:
        return
    hint = ""
    if roles.labels is None and roles.correct is None and (roles.scores or roles.confidence):
        hint = (
            "; if there are no labels, sfumato audit --unlabelled tells the accuracy to expect "
            "where confidences are right"
        )
    if is_table:
        raise PredictionFileError(
            f"{path}: needs a column 'label' and columns 'prob_<class>' or 'logit_<class>' (not "
            f"both), or 'confidence' with 'predicted' or 'correct'; has {known}{hint}"
        )
    more = "; an .npy takes its labels from --labels" if path.suffix.lower() == ".npy" else ""
    raise PredictionFileError(
        f"{path}: needs 'labels' and exactly one of 'logits' and 'probs', or 'confidence' with "
        f"'predicted' or 'correct'; has {sorted(known)}{more}{hint}"
    )


def _needs_no_labels(path: Path, roles: Roles, known: list[str]) -> None:
    """Raise unless a file has predictions, and nothing that says which of them are right."""
    truth = roles.correct or (roles.labels if roles.scores or roles.predicted else None)
    if truth is not None:
        raise PredictionFileError(
            f"{path}: has {truth!r}, which says what is right: leave --unlabelled out"
        )
    if roles.familiar is not None:
        raise PredictionFileError(
            f"{path}: has {roles.familiar!r}, and strange inputs are measured beside familiar ones "
            "with labels: leave the column out"
        )
    if not roles.scores and roles.confidence is None:
        raise PredictionFileError(
            f"{path}: needs 'probs' or 'logits' of all classes, or 'confidence'; has {known}"
        )


@dataclass(frozen=True)
class _Part:
    """Some rows of a file on their way to predictions: columns, what they are, and their checks."""

    name: str
    checks: RowChecks
    roles: Roles
    columns: Columns
    classes: list[str] | None = None
    kind: Kind | None = None
    ignored: int | None = None

    @property
    def keep(self) -> slice | np.ndarray:
        """The good rows; to be asked when all are checked."""
        kept = self.checks.kept()
        return slice(None) if kept is None else kept

    def error(self, text: str) -> PredictionFileError:
        return PredictionFileError(f"{self.checks.where}: {text}")


def distributions(part: _Part) -> PredictionFile:
    """Predictions with a number for every class."""
    checks, roles, ignored = part.checks, part.roles, part.ignored
    used, values = _read_scores(part)
    labels = _labels(part, values)
    if ignored is not None and labels.ndim == 1:
        checks.drop((labels == ignored).numpy(), IGNORED)
    values = _checked_scores(part, values, used)
    check_labels(checks, labels, values.shape[1], ignored)
    more, keep = _shared_columns(part), part.keep
    return PredictionFile(
        part.name,
        labels[keep],
        **{used: values[keep]},  # type: ignore[arg-type]
        classes=part.classes or roles.classes,
        own_classes=roles.classes,
        void=-100 if ignored is None else ignored,
        **more,
    )


def _read_scores(part: _Part) -> tuple[Kind, Tensor]:
    """Scores of all classes, not yet checked row by row, and what they are."""
    checks, roles, classes = part.checks, part.roles, part.classes or part.roles.classes
    shown = roles.scores[0]
    scores = matrix(checks, roles.scores, [part.columns[each] for each in roles.scores])
    if scores.ndim == 1 and roles.classes is not None:  # a column for each class, of which one
        scores = scores[:, None]
    used: Kind = roles.kind or part.kind or "probs"
    if part.kind is not None and roles.kind not in (None, part.kind):
        raise part.error(f"{shown!r} are no {part.kind}; leave --kind out")
    if scores.ndim == 1 and used == "probs":  # of the second of two classes
        second = scores.astype(np.promote_types(scores.dtype, np.float32))
        scores = np.stack([1 - second, second], 1)
    if scores.ndim not in (2, 4) or scores.shape[1] < 2 or scores.dtype.kind != "f":
        raise part.error(
            f"{shown!r} must be floating point (N, C) with C >= 2, got "
            f"{scores.dtype} {scores.shape}; two classes may be given as one column of "
            "probabilities, (N,)"
        )
    if classes is not None and len(classes) != scores.shape[1]:
        raise part.error(f"{len(classes)} class names for {scores.shape[1]} classes")
    check_class_names(checks, classes)
    kept = np.promote_types(scores.dtype, "f4")
    if scores.flags.f_contiguous and scores.flags.writeable and scores.dtype == kept:
        return used, torch.from_numpy(scores.T).T
    return used, torch.from_numpy(np.array(scores, dtype=kept, order="C", copy=True))


def _flat_scores(part: _Part, what: str, remedy: str) -> tuple[Kind, Tensor]:
    """Checked scores (N, C) of all classes, and what they are."""
    used, values = _read_scores(part)
    if values.ndim != 2:
        raise part.error(f"{what}, got {tuple(values.shape)}: {remedy}")
    return used, _checked_scores(part, values, used)


def _checked_scores(part: _Part, values: Tensor, kind: Kind) -> Tensor:
    """Scores of which every bad row is found; probabilities to within their rounding."""
    name = part.roles.scores[0]
    if kind == "probs":
        return check_probabilities(part.checks, name, values)
    check_logits(part.checks, name, values)
    return values


def _labels(part: _Part, scores: Tensor) -> Tensor:
    name = part.roles.labels or ""
    column, classes = part.columns[name], part.classes or part.roles.classes
    shape = (len(scores), *scores.shape[2:])
    got = f"got {column.dtype} {column.shape}"
    if column.shape != shape:
        raise part.error(f"{name!r} must be {shape} class numbers for these predictions, {got}")
    if column.ndim > 1:
        return torch.from_numpy(whole_numbers(column))
    counted = column[~part.checks.bad]
    if column.dtype.kind == "f" and len(counted) and bool((counted % 1 != 0).all()):
        raise part.error(f"{name!r} must hold whole numbers (N,), {got}")
    count, ignored = scores.shape[1], part.ignored
    return class_numbers(part.checks, name, column, classes, count=count, ignored=ignored)


def _shared_columns(part: _Part) -> dict[str, Any]:
    """Times, index, groups and positions of the good rows; checks times first."""
    checks, roles, columns = part.checks, part.roles, part.columns
    found: dict[str, Any] = {}
    if roles.times is not None:
        found["times"], found["is_dated"] = seconds(checks, roles.times, columns[roles.times])
    if roles.index is not None:
        index = columns[roles.index]
        index = index if index.dtype.kind in "iu" else numbers(checks, roles.index, index)
        if not (index % 1).any():
            found["index"] = whole_numbers(index)
    chosen = part.keep
    for name in found.keys() & {"times", "index"}:
        found[name] = tensor(found[name][chosen])
    if roles.groups is not None:
        found["groups"] = names_of(columns[roles.groups][chosen])
    found["rows"] = torch.arange(checks.first, checks.first + checks.count)[chosen]
    return found


def confidences(part: _Part) -> ConfidenceFile:
    """Confidences with whether the prediction was right."""
    if part.ignored is not None:
        if part.roles.labels is None:
            raise part.error("holds no labels that could be ignored; leave --ignore-index out")
        column = part.columns[part.roles.labels]
        part.checks.drop(same_classes(column, np.full(len(column), part.ignored)), IGNORED)
    values = _confidence(part)
    part = _with_names(part)
    checks, roles, columns = part.checks, part.roles, part.columns
    if roles.correct is not None:
        right = truth_values(checks, roles.correct, columns[roles.correct])
    else:
        compared = (roles.labels or "", roles.predicted or "")
        for each in compared:
            refuse_missing(checks, each, columns[each])
        right = same_classes(*(columns[each] for each in compared))
    corners = _boxes(part)
    more, chosen = _shared_columns(part), part.keep
    predicted, names = _predicted(part)
    truth = None
    if roles.labels is not None and roles.correct is None:
        codes, labels = spelled(columns[roles.labels][chosen])
        truth = [labels[code] for code in codes]
    return ConfidenceFile(
        part.name,
        values[chosen].clamp(max=1),
        tensor(right[chosen]),
        predicted,
        classes=names,
        boxes=None if corners is None else tensor(corners[chosen]),
        images=_images(part),
        truth=truth,
        **more,
    )


def unlabelled(part: _Part) -> ConfidenceFile:
    """Confidences of predictions of which nobody says whether they are right."""
    top, names = None, part.classes or part.roles.classes
    if part.roles.scores:
        why = "pixels of one image are far from independent"
        used, values = _flat_scores(part, "--unlabelled takes predictions of (N, C)", why)
        confidence, top = (values if used == "probs" else values.softmax(1)).max(1)
        names = names or [str(number) for number in range(values.shape[1])]
    else:
        confidence = _confidence(part)
        part = _with_names(part)
    more, chosen = _shared_columns(part), part.keep
    predicted, names = _predicted(part) if top is None else (top[chosen], names)
    confidence = confidence[chosen].clamp(max=1)
    return ConfidenceFile(
        part.name,
        confidence,
        torch.zeros(len(confidence), dtype=torch.bool),
        predicted,
        classes=names,
        images=_images(part),
        is_labelled=False,
        **more,
    )


def _images(part: _Part) -> list[str] | None:
    column = part.columns.get(part.roles.images or "")  # not read beside scores of all classes
    return None if column is None else names_of(column[part.keep])


def _confidence(part: _Part) -> Tensor:
    """Numbers from 0 to 1, (N,)."""
    shown = part.roles.confidence or ""
    if part.kind is not None:
        raise part.error(
            f"{shown!r} is the confidence of one class, of which there are no logits; leave --kind "
            "out"
        )
    values = tensor(numbers(part.checks, shown, part.columns[shown]))
    if values.ndim != 1:
        raise part.error(
            f"{shown!r} must be (N,), got {tuple(values.shape)}; call probabilities of all classes "
            "'probs'"
        )
    check_confidence(part.checks, shown, values)
    return values


def _with_names(part: _Part) -> _Part:
    """Put the names of the classes, where those are told, in the place of their numbers."""
    checks, roles, classes = part.checks, part.roles, part.classes
    if classes is None:
        return part
    check_class_names(checks, classes)
    used = [roles.predicted or roles.labels, None if roles.correct else roles.labels]
    if used[0] is None:
        raise part.error(
            "nothing says which class was predicted, so class names have no use; leave "
            f"{'classes=' if checks.of_arrays else '--classes'} out"
        )
    named = {}
    for name in dict.fromkeys(each for each in used if each is not None):
        found = class_numbers(checks, name, part.columns[name], classes, count=len(classes))
        check_labels(checks, found, len(classes), None)
        named[name] = np.array(classes, dtype=object)[found.clamp(0, len(classes) - 1).numpy()]
    return replace(part, columns={**part.columns, **named})


def _predicted(part: _Part) -> tuple[Tensor | None, list[str] | None]:
    """Places of the predicted classes in a list of names, and that list; None where unknown."""
    column = part.roles.predicted or part.roles.labels
    if column is None:
        return None, None
    codes, names = spelled(part.columns[column][part.keep])
    return torch.from_numpy(codes), names


def _boxes(part: _Part) -> np.ndarray | None:
    """Corners of detections as shares of their images, (N, 4)."""
    name = part.roles.boxes
    if name is None:
        return None
    corners = matrix(part.checks, [name], [part.columns[name]])
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise part.error(
            f"{name!r} must be (N, 4), x1 y1 x2 y2 as shares of the image, got {corners.shape}; "
            "leave it out to audit by confidence alone"
        )
    check_boxes(part.checks, name, corners)
    return corners


def _read(part: _Part, make: Callable[[_Part], AnyPredictions]) -> AnyPredictions:
    """The rows of a part; apart the scores of those of none of the classes, which have no label."""
    name, roles = part.roles.familiar, part.roles
    if name is None:
        return make(part)
    if roles.boxes is not None or roles.images is not None:
        raise part.error(f"{name!r} is of whole inputs, and these are detections: leave it out")
    is_familiar = truth_values(part.checks, name, part.columns[name])
    apart = replace(part, checks=replace(part.checks))
    apart.checks.bad |= part.checks.bad | is_familiar
    if roles.scores:
        _, values = _flat_scores(apart, f"{name!r} is of whole inputs", "leave it out")
    else:
        values = _confidence(apart).clamp(max=1)
    part.checks.bad |= ~is_familiar
    return replace(make(part), strange=values[apart.keep])


def predictions_of_arrays(
    name: str,
    given: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
    any_logits: bool = False,
) -> AnyPredictions:
    """Checked predictions, from arguments of `sfumato.audit`; None where one was not given."""
    columns = {key: as_array(key, value) for key, value in given.items() if value is not None}
    scores = [key for key in ("probs", "logits", "confidence") if key in columns]
    if len(scores) != 1:
        got = ", ".join(scores) or "none"
        raise ValueError(f"give exactly one of probs, logits and confidence, got {got}")
    main = scores[0]
    _check_arguments(main, columns)
    count = len(columns[main])
    for key, column in columns.items():
        if not column.ndim or len(column) != count:
            raise ValueError(
                f"{key} must have one entry for each of {count} predictions, got {column.shape}"
            )
    if not count:
        raise ValueError(f"{main} must hold at least one prediction, got none")
    kind: Kind | None = "logits" if main == "logits" else "probs" if main == "probs" else None
    named = {_OF_ARGUMENTS.get(key, key): key for key in columns if key not in ("probs", "logits")}
    roles = Roles(scores=[main] if kind else [], kind=kind, **named)  # type: ignore[arg-type]
    if main == "logits" and not any_logits:
        check_logit_values("logits", torch.as_tensor(columns[main]))
    checks = RowChecks(name, 0, count, of_arrays=True, any_logits=True)
    names = None if classes is None else names_of(np.asarray(classes, dtype=object))
    part = _Part(name, checks, roles, columns, names)
    return _read(part, confidences if kind is None else distributions)


# Arguments with another name than their role.
_OF_ARGUMENTS = {"target": "labels", "time": "times", "in_distribution": "familiar"}


def _check_arguments(main: str, columns: Mapping[str, Any]) -> None:
    ways = [key for key in ("correct", "predicted") if key in columns]
    if main == "confidence":
        if len(ways) != 1:
            got = " and ".join(ways) or "none"
            raise ValueError(f"confidence needs one of correct and predicted, got {got}")
        if "predicted" in columns and "target" not in columns:
            raise ValueError("target must be given with predicted, got None")
        return
    for key in ("images", "boxes"):
        if key in columns:
            raise ValueError(f"{key} goes with confidence, not with {main}")
    if ways:
        raise ValueError(f"{ways[0]} follows from {main} and target: leave it out")
    if "target" not in columns:
        raise ValueError(
            f"target must be given with {main}, got None; without labels there is only the "
            "accuracy to expect: sfumato.predictions.expected_accuracy"
        )


def as_array(name: str, value: Any) -> np.ndarray:
    """NumPy's view of tensors on any device, arrays, series and lists, of text and dates too."""
    if isinstance(value, torch.Tensor):
        return array_of_tensor(name, value)
    array = plain_array(name, value)
    if array.dtype != object:
        return array
    entries: list[Any] = array.tolist() if array.ndim == 1 else [None]
    if all(isinstance(entry, str) for entry in entries):
        return array.astype(str)
    if all(isinstance(entry, date) for entry in entries):
        # NumPy's dates have no time zone: all are UTC.
        zoned = [isinstance(entry, datetime) and entry.tzinfo is not None for entry in entries]
        try:
            plain = [
                entry.astimezone(timezone.utc).replace(tzinfo=None) if is_zoned else entry
                for entry, is_zoned in zip(entries, zoned, strict=True)
            ]
        except OverflowError:
            raise ValueError(f"{name} has a date that is before the year 1 in UTC") from None
        return np.array(plain, dtype="datetime64[us]")
    if all(isinstance(entry, (int, float)) for entry in entries):
        return np.array(entries)
    raise TypeError(
        f"{name} must be an array of one type, got objects: {str(value)[:60]}; mixed sizes or "
        "missing values?"
    )


_BESIDE = {
    "groups": "group",
    "times": "time",
    "index": "index",
    "images": "image",
    "boxes": "box",
    "strange": "in_distribution",
}


class Layout(NamedTuple):
    """The layout of the first file of a model, and so of every other one."""

    name: str
    kind: str  # "probs", "logits" or "confidence"
    classes: tuple[str, ...] | None  # in the order of the scores; None where they have no names
    own_classes: tuple[str, ...] | None  # as the file itself names them where it does
    beside: frozenset[str]  # columns beside the predictions


def layout_of(part: AnyPredictions) -> Layout:
    """Return the layout of a file, from any batch of it."""
    named = {key for key in _BESIDE if getattr(part, key, None) is not None}
    beside = frozenset(_BESIDE[key] for key in named)
    if isinstance(part, ConfidenceFile):
        return Layout(part.name, "confidence", None, None, beside)
    kind = "probs" if part.logits is None else "logits"
    classes = None if part.classes is None else tuple(part.classes)
    own_classes = classes if part.own_classes is None else tuple(part.own_classes)
    return Layout(part.name, kind, classes, own_classes, beside)


def as_first(part: AnyPredictions, first: Layout, where: str) -> AnyPredictions:
    """A part of another file with its classes in the order of the first one."""
    ours = layout_of(part)
    if ours.kind != first.kind:
        raise PredictionFileError(
            f"{where}: holds {ours.kind} where {first.name} holds {first.kind}: parts of one model "
            "are of one kind; save all alike"
        )
    for shown in sorted(ours.beside ^ first.beside):
        what = "has" if shown in ours.beside else "has no"
        other = "has not" if shown in ours.beside else "has"
        raise PredictionFileError(
            f"{where}: {what} {shown!r}, which {first.name} {other}: parts of one model have the "
            "same columns; add it to all, or leave it out of all"
        )
    if isinstance(part, ConfidenceFile) or ours.own_classes == first.own_classes:
        return part
    return _in_order(part, ours, first, where)


def merged(files: Sequence[AnyPredictions], name: str, skipped: dict[str, int]) -> AnyPredictions:
    """The files of one model after each other, each row with the file that it is from."""
    origins: tuple[Origin, ...] = ()
    if len(files) > 1:
        starts = accumulate((len(file) for file in files[:-1]), initial=0)
        origins = tuple(map(Origin, starts, [file.name for file in files]))
    return replace(joined(files), name=name, skipped=skipped, origins=origins)


def _in_order(part: PredictionFile, ours: Layout, first: Layout, where: str) -> PredictionFile:
    theirs = first.own_classes or _numbers(ours.own_classes)
    named = ours.own_classes or _numbers(first.own_classes)
    if sorted(named) != sorted(theirs):
        raise PredictionFileError(
            f"{where}: has the classes {_listed(ours)} where {first.name} has {_listed(first)}: "
            "parts of one model name the same ones"
        )
    if named == theirs:
        return replace(part, classes=None if first.classes is None else list(first.classes))
    if ours.classes != ours.own_classes:
        raise PredictionFileError(
            f"{where}: has the classes in another order than {first.name}, so that class names of "
            "your own (--classes) would mix them up; leave those out"
        )
    columns = torch.tensor([named.index(name) for name in theirs])
    labels = part.labels.clone()
    counts = labels != part.void
    labels[counts] = columns.argsort()[labels[counts]]
    scores = {key: getattr(part, key) for key in ("probs", "logits", "strange")}
    scores = {key: None if each is None else each[:, columns] for key, each in scores.items()}
    return replace(part, labels=labels, classes=[*theirs], own_classes=[*theirs], **scores)


def _numbers(classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Name as many classes by their numbers."""
    return tuple(map(str, range(len(classes or ()))))


def _listed(layout: Layout) -> str:
    names = layout.own_classes
    if names is None:
        return "without names"
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")


FORMATS = (*TABLES, *ARRAYS)


@dataclass(frozen=True)
class Reading:
    """Options of reading: facts that a file doesn't state itself."""

    kind: Kind | None = None  # of scores without a telling name, which else are probabilities
    labels: Path | None = None  # file with the labels of an `.npy`
    classes: tuple[str, ...] | None = None  # names, in the order of the scores
    on_bad_row: OnBadRow = "stop"
    ignore_index: int | None = None  # label of pixels that count for nothing, and of rows
    unlabelled: bool = False  # nothing says which predictions are right; never guessed
    any_logits: bool = False  # logits may look like probabilities, which is refused otherwise
    like: Layout | None = None  # of the first file of a model, where this is another one
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # told roles: names
    calibrator: Calibrator | None = None  # applied to what was read

    @property
    def told_classes(self) -> list[str] | None:
        """Names of the classes without blanks around them."""
        return None if self.classes is None else [name.strip() for name in self.classes]


def read_predictions(path: Path, reading: Reading | None = None) -> PredictionFile:
    """Read predictions with a number for every class; layouts as in docs/audit.md."""
    found = read_any(path, reading)
    if isinstance(found, ConfidenceFile):
        raise PredictionFileError(
            f"{path}: holds the confidence of one class only; save 'probs' or 'logits' of all"
        )
    return found


def read_any(
    path: Path, reading: Reading | None = None, skipped: Counter[str] | None = None
) -> AnyPredictions:
    """A whole file: predictions of all classes, or confidences with whether they were right."""
    return joined(list(read_batches(path, reading, skipped)))


def stored_predictions(path: Path, split: str) -> Path:
    """The file that a run folder keeps of a split."""
    stored = path / "predictions" / f"{split}.npz"
    if not stored.is_file():
        there = sorted(each.stem for each in stored.parent.glob("*.npz"))
        raise PredictionFileError(
            f"{path}: holds no predictions of {split!r} (has {there or 'none'}); pass the folder "
            "of a finished run, such as STUDY/runs/25403a2604ab"
        )
    return checked_file(stored, within=path)


def read_batches(
    path: Path,
    reading: Reading | None = None,
    skipped: Counter[str] | None = None,
    groups: list[int] | None = None,
) -> Iterator[AnyPredictions]:
    """Parts of a file in their order; tables, and arrays in `.npy`, are never read as a whole.

    `skipped` takes the numbers of bad rows by reason; `groups` are those of a Parquet file to read.
    """
    reading, skipped = reading or Reading(), Counter() if skipped is None else skipped
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    suffix, seen = path.suffix.lower(), False
    if suffix not in FORMATS:
        raise PredictionFileError(f"{path}: unknown kind of file; known are {', '.join(FORMATS)}")
    make = _array_parts if suffix in ARRAYS else _table_parts
    try:
        for part in make(path, reading, skipped, groups):
            if len(part) or (part.strange is not None and len(part.strange)):
                seen = True
                yield part
    except ContentError as error:  # says itself which file, and where
        raise PredictionFileError(str(error)) from None
    except Exception as error:
        # Broken files fail in as many ways as there are parsers behind; each becomes one message.
        raise PredictionFileError(f"{path}: can't be read ({reason(error)})") from None
    if not seen:
        left = f"; {skipped.total()} rows were left out" if skipped else ""
        raise PredictionFileError(f"{path}: holds no prediction{left}")


Parts = Iterator[AnyPredictions]


def _table_parts(
    path: Path, reading: Reading, skipped: Counter[str], groups: list[int] | None
) -> Parts:
    if reading.labels is not None:
        raise PredictionFileError(
            f"{path}: --labels goes with arrays, and this is a table: add its labels as a column, "
            "or leave --labels out if it has one"
        )
    roles, meaning = Roles(), Meaning(str(path), reading.told_classes)

    def wanted(names: list[str], lists: list[str]) -> list[str]:
        nonlocal roles
        roles = told_roles(names, reading.columns, lists=lists)
        needs(path, roles, names, is_table=True, unlabelled=reading.unlabelled)
        used, counts, scores = used_names(roles), Counter(names), set(roles.scores)
        if twice := [name for name in used if counts[name] > 1 and name not in scores]:
            raise PredictionFileError(f"{path}: has several columns {twice[0]!r}; keep one of them")
        return used

    options = {"groups": groups} if groups is not None else {}
    read = TABLES[path.suffix.lower()](path, wanted, reading.on_bad_row, **options)
    for first, columns, broken in read:
        settled = meaning.settle(roles, columns)
        yield _predictions(path, reading, skipped, settled, columns, first, broken)


def _array_parts(
    path: Path, reading: Reading, skipped: Counter[str], groups: list[int] | None
) -> Parts:
    arrays = dict(ARRAYS[path.suffix.lower()](path))
    if reading.labels is not None:
        arrays |= _labels_beside(path, reading.labels, arrays)
    roles = _roles_of_arrays(path, arrays, reading)
    if roles.class_names is not None:
        roles.classes = names_of(arrays.pop(roles.class_names))
    used, count = _columns_of_rows(path, roles, arrays)
    step = max(count, 1)  # in memory already: one part
    if path.suffix.lower() == ".npy":
        step = batch_rows(max(int(np.prod(each.shape[1:])) for each in used.values()))
    meaning = Meaning(str(path), reading.told_classes)
    for start in range(0, count, step):
        part = {name: each[start : start + step] for name, each in used.items()}
        yield _predictions(path, reading, skipped, meaning.settle(roles, part), part, start)


def _roles_of_arrays(path: Path, arrays: Columns, reading: Reading) -> Roles:
    lists = [
        name
        for name, each in arrays.items()
        if each.ndim > 1 or (each.dtype == object and len(each) and isinstance(each[0], list))
    ]
    flat = [n for n, each in arrays.items() if each.ndim == 1 and each.dtype.kind not in "fO"]
    roles = told_roles(list(arrays), reading.columns, flat, lists)
    needs(path, roles, list(arrays), is_table=False, unlabelled=reading.unlabelled)
    return roles


def predictions_of_frame(frame: Any, reading: Reading) -> AnyPredictions:
    """Checked predictions of a frame or of a mapping of names to columns."""
    path = Path("frame")
    arrays = columns_of_frame(frame)
    try:
        roles = _roles_of_arrays(path, arrays, reading)
    except PredictionFileError:
        raise
    except ValueError as error:
        raise PredictionFileError(f"frame: {error}") from None
    part, count = _columns_of_rows(path, roles, arrays)
    if not count:
        raise PredictionFileError("frame: holds no prediction")
    roles = Meaning(str(path), reading.told_classes).settle(roles, part)
    return _predictions(path, reading, Counter(), roles, part, 0)


def calibrated(found: AnyPredictions, calibrator: Calibrator) -> AnyPredictions:
    """The predictions as a calibrator makes them, and named so."""
    named, strange = calibrator.report.get("class_names"), found.strange
    rows: dict[str, Any] = {}
    after: dict[str, Any] = {"logits": None} if isinstance(found, PredictionFile) else {}
    if isinstance(found, ConfidenceFile):
        kind, shown, values = "confidence", "confidence", found.confidence
        rows["boxes"] = found.boxes if calibrator.place is not None else None
    else:
        kind, shown, values = (
            "probs" if found.logits is None else "logits",
            "probs",
            found.predictions,
        )
    apply: Callable[..., Tensor] = partial(calibrator.predict_proba, any_logits=kind == "logits")
    try:
        if kind != "confidence" and named and found.classes and list(named) != list(found.classes):
            raise ValueError(f"the calibrator is of the classes {named}, here {found.classes}")
        after[shown] = apply(**{kind: values}, **rows)
        if strange is not None and len(strange):
            after["strange"] = apply(**{kind: strange})
    except ValueError as error:
        raise PredictionFileError(f"{found.name}: {error}") from None
    return replace(found, name=f"{found.name}, calibrated", **after)


def _labels_beside(path: Path, labels: Path, arrays: Columns) -> Columns:
    if not labels.is_file():
        raise PredictionFileError(f"{labels}: no such file")
    read = {".npy": read_npy, ".pt": read_pt, ".pth": read_pt}.get(labels.suffix.lower())
    found = {} if read is None else read(labels)
    if len(found) != 1:
        raise PredictionFileError(
            f"{labels}: --labels takes one array of class numbers in .npy or .pt"
        )
    if any(name.strip().lower() in NAMES["labels"] for name in arrays):
        raise PredictionFileError(f"{path}: holds labels itself; leave --labels out")
    return {"labels": next(iter(found.values()))}


def used_names(roles: Roles) -> list[str]:
    """Names that are read, each once."""
    scores = roles.scores
    single = [roles.labels, roles.groups, roles.times, roles.index, roles.familiar]
    if roles.beside is not None:
        single += [roles.beside, roles.confidence]
    if not scores:
        single += [roles.confidence, roles.predicted, roles.correct, roles.boxes, roles.images]
    return list(dict.fromkeys([*scores, *(name for name in single if name is not None)]))


def _columns_of_rows(path: Path, roles: Roles, arrays: Columns) -> tuple[Columns, int]:
    """The columns that are read, and the number of rows, of which every column has as many."""
    used = {name: arrays[name] for name in used_names(roles)}
    count = len(used[roles.scores[0] if roles.scores else roles.confidence or ""])
    for name, column in used.items():
        if len(column) != count:
            raise PredictionFileError(
                f"{path}: {len(column)} {name} for {count} predictions; every row needs one"
            )
    return used, count


def _predictions(
    path: Path,
    reading: Reading,
    skipped: Counter[str],
    roles: Roles,
    columns: Columns,
    first: int,
    broken: Mapping[int, str] | None = None,
) -> AnyPredictions:
    count = len(next(iter(columns.values())))
    checks = RowChecks(str(path), first, count, reading.on_bad_row, any_logits=reading.any_logits)
    checks.leave_out(broken or {})
    part = _Part(
        path.stem, checks, roles, columns, reading.told_classes, reading.kind, reading.ignore_index
    )
    make = unlabelled if reading.unlabelled else distributions if roles.scores else confidences
    found = _read(part, make)
    skipped.update(checks.reasons)
    found = found if reading.like is None else as_first(found, reading.like, str(path))
    return found if reading.calibrator is None else calibrated(found, reading.calibrator)
