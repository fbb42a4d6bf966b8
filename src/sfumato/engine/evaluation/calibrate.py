"""What `sfumato calibrate` does: choose a calibrator on a file, write it, append it to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.engine.runs.prediction_files import Reading, read_predictions
from sfumato.engine.runs.prediction_rows import PredictionFile, PredictionFileError
from sfumato.predictions import Calibrator, choose_calibrator
from sfumato.predictions.calibrator import SCALERS
from sfumato.predictions.onnx_calibrator import Kind, append_to_onnx, largest_difference

METHODS = tuple(SCALERS)
_CHECKED = 1000  # rows of which onnxruntime's numbers are compared


def calibrate_file(
    path: Path, reading: Reading, *, methods: tuple[str, ...] = METHODS, folds: int, seed: int
) -> tuple[Calibrator, PredictionFile]:
    """The calibrator to use for the model of a file of held-out predictions.

    Raises:
        PredictionFileError: what is wrong with the file, or too few rows to choose.
    """
    if path.is_dir():
        raise PredictionFileError(
            f"{path}: is a folder; name one file of held-out predictions, such as "
            f"{path / 'predictions' / 'validation.npz'} of a run"
        )
    file = read_predictions(path, reading)
    if file.labels.ndim > 1:
        raise PredictionFileError(f"{path}: holds label maps; a calibrator is for single labels")
    try:
        found = choose_calibrator(
            file.labels,
            probs=file.probs,
            logits=file.logits,
            methods=methods,
            folds=folds,
            seed=seed,
        )
    except ValueError as error:
        raise PredictionFileError(f"{path}: {error}") from None
    found.report["file"] = path.name
    if file.classes:
        found.report["class_names"] = list(file.classes)
    return found, file


def append_calibrator(
    calibrator: Calibrator, file: PredictionFile, model: Path, out: Path, output: str | None
) -> dict[str, Any]:
    """Write the model with one more output; compare with onnxruntime where that is installed.

    Returns:
        `path`, and `difference`, the largest between probabilities; None without onnxruntime.
    """
    kind: Kind = "probs" if file.logits is None else "logits"
    try:
        append_to_onnx(calibrator, model, out, kind=kind, output=output)
    except (ValueError, ImportError) as error:
        raise PredictionFileError(str(error)) from None
    try:
        difference = largest_difference(calibrator, file.predictions[:_CHECKED], kind)
    except ImportError:
        difference = None
    return {"path": out, "difference": difference}
