"""A NaN that nobody checked for must not become a plausible number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sfumato import metrics

FUNCTIONS = (
    "aurc",
    "augrc",
    "accuracy_at_coverage",
    "average_confidence",
    "brier_score",
    "calibration_error",
    "classwise_calibration_error",
    "confidence_auroc",
    "debiased_calibration_error",
    "excess_aurc",
    "ks_calibration_error",
    "negative_log_likelihood",
    "overconfidence",
    "smooth_calibration_error",
    "underconfidence",
)


@pytest.fixture(params=["one class", "whole row"])
def probs(request: pytest.FixtureRequest) -> Tensor:
    found = torch.rand(50, 4, generator=torch.Generator().manual_seed(0)).softmax(1)
    found[7, 2 if request.param == "one class" else slice(None)] = torch.nan
    return found


TARGET = torch.arange(50) % 4


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_nan(name: str, probs: Tensor) -> None:
    assert math.isnan(float(getattr(metrics, name)(probs, TARGET, validate=False)))


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_every_calibration_error_gives_nan(norm: str, binning: str, probs: Tensor) -> None:
    options = {"norm": norm, "binning": binning, "validate": False}
    assert math.isnan(float(metrics.calibration_error(probs, TARGET, **options)))  # type: ignore[arg-type]


def test_all_at_once_gives_nan(probs: Tensor) -> None:
    found = metrics.evaluate_predictions(probs=probs, target=TARGET, validate=False)
    assert all(math.isnan(value) for value in found.values())
    found = metrics.evaluate_predictions(logits=probs.log(), target=TARGET, validate=False)
    assert all(math.isnan(value) for value in found.values())


def test_streams_refuse_it(probs: Tensor) -> None:
    metric = metrics.CalibrationError(validate=False)
    with pytest.raises(ValueError, match="got NaN or less than 0 for 1 of them"):
        metric.update(probs, TARGET)
