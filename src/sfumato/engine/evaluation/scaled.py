"""What a run measures after a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.evaluation.split_metrics import measure_split
from sfumato.engine.runs.directory import Predictions, RunDirectory
from sfumato.predictions import TemperatureScaler

SCALED_SPLITS = {"nll": "scaled", "ece": "scaled_by_ece"}
_NAMES = ("nll", "ece", "aece", "aurc", "accuracy_at_80", "true_calibration_error", "true_ece")


def fitted_scaler(
    run: RunDirectory, method: Literal["nll", "ece"], bins: Sequence[int]
) -> TemperatureScaler:
    """With the temperature that suits the validation set best, by NLL or by ECE."""
    held_out = run.read_predictions("validation")
    return TemperatureScaler(method, num_bins=bins[0]).fit(held_out.logits, held_out.labels)


def measure_scaled(
    found: Predictions,
    scaler: TemperatureScaler,
    *,
    split: str,
    posterior: Tensor | None,
    replicates: Replicates,
    bins: Sequence[int],
) -> dict[str, Any]:
    """The metrics of predictions that a temperature changes.

    Args:
        found: the predictions.
        scaler: with its temperature.
        split: the name of what is measured, in the report.
        posterior: the true probabilities, where they are known.
        replicates: where the resamples go.
        bins: numbers of bins.
    """
    return measure_split(
        Predictions(scaler(found.logits), found.labels, found.index),
        posterior=posterior,
        replicates=replicates,
        split=split,
        names=_NAMES,
        bins=bins,
    )
