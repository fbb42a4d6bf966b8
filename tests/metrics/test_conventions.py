"""Names and order of arguments: predictions, then target, as torchmetrics has them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics

from sfumato import metrics, predictions

PROBS = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
TARGET = torch.randint(3, (200,), generator=torch.Generator().manual_seed(1))
NEEDS = {"num_classes": 3}
OF_DETECTIONS = "DetectionCalibrationError"


def _streaming() -> dict[str, Any]:
    found = {}
    for name in metrics._STREAMING:
        kind = getattr(metrics, name)
        needs = {key: NEEDS[key] for key in NEEDS if key in inspect.signature(kind).parameters}
        found[name] = kind(**needs)
    return found


def test_a_collection_is_called_by_keyword() -> None:
    members = _streaming()
    detections = members.pop(OF_DETECTIONS)
    accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    collection = torchmetrics.MetricCollection({**members, "theirs": accuracy})
    collection.update(preds=PROBS, target=TARGET)
    found = collection.compute()
    assert float(found["Accuracy"]) == pytest.approx(float(found["theirs"]))
    detections.update(preds=PROBS[:, 0], target=TARGET == 0)
    assert 0 < float(detections.compute()) < 1


def test_predictions_come_first_everywhere() -> None:
    for package in (metrics, predictions):
        for name in package.__all__:
            value = getattr(package, name)
            calls = [value] if inspect.isfunction(value) else []
            calls += [getattr(value, key) for key in ("fit", "update") if hasattr(value, key)]
            for call in calls:
                names = [each for each in inspect.signature(call).parameters if each != "self"]
                assert "labels" not in names, name
                if "target" in names and "metric" not in names:
                    kinds = ("probs", "logits", "preds", "sets", "features")
                    assert names[0] in kinds, (name, names)
                    assert names[1] == "target", (name, names)


@pytest.mark.parametrize("name", ["CalibrationError", "Reliability", "ClasswiseCalibrationError"])
def test_the_number_of_bins_has_two_names(name: str) -> None:
    kind = getattr(metrics, name)
    needs = {key: NEEDS[key] for key in NEEDS if key in inspect.signature(kind).parameters}
    assert kind(n_bins=7, **needs).num_bins == 7
    with pytest.raises(TypeError, match="give num_bins or n_bins"):
        kind(n_bins=7, num_bins=7, **needs)


def test_bins_of_functions_have_two_names() -> None:
    for function in (metrics.calibration_error, metrics.classwise_calibration_error):
        assert function(PROBS, TARGET, n_bins=7) == function(PROBS, TARGET, num_bins=7)


def test_arrays_are_answered_with_arrays() -> None:
    value = metrics.calibration_error(PROBS.numpy(), TARGET.numpy())  # type: ignore[arg-type]
    assert isinstance(value, np.float64)
    assert value == float(metrics.calibration_error(PROBS, TARGET))
    bins = metrics.reliability(PROBS.numpy(), TARGET.numpy())  # type: ignore[arg-type]
    assert all(isinstance(each, np.ndarray) for each in bins)
    found = metrics.evaluate_predictions(PROBS.numpy(), TARGET.numpy())
    assert found == metrics.evaluate_predictions(PROBS, TARGET)
    assert isinstance(metrics.accuracy(PROBS, TARGET), torch.Tensor)


def test_every_metric_plots_itself() -> None:
    """A value, several over steps, and the diagram of what has no single value."""
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    for name, metric in _streaming().items():
        target = TARGET == 0 if name == OF_DETECTIONS else TARGET
        metric.update(PROBS[:, 0] if name == OF_DETECTIONS else PROBS, target)
        value = metric.compute()
        figure, axes = metric.plot()
        assert axes.figure is figure
        assert axes.has_data(), name
        if name != "Reliability":
            assert metric.plot([value, value])[1].has_data(), name
        pyplot.close("all")


def test_a_metric_plots_into_axes_that_are_there() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib.figure import Figure

    first, second = Figure().subplots(1, 2)
    metric = metrics.Reliability(num_bins=5)
    metric.update(PROBS, TARGET)
    assert metric.plot(ax=first)[1] is first
    assert first.get_title().startswith("ECE ")
    error = metrics.CalibrationError(num_bins=5)
    values = [error(PROBS[:100], TARGET[:100]), error(PROBS[100:], TARGET[100:])]
    error.plot(values, ax=second)
    drawn = [float(each) for each in second.lines[0].get_ydata()]
    assert drawn == pytest.approx([float(each) for each in values])
