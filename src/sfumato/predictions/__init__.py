"""Smoothing the outputs, and deciding by them: ensembles, post-hoc scaling, thresholds."""

from sfumato.predictions.bias import BiasScaler
from sfumato.predictions.calibration_over_time import (
    ExpectedAccuracy,
    Period,
    calibration_over_time,
    expected_accuracy,
)
from sfumato.predictions.calibrator import Calibrator, load_calibrator
from sfumato.predictions.calibrator_choice import choose_calibrator
from sfumato.predictions.conformal import ConformalPredictor
from sfumato.predictions.decision_thresholds import (
    DecisionThresholds,
    class_risk_thresholds,
    decision_thresholds,
)
from sfumato.predictions.drift import CalibrationAlarm
from sfumato.predictions.ensemble import DeepEnsemble
from sfumato.predictions.ensemble_temperature import EnsembleTemperatureScaler
from sfumato.predictions.isotonic import IsotonicScaler
from sfumato.predictions.logit_normalisation import LogitNormaliser, normalise_logits
from sfumato.predictions.mc_dropout import MCDropout, SampledPrediction
from sfumato.predictions.risk_threshold import (
    RiskThreshold,
    risk_threshold,
    risk_threshold_of_counts,
)
from sfumato.predictions.spline import SplineScaler
from sfumato.predictions.structured_matrix import StructuredMatrixScaler
from sfumato.predictions.temperature import TemperatureScaler
from sfumato.predictions.temperature_table import (
    HeldOutPredictions,
    TemperatureRow,
    temperature_table,
)
from sfumato.predictions.temporal import TemporalSmoother, TemporalStep, temporal_weights
from sfumato.predictions.training_ensemble import mean_log_probability
from sfumato.predictions.uniform_mixture import UniformMixture
from sfumato.predictions.vector import VectorScaler

__all__ = [
    "BiasScaler",
    "CalibrationAlarm",
    "Calibrator",
    "ConformalPredictor",
    "DecisionThresholds",
    "DeepEnsemble",
    "EnsembleTemperatureScaler",
    "ExpectedAccuracy",
    "HeldOutPredictions",
    "IsotonicScaler",
    "LogitNormaliser",
    "MCDropout",
    "Period",
    "RiskThreshold",
    "SampledPrediction",
    "SplineScaler",
    "StructuredMatrixScaler",
    "TemperatureRow",
    "TemperatureScaler",
    "TemporalSmoother",
    "TemporalStep",
    "UniformMixture",
    "VectorScaler",
    "calibration_over_time",
    "choose_calibrator",
    "class_risk_thresholds",
    "decision_thresholds",
    "expected_accuracy",
    "load_calibrator",
    "mean_log_probability",
    "normalise_logits",
    "risk_threshold",
    "risk_threshold_of_counts",
    "temperature_table",
    "temporal_weights",
]
