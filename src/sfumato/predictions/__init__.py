"""Smoothing the outputs: ensembles over weights and over time, temperature scaling."""

from sfumato.predictions.ensemble import DeepEnsemble
from sfumato.predictions.mc_dropout import MCDropout, SampledPrediction
from sfumato.predictions.temperature import TemperatureScaler
from sfumato.predictions.temporal import TemporalSmoother, TemporalStep, temporal_weights

__all__ = [
    "DeepEnsemble",
    "MCDropout",
    "SampledPrediction",
    "TemperatureScaler",
    "TemporalSmoother",
    "TemporalStep",
    "temporal_weights",
]
