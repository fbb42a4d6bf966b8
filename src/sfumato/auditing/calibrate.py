"""Choose a calibrator on a file and append it to a model, for `sfumato calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import AnyPredictions, ConfidenceFile, Reading, read_any
from sfumato.predictions import Calibrator, choose_calibrator, load_calibrator
from sfumato.predictions.calibrator import BY_PLACE, SCALERS
from sfumato.predictions.onnx_calibrator import Kind, append_to_onnx, largest_difference

METHODS = (*SCALERS, BY_PLACE)

_CHECKED = 1000  # rows of which onnxruntime's numbers are compared


def calibrate_file(
    path: Path,
    reading: Reading,
    *,
    methods: tuple[str, ...] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> tuple[Calibrator, AnyPredictions]:
    """The calibrator to use for the model of a file of held-out predictions."""
    if path.is_dir():
        raise PredictionFileError(
            f"{path}: is a folder; name one file of held-out predictions, such as "
            f"{path / 'predictions' / 'validation.npz'} of a run"
        )
    file = read_any(path, reading)
    try:
        found = calibrate_predictions(file, methods=methods, folds=folds, seed=seed)
    except ValueError as error:
        raise PredictionFileError(f"{path}: {error}") from None
    found.report["file"] = path.name
    return found, file


def read_calibrator(path: Path) -> Calibrator:
    """The calibrator of a file, for `--calibrator`."""
    if not path.is_file():
        raise PredictionFileError(f"--calibrator {path}: no such file")
    try:
        return load_calibrator(path)
    except ValueError as error:
        raise PredictionFileError(f"--calibrator {error}") from None


def calibrate_predictions(
    file: AnyPredictions, *, methods: tuple[str, ...] | None = None, folds: int = 5, seed: int = 0
) -> Calibrator:
    """The calibrator to use for predictions that were read: of classes or of confidences."""
    settings: dict[str, Any] = {"methods": methods, "folds": folds, "seed": seed}
    if isinstance(file, ConfidenceFile):
        return choose_calibrator(
            confidence=file.confidence, correct=file.correct, boxes=file.boxes, **settings
        )
    if file.labels.ndim > 1:
        raise ValueError("holds masks; a calibrator is for single labels")
    found = choose_calibrator(
        probs=file.probs,
        target=file.labels,
        logits=file.logits,
        any_logits=True,  # the file was read, and its logits looked at
        **settings,
    )
    if file.classes:
        found.report["class_names"] = list(file.classes)
    return found


def append_calibrator(
    calibrator: Calibrator,
    file: AnyPredictions,
    model: Path,
    out: Path,
    output: str | None,
    any_logits: bool = False,
) -> dict[str, Any]:
    """Write the model with one more output; run it with onnxruntime where that is installed."""
    if isinstance(file, ConfidenceFile):
        kind: Kind = "confidence"
        rows = file.confidence
    else:
        kind, rows = ("probs" if file.logits is None else "logits"), file.predictions
    try:
        difference = append_to_onnx(
            calibrator, model, out, kind=kind, output=output, any_logits=any_logits
        )
        if difference is not None:
            of_rows = largest_difference(calibrator, rows[:_CHECKED], kind)
            difference = max(difference, of_rows)
    except (ValueError, ImportError) as error:
        raise PredictionFileError(str(error)) from None
    return {"path": out, "difference": difference}
