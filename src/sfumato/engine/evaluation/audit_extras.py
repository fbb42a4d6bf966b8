"""What an audit adds where a file has times or boxes: an alarm over time, and D-ECE."""

from __future__ import annotations

from typing import Any

from sfumato.engine.evaluation.audit_confidences import blocks_of
from sfumato.engine.evaluation.audit_outcomes import Outcomes, units_of
from sfumato.engine.evaluation.detection_calibration import errors_of_detections
from sfumato.engine.runs.prediction_rows import AnyPredictions, ConfidenceFile
from sfumato.predictions import CalibrationAlarm

ALARM_LEVEL = 0.05
TOLERANCE = 0.02


def drift_of(file: AnyPredictions, found: Outcomes) -> dict[str, Any] | None:
    """When an alarm on the gap between confidence and accuracy would have gone off.

    Returns:
        `alarm`, the time, None where it stayed quiet; `after`, the number of predictions until
        then; `level` and `tolerance`. None where the file has no times, or several predictions
        are of one image: the alarm keeps its promise for predictions that are independent.
    """
    if file.times is None or found.unit is not None:
        return None
    order = file.times.argsort(stable=True)
    alarm = CalibrationAlarm(ALARM_LEVEL, tolerance=TOLERANCE)
    alarm.update(found.confidence[order], found.correct[order])
    at = alarm.raised_at
    return {
        "alarm": None if at is None else float(file.times[order[at - 1]]),
        "after": at,
        "level": ALARM_LEVEL,
        "tolerance": TOLERANCE,
    }


def detection_errors(file: AnyPredictions, resamples: int) -> dict[str, Any]:
    """D-ECE by confidence with 20 bins, and by confidence, position and size; of boxes only.

    Whole images are resampled where the file says which detection is of which; else detections,
    beyond 2,000 in random blocks.
    """
    if not isinstance(file, ConfidenceFile) or file.boxes is None:
        return {}
    block, blocks = blocks_of(len(file), units_of(file))
    found = errors_of_detections(
        file.confidence, file.correct, file.boxes, block, blocks, resamples
    )
    return {name: value for name, value in found.items() if value is not None}
