"""The metrics as `torchmetrics.Metric` classes: streams of any length in constant memory."""

from sfumato.metrics.streaming.calibration import (
    CalibrationError,
    KSCalibrationError,
    Reliability,
    SignedCalibrationError,
    SmoothCalibrationError,
)
from sfumato.metrics.streaming.classes import (
    BrierScore,
    ClasswiseCalibrationError,
    MeanIoU,
    TopKAccuracy,
)
from sfumato.metrics.streaming.confidence import (
    Accuracy,
    AverageConfidence,
    NegativeLogLikelihood,
    Overconfidence,
    StreamingEvaluation,
    Underconfidence,
)
from sfumato.metrics.streaming.detection import DetectionCalibrationError
from sfumato.metrics.streaming.score_split import StreamingScoreSplit
from sfumato.metrics.streaming.selective import (
    AUGRC,
    AURC,
    AccuracyAtCoverage,
    ConfidenceAUROC,
    ExcessAURC,
)

__all__ = [
    "AUGRC",
    "AURC",
    "Accuracy",
    "AccuracyAtCoverage",
    "AverageConfidence",
    "BrierScore",
    "CalibrationError",
    "ClasswiseCalibrationError",
    "ConfidenceAUROC",
    "DetectionCalibrationError",
    "ExcessAURC",
    "KSCalibrationError",
    "MeanIoU",
    "NegativeLogLikelihood",
    "Overconfidence",
    "Reliability",
    "SignedCalibrationError",
    "SmoothCalibrationError",
    "StreamingEvaluation",
    "StreamingScoreSplit",
    "TopKAccuracy",
    "Underconfidence",
]
