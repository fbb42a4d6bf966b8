"""From the columns of a part of a file to its predictions, with every bad row found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_checks import (
    IGNORED,
    RowChecks,
    check_class_names,
    check_labels,
    check_logits,
    check_probabilities,
)
from sfumato.engine.runs.prediction_columns import matrix, numbers, tensor
from sfumato.engine.runs.prediction_formats import Columns
from sfumato.engine.runs.prediction_labels import class_numbers, names_of
from sfumato.engine.runs.prediction_names import Kind, Roles
from sfumato.engine.runs.prediction_rows import PredictionFile, PredictionFileError
from sfumato.engine.runs.prediction_times import seconds


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
    used, values = scores_of(checks, roles, columns, classes, kind)
    column = columns[roles.labels or ""]
    labels = _labels(checks, roles.labels or "", column, classes, values, ignored)
    if ignored is not None and labels.ndim == 1:
        checks.drop((labels == ignored).numpy(), IGNORED)
    values = checked_scores(checks, roles.scores[0], values, used)
    check_labels(checks, labels, values.shape[1], ignored)
    more, keep = shared_columns(checks, roles, columns)
    return PredictionFile(
        name=name,
        labels=labels if keep is None else labels[keep],
        classes=classes,
        own_classes=roles.classes,
        void=-100 if ignored is None else ignored,
        **{used: values if keep is None else values[keep]},  # type: ignore[arg-type]
        **more,
    )


def scores_of(
    checks: RowChecks,
    roles: Roles,
    columns: Columns,
    classes: list[str] | None,
    kind: Kind | None,
) -> tuple[Kind, Tensor]:
    """Scores of all classes, not yet checked row by row, and what they are."""
    shown = roles.scores[0]
    scores = matrix(checks, roles.scores, [columns[each] for each in roles.scores])
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
    check_class_names(checks, classes)
    return used, values


def checked_scores(checks: RowChecks, name: str, values: Tensor, kind: Kind) -> Tensor:
    """Scores of which every bad row is found; probabilities to within their rounding."""
    if kind == "probs":
        return check_probabilities(checks, name, values)
    check_logits(checks, name, values)
    return values


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
    if scores.flags.f_contiguous and scores.flags.writeable and scores.dtype == kept:
        return torch.from_numpy(scores.T).T
    return torch.from_numpy(np.array(scores, dtype=kept, order="C", copy=True))


def _labels(
    checks: RowChecks,
    name: str,
    column: np.ndarray,
    classes: list[str] | None,
    scores: Tensor,
    ignored: int | None,
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
    return class_numbers(checks, name, column, classes, count=scores.shape[1], ignored=ignored)


def shared_columns(
    checks: RowChecks, roles: Roles, columns: Columns
) -> tuple[dict[str, Any], np.ndarray | None]:
    """What both kinds of files have besides predictions, of the good rows; and which those are."""
    found: dict[str, Any] = {}
    times = None
    if roles.times is not None:
        times = seconds(checks, roles.times, columns[roles.times])
    index = None
    if roles.index is not None:
        index = columns[roles.index]
        index = index if index.dtype.kind in "iu" else numbers(checks, roles.index, index)
        index = index.astype(np.int64) if not (index % 1).any() else None
    keep = checks.kept()
    chosen = slice(None) if keep is None else keep
    if times is not None:
        found["times"], found["is_dated"] = tensor(times[0][chosen]), times[1]
    if index is not None:
        found["index"] = tensor(index[chosen])
    if roles.groups is not None:
        found["groups"] = names_of(columns[roles.groups][chosen])
    found["rows"] = torch.arange(checks.first, checks.first + checks.count)[chosen]
    return found, keep
