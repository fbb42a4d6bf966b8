"""Smoothing the outputs: ensembles over weights and over time, temperature scaling."""

from sfumato.predictions.temperature import TemperatureScaler

__all__ = ["TemperatureScaler"]
