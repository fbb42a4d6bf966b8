"""What is measured: accuracy, likelihood, calibration, selective classification.

Functions take probabilities; classes of the same meaning stream, in memory that doesn't grow.
The classes load on first use, because importing torchmetrics takes longer than all the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.metrics.accuracy import accuracy
from sfumato.metrics.brier import BrierDecomposition, brier_decomposition, brier_score
from sfumato.metrics.calibration import ReliabilityBins, calibration_error, reliability
from sfumato.metrics.classwise import classwise_calibration_error
from sfumato.metrics.confidence import average_confidence, overconfidence, underconfidence
from sfumato.metrics.consistency import (
    consistency,
    cross_entropy_consistency,
    flip_rate,
    relative_confidence,
)
from sfumato.metrics.corruption_ratio import alexnet_scores, corruption_ratio
from sfumato.metrics.detection import detection_calibration_error
from sfumato.metrics.evaluate import compare_predictions, evaluate_predictions
from sfumato.metrics.figures import (
    confidence_histogram,
    confidence_map,
    objectness_curve,
    reliability_diagram,
    risk_coverage_curve,
)
from sfumato.metrics.floor import calibration_floor
from sfumato.metrics.intervals import Comparison, bootstrap_interval, paired_difference
from sfumato.metrics.likelihood import negative_log_likelihood
from sfumato.metrics.prediction_sets import (
    class_coverage,
    mean_set_size,
    set_coverage,
    set_size_counts,
)
from sfumato.metrics.score_split import ScoreSplit, score_split
from sfumato.metrics.segmentation import confusion_matrix, mean_iou
from sfumato.metrics.selective import (
    RiskCoverage,
    accuracy_at_coverage,
    augrc,
    aurc,
    confidence_auroc,
    excess_aurc,
    risk_coverage,
)
from sfumato.metrics.signed_calibration import (
    SignedError,
    debiased_calibration_error,
    signed_calibration_error,
)
from sfumato.metrics.smooth import ks_calibration_error, smooth_calibration_error
from sfumato.metrics.threshold import ThresholdRates, threshold_rates
from sfumato.metrics.true_calibration import mean_objectness_deviation, true_calibration_error
from sfumato.metrics.uncertainty import mutual_information, predictive_entropy

if TYPE_CHECKING:
    from sfumato.metrics.streaming import (
        AUGRC,
        AURC,
        Accuracy,
        AccuracyAtCoverage,
        AverageConfidence,
        BrierScore,
        CalibrationError,
        ClasswiseCalibrationError,
        ConfidenceAUROC,
        DetectionCalibrationError,
        ExcessAURC,
        KSCalibrationError,
        MeanIoU,
        NegativeLogLikelihood,
        Overconfidence,
        Reliability,
        SignedCalibrationError,
        SmoothCalibrationError,
        StreamingEvaluation,
        StreamingScoreSplit,
        TopKAccuracy,
        Underconfidence,
    )

__all__ = [
    "AUGRC",
    "AURC",
    "Accuracy",
    "AccuracyAtCoverage",
    "AverageConfidence",
    "BrierDecomposition",
    "BrierScore",
    "CalibrationError",
    "ClasswiseCalibrationError",
    "Comparison",
    "ConfidenceAUROC",
    "DetectionCalibrationError",
    "ExcessAURC",
    "KSCalibrationError",
    "MeanIoU",
    "NegativeLogLikelihood",
    "Overconfidence",
    "Reliability",
    "ReliabilityBins",
    "RiskCoverage",
    "ScoreSplit",
    "SignedCalibrationError",
    "SignedError",
    "SmoothCalibrationError",
    "StreamingEvaluation",
    "StreamingScoreSplit",
    "ThresholdRates",
    "TopKAccuracy",
    "Underconfidence",
    "accuracy",
    "accuracy_at_coverage",
    "alexnet_scores",
    "augrc",
    "aurc",
    "average_confidence",
    "bootstrap_interval",
    "brier_decomposition",
    "brier_score",
    "calibration_error",
    "calibration_floor",
    "class_coverage",
    "classwise_calibration_error",
    "compare_predictions",
    "confidence_auroc",
    "confidence_histogram",
    "confidence_map",
    "confusion_matrix",
    "consistency",
    "corruption_ratio",
    "cross_entropy_consistency",
    "debiased_calibration_error",
    "detection_calibration_error",
    "evaluate_predictions",
    "excess_aurc",
    "flip_rate",
    "ks_calibration_error",
    "mean_iou",
    "mean_objectness_deviation",
    "mean_set_size",
    "mutual_information",
    "negative_log_likelihood",
    "objectness_curve",
    "overconfidence",
    "paired_difference",
    "predictive_entropy",
    "relative_confidence",
    "reliability",
    "reliability_diagram",
    "risk_coverage",
    "risk_coverage_curve",
    "score_split",
    "set_coverage",
    "set_size_counts",
    "signed_calibration_error",
    "smooth_calibration_error",
    "threshold_rates",
    "true_calibration_error",
    "underconfidence",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sfumato.metrics.streaming"), name)
    raise AttributeError(f"module 'sfumato.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
