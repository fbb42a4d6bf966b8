"""From the columns of a part of a file to its predictions, with every bad row found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs import prediction_columns as columns_as
from sfumato.engine.runs.prediction_checks import (
    RowChecks,
    check_boxes,
    check_confidence,
    check_labels,
    check_logits,
    check_probabilities,
)
from sfumato.engine.runs.prediction_formats import Columns
from sfumato.engine.runs.prediction_names import Kind, Roles
from sfumato.engine.runs.prediction_rows import (
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)


def needs(
    path: Path, roles: Roles, names: list[str], *, is_table: bool, unlabelled: bool = False
) -> None:
    """Raise unless the names of a file say what was predicted, and what was right."""
    known = list(names)[:12]
    if roles.both:
        raise PredictionFileError(
            f"{path}: needs exactly one of 'logits' and 'probs', has both; leave one out"
        )
    if unlabelled:
        _needs_no_labels(path, roles, known)
        return
    if roles.scores and roles.labels is not None:
        return
    can_tell = roles.correct or (roles.labels and roles.predicted)
    if not roles.scores and roles.confidence and can_tell:
        return
    no_truth = roles.labels is None and roles.correct is None
    hint = ""
    if no_truth and (roles.scores or roles.confidence):
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
    if not roles.scores and roles.confidence is None:
        raise PredictionFileError(
            f"{path}: needs 'probs' or 'logits' of all classes, or 'confidence'; has {known}"
        )


def distributions(
    checks: RowChecks,
    name: str,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None,
    kind: Kind | None,
    ignored: int | None,
) -> PredictionFile:
    """Predictions with a number for every class."""
    used, values = _values(checks, roles, columns, classes, kind)
    labels = _labels(checks, roles.labels or "", columns[roles.labels or ""], classes, values)
    check = check_probabilities if used == "probs" else check_logits
    check(checks, roles.scores[0], values)
    check_labels(checks, labels, values.shape[1], ignored)
    more, keep = _shared(checks, roles, columns)
    return PredictionFile(
        name=name,
        labels=labels if keep is None else labels[keep],
        classes=classes,
        void=-100 if ignored is None else ignored,
        **{used: values if keep is None else values[keep]},  # type: ignore[arg-type]
        **more,
    )


def _values(
    checks: RowChecks,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None,
    kind: Kind | None,
) -> tuple[Kind, Tensor]:
    """Scores of all classes, not yet checked row by row, and what they are."""
    shown = roles.scores[0]
    scores = columns_as.matrix(checks, roles.scores, [columns[each] for each in roles.scores])
    if scores.ndim == 1 and roles.classes is not None:  # a column for each class, of which one
        scores = scores[:, None]
    used: Kind = roles.kind or kind or "probs"
    if kind is not None and roles.kind not in (None, kind):
        raise PredictionFileError(f"{checks.where}: {shown!r} are no {kind}; leave --kind out")
    values = _scores(checks, shown, scores, used)
    if classes is not None and len(classes) != values.shape[1]:
        raise PredictionFileError(
            f"{checks.where}: {len(classes)} class names for {values.shape[1]} classes"
        )
    return used, values


def unlabelled(
    checks: RowChecks,
    name: str,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None,
    kind: Kind | None,
) -> ConfidenceFile:
    """Confidences of predictions of which nobody says whether they are right."""
    predicted: Tensor | None = None
    if roles.scores:
        used, values = _values(checks, roles, columns, classes, kind)
        if values.ndim != 2:
            raise PredictionFileError(
                f"{checks.where}: --unlabelled takes predictions of (N, C), got "
                f"{tuple(values.shape)}: pixels of one image are far from independent"
            )
        check = check_probabilities if used == "probs" else check_logits
        check(checks, roles.scores[0], values)
        probs = values if used == "probs" else values.softmax(1)
        confidence, predicted = probs.max(1)
        names = classes or [str(number) for number in range(values.shape[1])]
    else:
        confidence = _confidence(checks, roles, columns)
        column = roles.predicted or roles.labels
        names = []
        if column is not None:
            predicted, names = columns_as.coded(columns[column])
    more, keep = _shared(checks, roles, columns)
    chosen = slice(None) if keep is None else keep
    images = None if roles.images is None else columns_as.names_of(columns[roles.images][chosen])
    confidence = confidence[chosen].clamp(max=1)
    return ConfidenceFile(
        name=name,
        confidence=confidence,
        correct=torch.zeros(len(confidence), dtype=torch.bool),
        predicted=None if predicted is None else predicted[chosen],
        classes=names or None,
        images=images,
        is_labelled=False,
        **more,
    )


def _confidence(checks: RowChecks, roles: Roles, columns: Columns) -> Tensor:
    """Numbers from 0 to 1, (N,)."""
    shown = roles.confidence or ""
    values = columns_as.tensor(columns_as.numbers(checks, shown, columns[shown]))
    if values.ndim != 1:
        raise PredictionFileError(
            f"{checks.where}: {shown!r} must be (N,), got {tuple(values.shape)}; call "
            "probabilities of all classes 'probs'"
        )
    check_confidence(checks, shown, values)
    return values


def confidences(checks: RowChecks, name: str, roles: Roles, columns: Columns) -> ConfidenceFile:
    """Confidences with whether the prediction was right."""
    values = _confidence(checks, roles, columns)
    truth, predicted = roles.labels, roles.predicted or roles.labels
    if roles.correct is not None:
        right = columns_as.whether(checks, roles.correct, columns[roles.correct])
    else:
        right = columns_as.same(columns[roles.labels or ""], columns[roles.predicted or ""])
    corners = _boxes(checks, roles.boxes, columns)
    more, keep = _shared(checks, roles, columns)
    chosen = slice(None) if keep is None else keep
    codes, names = None, None
    if predicted is not None:
        codes, names = columns_as.coded(columns[predicted][chosen])
    boxes = None if corners is None else columns_as.tensor(corners[chosen])
    images = None if roles.images is None else columns_as.names_of(columns[roles.images][chosen])
    is_truth = truth is not None and roles.correct is None
    return ConfidenceFile(
        name=name,
        confidence=values[chosen].clamp(max=1),
        correct=columns_as.tensor(right[chosen]),
        predicted=codes,
        classes=names,
        boxes=boxes,
        images=images,
        truth=columns_as.names_of(columns[truth or ""][chosen]) if is_truth else None,
        **more,
    )


def _boxes(checks: RowChecks, name: str | None, columns: Columns) -> np.ndarray | None:
    """Corners of detections as shares of their images, (N, 4)."""
    if name is None:
        return None
    corners = columns_as.matrix(checks, [name], [columns[name]])
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise PredictionFileError(
            f"{checks.where}: {name!r} must be (N, 4), x1 y1 x2 y2 as shares of the image, got "
            f"{corners.shape}; leave it out to audit by confidence alone"
        )
    check_boxes(checks, name, corners)
    return corners


def _scores(checks: RowChecks, name: str, scores: np.ndarray, kind: Kind) -> Tensor:
    if scores.ndim == 1 and kind == "probs":  # of the second of two classes
        second = scores.astype(np.promote_types(scores.dtype, np.float32))
        scores = np.stack([1 - second, second], 1)
    if scores.ndim not in (2, 4) or scores.shape[1] < 2 or scores.dtype.kind != "f":
        raise PredictionFileError(
            f"{checks.where}: {name!r} must be floating point (N, C) with C >= 2, "
            f"got {scores.dtype} {scores.shape}; two classes may be given as one column of "
            "probabilities, (N,)"
        )
    kept = np.promote_types(scores.dtype, "f4")
    if scores.flags.f_contiguous and scores.dtype == kept:
        return torch.from_numpy(scores.T).T
    return torch.from_numpy(np.array(scores, dtype=kept, order="C", copy=True))


def _labels(
    checks: RowChecks, name: str, column: np.ndarray, classes: list[str] | None, scores: Tensor
) -> Tensor:
    shape = (len(scores), *scores.shape[2:])
    if column.shape != shape:
        raise PredictionFileError(
            f"{checks.where}: {name!r} must be {shape} class numbers for these predictions, got "
            f"{column.dtype} {column.shape}"
        )
    if column.dtype.kind == "f" and column.ndim == 1 and bool((column % 1 != 0).all()):
        raise PredictionFileError(
            f"{checks.where}: {name!r} must hold whole numbers (N,), got {column.dtype} "
            f"{column.shape}"
        )
    if column.ndim > 1:
        return torch.from_numpy(column.astype(np.int64))
    return columns_as.class_numbers(checks, name, column, classes)


def _shared(
    checks: RowChecks, roles: Roles, columns: Columns
) -> tuple[dict[str, Any], np.ndarray | None]:
    """What both kinds of files have besides predictions, of the good rows; and which those are."""
    found: dict[str, Any] = {}
    times = None
    if roles.times is not None:
        times = columns_as.seconds(checks, roles.times, columns[roles.times])
    index = None
    if roles.index is not None:
        index = columns_as.numbers(checks, roles.index, columns[roles.index])
        index = index.astype(np.int64) if not (index % 1).any() else None
    keep = checks.kept()
    chosen = slice(None) if keep is None else keep
    if times is not None:
        found["times"], found["is_dated"] = columns_as.tensor(times[0][chosen]), times[1]
    if index is not None:
        found["index"] = columns_as.tensor(index[chosen])
    if roles.groups is not None:
        found["groups"] = columns_as.names_of(columns[roles.groups][chosen])
    found["rows"] = torch.arange(checks.first, checks.first + checks.count)[chosen]
    return found, keep
