"""Would temperature scaling help these predictions? Measured on them, with what speaks against it.

Scaling is shown as a repair only where it measurably is one. What the fit warns of (labels of
probability 0, a parameter at its bound) is kept with the result.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.runs.prediction_files import PredictionFile, PredictionFileError
from sfumato.metrics import compare_predictions, evaluate_predictions
from sfumato.metrics.scored_samples import check_distribution
from sfumato.predictions import TemperatureScaler, UniformMixture

JUDGED = ("ece", "nll")


def after_scaling(
    file: PredictionFile,
    held_out: PredictionFile,
    *,
    num_bins: int,
    resamples: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Metrics after a temperature fitted on `held_out`, whether that helps, and warnings.

    Returns:
        `temperature`; `uniform`, the share of the uniform distribution that was mixed in first
        (None where no probability is 0); `metrics`; `differences` of ECE and NLL, paired, empty
        without resamples; `verdict`; `warnings`, sentences.
    """
    _check_classes(file, held_out)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if held_out.probs is not None:
                check_distribution("probs", held_out.probs)
            logits, held_out_logits, uniform = shared_logits(file, held_out)
            scaler = TemperatureScaler().fit(held_out_logits, held_out.labels)
        except ValueError as error:
            raise PredictionFileError(f"{held_out.name}: {error}") from None
    messages = [str(each.message) for each in caught]
    if torch.equal(held_out.predictions, file.predictions):
        messages.append(
            "the validation file holds the audited predictions themselves: what scaling shows "
            "on them is better than it will be on new ones"
        )
    settings: dict[str, Any] = {
        "num_bins": num_bins,
        "resamples": resamples,
        "generator": generator,
        "validate": False,
    }
    scaled = scaler(logits)
    metrics = evaluate_predictions(file.labels, logits=scaled, **settings)
    differences = {}
    if resamples:
        pair = (file.probabilities, scaled.double().softmax(1))
        found = compare_predictions(file.labels, probs=pair, **settings)
        differences = {name: found[name]._asdict() for name in JUDGED}
    return {
        "temperature": scaler.temperature,
        "uniform": uniform,
        "metrics": metrics,
        "differences": differences,
        "verdict": _verdict(differences),
        "warnings": messages,
    }


def shared_logits(
    file: PredictionFile, held_out: PredictionFile
) -> tuple[Tensor, Tensor, float | None]:
    """Of both files; of probabilities the logarithm, with the uniform ones mixed in where any is 0.

    A share that is fitted where nothing is 0 would only take the temperature's work.
    """
    if file.logits is not None and held_out.logits is not None:
        return file.logits, held_out.logits, None
    ours, theirs = file.probabilities, held_out.probabilities
    if bool((ours > 0).all()) and bool((theirs > 0).all()):
        return ours.log(), theirs.log(), None
    mixture = UniformMixture(free_temperature=True).fit(theirs, held_out.labels)
    return mixture(ours), mixture(theirs), mixture.amount


def _verdict(differences: dict[str, dict[str, float]]) -> str:
    if not differences:
        return "not resampled"
    if any(each["low"] > 0 for each in differences.values()):
        return "worse"
    if any(each["high"] < 0 for each in differences.values()):
        return "better"
    return "can't tell"


def _check_classes(file: PredictionFile, held_out: PredictionFile) -> None:
    ours, theirs = file.predictions.shape[1], held_out.predictions.shape[1]
    if ours != theirs:
        raise PredictionFileError(
            f"{held_out.name} has {theirs} classes, {file.name} has {ours}: is it the validation "
            "file of another model?"
        )
