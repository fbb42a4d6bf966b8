"""Metrics: accuracy, likelihood, calibration, selective classification.

Functions take probabilities; classes of the same meaning stream, in memory that doesn't grow.
The classes load on first use, because importing torchmetrics takes longer than all the rest.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from sfumato._core.exports import on_first_use as _on_first_use, public_names as _public_names
from sfumato.metrics.calibration import (
    ReliabilityBins as ReliabilityBins,
    SignedError as SignedError,
    average_confidence as average_confidence,
    calibration_error as calibration_error,
    calibration_floor as calibration_floor,
    classwise_calibration_error as classwise_calibration_error,
    debiased_calibration_error as debiased_calibration_error,
    ks_calibration_error as ks_calibration_error,
    mean_objectness_deviation as mean_objectness_deviation,
    mutual_information as mutual_information,
    overconfidence as overconfidence,
    predictive_entropy as predictive_entropy,
    reliability as reliability,
    signed_calibration_error as signed_calibration_error,
    smooth_calibration_error as smooth_calibration_error,
    true_calibration_error as true_calibration_error,
    underconfidence as underconfidence,
)
from sfumato.metrics.detection import (
    detection_calibration_error as detection_calibration_error,
)
from sfumato.metrics.evaluate import (
    Comparison as Comparison,
    bootstrap_interval as bootstrap_interval,
    compare_predictions as compare_predictions,
    evaluate_predictions as evaluate_predictions,
    paired_difference as paired_difference,
)
from sfumato.metrics.figures import (
    confidence_histogram as confidence_histogram,
    confidence_map as confidence_map,
    objectness_curve as objectness_curve,
    reliability_diagram as reliability_diagram,
    risk_coverage_curve as risk_coverage_curve,
)
from sfumato.metrics.ood import (
    ood_metrics as ood_metrics,
)
from sfumato.metrics.robustness import (
    ContextScores as ContextScores,
    alexnet_scores as alexnet_scores,
    consistency as consistency,
    context_scores as context_scores,
    corruption_ratio as corruption_ratio,
    cross_entropy_consistency as cross_entropy_consistency,
    flip_rate as flip_rate,
    relative_confidence as relative_confidence,
)
from sfumato.metrics.scores import (
    BrierDecomposition as BrierDecomposition,
    RiskCoverage as RiskCoverage,
    ScoreSplit as ScoreSplit,
    ThresholdRates as ThresholdRates,
    accuracy as accuracy,
    accuracy_at_coverage as accuracy_at_coverage,
    augrc as augrc,
    aurc as aurc,
    brier_decomposition as brier_decomposition,
    brier_score as brier_score,
    class_coverage as class_coverage,
    confidence_auroc as confidence_auroc,
    confusion_matrix as confusion_matrix,
    excess_aurc as excess_aurc,
    mean_iou as mean_iou,
    mean_set_size as mean_set_size,
    negative_log_likelihood as negative_log_likelihood,
    risk_coverage as risk_coverage,
    score_split as score_split,
    set_coverage as set_coverage,
    set_size_counts as set_size_counts,
    threshold_rates as threshold_rates,
)

if _TYPE_CHECKING:
    from sfumato.metrics.streaming import *  # noqa: F403

_STREAMING = (
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
)

__all__ = [*_STREAMING, *_public_names(globals())]
__getattr__, __dir__ = _on_first_use(__name__, dict.fromkeys(_STREAMING, "streaming"), globals())
