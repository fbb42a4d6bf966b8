"""Smoothing the outputs, and deciding by them: ensembles, post-hoc scaling, thresholds."""

from sfumato._core.exports import public_names as _public_names
from sfumato.predictions.calibrator import (
    Calibrator as Calibrator,
    choose_calibrator as choose_calibrator,
    load_calibrator as load_calibrator,
)
from sfumato.predictions.classwise import (
    BetaScaler as BetaScaler,
    HistogramScaler as HistogramScaler,
    IsotonicScaler as IsotonicScaler,
    LogisticScaler as LogisticScaler,
    VennAbersScaler as VennAbersScaler,
)
from sfumato.predictions.decisions import (
    ConformalPredictor as ConformalPredictor,
    DecisionThresholds as DecisionThresholds,
    RejectOrAnswer as RejectOrAnswer,
    RiskThreshold as RiskThreshold,
    class_risk_thresholds as class_risk_thresholds,
    decision_thresholds as decision_thresholds,
    reject_or_answer as reject_or_answer,
    risk_threshold as risk_threshold,
    risk_threshold_of_counts as risk_threshold_of_counts,
)
from sfumato.predictions.logit_normalisation import (
    LogitNormaliser as LogitNormaliser,
    normalise_logits as normalise_logits,
)
from sfumato.predictions.monitoring import (
    CalibrationAlarm as CalibrationAlarm,
    ExpectedAccuracy as ExpectedAccuracy,
    ExpectedPerformance as ExpectedPerformance,
    Period as Period,
    calibration_over_time as calibration_over_time,
    expected_accuracy as expected_accuracy,
    expected_performance as expected_performance,
)
from sfumato.predictions.ood import (
    MahalanobisDistance as MahalanobisDistance,
    NeighbourDistance as NeighbourDistance,
    conformal_p_values as conformal_p_values,
    energy_score as energy_score,
    generalised_entropy_score as generalised_entropy_score,
    maximum_logit_score as maximum_logit_score,
    maximum_probability_score as maximum_probability_score,
)
from sfumato.predictions.sampling import (
    DeepEnsemble as DeepEnsemble,
    MCDropout as MCDropout,
    SampledPrediction as SampledPrediction,
    mean_log_probability as mean_log_probability,
)
from sfumato.predictions.scalers import (
    BiasScaler as BiasScaler,
    EnsembleTemperatureScaler as EnsembleTemperatureScaler,
    HeldOutPredictions as HeldOutPredictions,
    SplineScaler as SplineScaler,
    StructuredMatrixScaler as StructuredMatrixScaler,
    TemperatureScaler as TemperatureScaler,
    UniformMixture as UniformMixture,
    VectorScaler as VectorScaler,
    temperature_table as temperature_table,
)
from sfumato.predictions.temporal import (
    TemporalSmoother as TemporalSmoother,
    TemporalStep as TemporalStep,
)

__all__ = _public_names(globals())
