"""Files that know of each prediction how sure it is, but nothing of the other classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_checks import (
    IGNORED,
    RowChecks,
    check_boxes,
    check_class_names,
    check_confidence,
    check_labels,
)
from sfumato.engine.runs.prediction_columns import matrix, numbers, tensor, whether
from sfumato.engine.runs.prediction_content import checked_scores, scores_of, shared_columns
from sfumato.engine.runs.prediction_formats import Columns
from sfumato.engine.runs.prediction_labels import (
    class_numbers,
    names_of,
    refuse_missing,
    same,
    spelled,
)
from sfumato.engine.runs.prediction_names import Kind, Roles
from sfumato.engine.runs.prediction_rows import ConfidenceFile, PredictionFileError


def confidences(
    checks: RowChecks,
    name: str,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None = None,
    kind: Kind | None = None,
    ignored: int | None = None,
) -> ConfidenceFile:
    """Confidences with whether the prediction was right."""
    if ignored is not None:
        _drop_ignored(checks, roles, columns, ignored)
    values = _confidence(checks, roles, columns, kind)
    columns = _with_names(checks, roles, columns, classes)
    if roles.correct is not None:
        right = whether(checks, roles.correct, columns[roles.correct])
    else:
        compared = (roles.labels or "", roles.predicted or "")
        for each in compared:
            refuse_missing(checks, each, columns[each])
        right = same(*(columns[each] for each in compared))
    corners = _boxes(checks, roles.boxes, columns)
    more, keep = shared_columns(checks, roles, columns)
    chosen = slice(None) if keep is None else keep
    predicted, names = _predicted(roles, columns, chosen)
    truth = None
    if roles.labels is not None and roles.correct is None:
        codes, labels = spelled(columns[roles.labels][chosen])
        truth = [labels[code] for code in codes]
    return ConfidenceFile(
        name=name,
        confidence=values[chosen].clamp(max=1),
        correct=tensor(right[chosen]),
        predicted=predicted,
        classes=names,
        boxes=None if corners is None else tensor(corners[chosen]),
        images=None if roles.images is None else names_of(columns[roles.images][chosen]),
        truth=truth,
        **more,
    )


def unlabelled(
    checks: RowChecks,
    name: str,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None,
    kind: Kind | None,
) -> ConfidenceFile:
    """Confidences of predictions of which nobody says whether they are right."""
    top: Tensor | None = None
    names: list[str] | None = None
    if roles.scores:
        used, values = scores_of(checks, roles, columns, classes or roles.classes, kind)
        if values.ndim != 2:
            raise PredictionFileError(
                f"{checks.where}: --unlabelled takes predictions of (N, C), got "
                f"{tuple(values.shape)}: pixels of one image are far from independent"
            )
        values = checked_scores(checks, roles.scores[0], values, used)
        probs = values if used == "probs" else values.softmax(1)
        confidence, top = probs.max(1)
        names = classes or roles.classes or [str(number) for number in range(values.shape[1])]
    else:
        confidence = _confidence(checks, roles, columns, kind)
        columns = _with_names(checks, roles, columns, classes)
    more, keep = shared_columns(checks, roles, columns)
    chosen = slice(None) if keep is None else keep
    if top is None:
        predicted, names = _predicted(roles, columns, chosen)
    else:
        predicted = top[chosen]
    confidence = confidence[chosen].clamp(max=1)
    return ConfidenceFile(
        name=name,
        confidence=confidence,
        correct=torch.zeros(len(confidence), dtype=torch.bool),
        predicted=predicted,
        classes=names,
        images=None if roles.images is None else names_of(columns[roles.images][chosen]),
        is_labelled=False,
        **more,
    )


def _confidence(checks: RowChecks, roles: Roles, columns: Columns, kind: Kind | None) -> Tensor:
    """Numbers from 0 to 1, (N,)."""
    shown = roles.confidence or ""
    if kind is not None:
        raise PredictionFileError(
            f"{checks.where}: {shown!r} is the confidence of one class, of which there are no "
            "logits; leave --kind out"
        )
    values = tensor(numbers(checks, shown, columns[shown]))
    if values.ndim != 1:
        raise PredictionFileError(
            f"{checks.where}: {shown!r} must be (N,), got {tuple(values.shape)}; call "
            "probabilities of all classes 'probs'"
        )
    check_confidence(checks, shown, values)
    return values


def _with_names(
    checks: RowChecks, roles: Roles, columns: Columns, classes: list[str] | None
) -> Columns:
    """Columns with the names of the classes, where those are told, for their numbers."""
    if classes is None:
        return columns
    check_class_names(checks, classes)
    used = [roles.predicted or roles.labels, None if roles.correct else roles.labels]
    if used[0] is None:
        raise PredictionFileError(
            f"{checks.where}: nothing says which class was predicted, so class names have no use; "
            "leave --classes out (Python: classes=)"
        )
    named = {}
    for name in dict.fromkeys(each for each in used if each is not None):
        found = class_numbers(checks, name, columns[name], classes, count=len(classes))
        check_labels(checks, found, len(classes), None)
        named[name] = np.array(classes, dtype=object)[found.clamp(0, len(classes) - 1).numpy()]
    return {**columns, **named}


def _predicted(
    roles: Roles, columns: Columns, chosen: slice | np.ndarray
) -> tuple[Tensor | None, list[str] | None]:
    """Places of the predicted classes in a list of names, and that list; None where unknown."""
    column = roles.predicted or roles.labels
    if column is None:
        return None, None
    codes, names = spelled(columns[column][chosen])
    return torch.from_numpy(codes), names


def _drop_ignored(checks: RowChecks, roles: Roles, columns: Columns, ignored: int) -> None:
    if roles.labels is None:
        raise PredictionFileError(
            f"{checks.where}: holds no labels that could be ignored; leave --ignore-index out"
        )
    column = columns[roles.labels]
    checks.drop(same(column, np.full(len(column), ignored)), IGNORED)


def _boxes(checks: RowChecks, name: str | None, columns: Columns) -> np.ndarray | None:
    """Corners of detections as shares of their images, (N, 4)."""
    if name is None:
        return None
    corners = matrix(checks, [name], [columns[name]])
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise PredictionFileError(
            f"{checks.where}: {name!r} must be (N, 4), x1 y1 x2 y2 as shares of the image, got "
            f"{corners.shape}; leave it out to audit by confidence alone"
        )
    check_boxes(checks, name, corners)
    return corners
