"""Predictions that are in memory already, as arrays of NumPy or PyTorch, or as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import torch

from sfumato.engine.runs.prediction_checks import RowChecks
from sfumato.engine.runs.prediction_confidences import confidences
from sfumato.engine.runs.prediction_content import distributions
from sfumato.engine.runs.prediction_labels import names_of
from sfumato.engine.runs.prediction_names import Kind, Roles
from sfumato.engine.runs.prediction_rows import AnyPredictions

_SCORES = ("probs", "logits", "confidence")
_SAME = ("labels", "confidence", "correct", "predicted", "groups", "images", "boxes")


def predictions_of_arrays(
    name: str, given: Mapping[str, Any], *, classes: Sequence[str] | None = None
) -> AnyPredictions:
    """Checked predictions, from arguments of which those that are None were not given.

    Args:
        name: what the predictions are called.
        given: labels, probs, logits, confidence, correct, predicted, groups, time, images, boxes.
        classes: names of the classes.

    Raises:
        ValueError: for the wrong arguments, sizes or values.
    """
    columns = {key: as_array(key, value) for key, value in given.items() if value is not None}
    scores = [key for key in _SCORES if key in columns]
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
    roles = Roles(
        scores=[main] if kind else [],
        kind=kind,
        **{key: key for key in _SAME if key in columns},  # type: ignore[arg-type]
        times="time" if "time" in columns else None,
    )
    checks = RowChecks(name, 0, count)
    names = None if classes is None else names_of(np.asarray(classes, dtype=object))
    if kind is not None:
        return distributions(checks, name, roles, columns, names, None, None)
    return confidences(checks, name, roles, columns, names)


def _check_arguments(main: str, columns: Mapping[str, Any]) -> None:
    if main != "confidence":
        of_detections = [key for key in ("images", "boxes") if key in columns]
        if of_detections:
            raise ValueError(f"{of_detections[0]} goes with confidence, not with {main}")
        unused = [key for key in ("correct", "predicted") if key in columns]
        if unused:
            raise ValueError(f"{unused[0]} follows from {main} and labels: leave it out")
        if "labels" not in columns:
            raise ValueError(
                f"labels must be given with {main}, got None; without labels there is only the "
                "accuracy to expect: sfumato.predictions.expected_accuracy"
            )
        return
    ways = [key for key in ("correct", "predicted") if key in columns]
    if len(ways) != 1:
        got = " and ".join(ways) or "none"
        raise ValueError(f"confidence needs one of correct and predicted, got {got}")
    if "predicted" in columns and "labels" not in columns:
        raise ValueError("labels must be given with predicted, got None")


def as_array(name: str, value: Any) -> np.ndarray:
    """NumPy's view of tensors on any device, arrays, series and lists, of text and dates too."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    if array.dtype != object:
        return array
    entries: list[Any] = array.tolist() if array.ndim == 1 else [None]
    if all(isinstance(entry, str) for entry in entries):
        return array.astype(str)
    if all(isinstance(entry, date) for entry in entries):
        return np.array([_utc(entry) for entry in entries], dtype="datetime64[us]")
    if all(isinstance(entry, (int, float)) for entry in entries):
        return np.array(entries)
    raise TypeError(
        f"{name} must be an array of one type, got objects: {str(value)[:60]}; mixed sizes or "
        "missing values?"
    )


def _utc(value: date) -> date:
    """Without a time zone, which NumPy's dates don't have."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).replace(tzinfo=None)
    return value
