"""Streams: one state for many metrics, constant memory, and the conventions of torchmetrics."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

import sfumato.metrics
import sfumato.metrics as m
from sfumato.metrics import (
    Accuracy,
    BrierScore,
    CalibrationError,
    NegativeLogLikelihood,
    Overconfidence,
    Reliability,
    StreamingEvaluation,
    Underconfidence,
    calibration_error,
    evaluate_predictions,
)

Make = Callable[..., tuple[Tensor, Tensor]]


def collection(**options: bool) -> MetricCollection:
    return MetricCollection(
        {
            "accuracy": Accuracy(**options),
            "nll": NegativeLogLikelihood(**options),
            "ece": CalibrationError(**options),
            "ece100": CalibrationError(num_bins=100, **options),
            "aece": CalibrationError(binning="mass", **options),
            "mce": CalibrationError(norm="max", **options),
            "overconfidence": Overconfidence(**options),
            "underconfidence": Underconfidence(**options),
            "brier": BrierScore(**options),
        }
    )


def test_collection_shares_one_state(make: Make) -> None:
    probs, target = make(2000, 5, temperature=0.5)
    metrics = collection()
    for part, labels in zip(probs.split(300), target.split(300), strict=True):
        metrics.update(part, labels)
    groups = sorted(map(len, metrics.compute_groups.values()))
    assert groups == [1, 8]  # Brier alone; all others from one histogram
    values, exact = metrics.compute(), evaluate_predictions(probs=probs, target=target)
    for name in values.keys() & exact.keys():
        assert float(values[name]) == pytest.approx(exact[name], abs=1e-3), name
    hundred = calibration_error(probs, target, num_bins=100)
    torch.testing.assert_close(values["ece100"], hundred)


def test_collection_keeps_different_inputs_apart() -> None:
    # An empty first batch leaves all states equal; they must not be merged for that.
    probs, target = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])
    metrics = MetricCollection(
        {"all": CalibrationError(), "foreground": CalibrationError(ignore_index=0)}
    )
    metrics.update(probs[:0], target[:0])
    metrics.update(probs, torch.tensor([0, 1]))
    values = metrics.compute()
    assert float(values["all"]) == pytest.approx(0.15)
    assert float(values["foreground"]) == pytest.approx(0.2)
    both = MetricCollection({"nll": NegativeLogLikelihood(), "brier": BrierScore()})
    both.update(probs[:0], target[:0])
    both.update(probs, target)
    assert float(both.compute()["brier"]) == pytest.approx((0.02 + 1.28) / 2)


def test_memory_does_not_grow(make: Make) -> None:
    metric = StreamingEvaluation()
    size = sum(state.nbytes for state in metric.metric_state.values())
    assert size < 2**20
    probs, target = make(5000, 3)
    for _ in range(4):
        metric.update(probs, target)
    assert sum(state.nbytes for state in metric.metric_state.values()) == size


def test_counts_beyond_float32_are_exact() -> None:
    metric = Accuracy()
    metric.update(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0, 0]))
    getattr(metric, metric.state_name).mul_(2.0**30)  # as after two billion pixels
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    groups = metric.groups()
    assert int(groups.count.sum()) == 2**31 + 1
    assert int(groups.correct.sum()) == 2**30 + 1


def test_conventions_of_torchmetrics(make: Make) -> None:
    probs, target = make(600, 4)
    metric = CalibrationError()
    batch_value = metric(probs[:200], target[:200])
    torch.testing.assert_close(batch_value, calibration_error(probs[:200], target[:200]))
    metric.update(probs[200:], target[200:])
    whole = calibration_error(probs, target)
    torch.testing.assert_close(metric.compute(), whole)
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        torch.testing.assert_close(twin.compute(), whole)
    other = CalibrationError()
    other.update(probs, target)
    other.merge_state(metric)
    torch.testing.assert_close(other.compute(), whole)
    metric.persistent(True)
    restored = CalibrationError()
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    restored.update(probs[:0], target[:0])
    torch.testing.assert_close(restored.compute(), whole)
    metric.reset()
    metric.update(probs[:50], target[:50])
    torch.testing.assert_close(metric.compute(), calibration_error(probs[:50], target[:50]))


def test_from_logits_dense_and_ignored() -> None:
    logits, target = 3 * torch.randn(4, 5, 6, 7), torch.randint(5, (4, 6, 7))
    target[2:, :2] = 255
    metric = StreamingEvaluation(from_logits=True, ignore_index=255)
    for i in range(4):
        metric.update(logits[i : i + 1], target[i : i + 1])
    exact = evaluate_predictions(logits=logits, target=target, ignore_index=255)
    values = metric.compute()
    for name in ("accuracy", "nll", "ece", "mce", "overconfidence", "underconfidence"):
        assert float(values[name]) == pytest.approx(exact[name], abs=1e-6), name


def test_all_ignored_batch_changes_nothing() -> None:
    probs, target = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])
    metric = Reliability()
    metric.update(probs, target)
    before = metric.compute()
    metric.update(probs, torch.tensor([-100, -100]))
    for left, right in zip(before, metric.compute(), strict=True):
        torch.testing.assert_close(left, right, equal_nan=True)


def test_mixed_precision_in_one_stream(make: Make) -> None:
    probs, target = make(400, 4)
    metric = CalibrationError()
    metric.update(probs[:200].float(), target[:200])
    metric.update(probs[200:], target[200:])
    assert float(metric.compute()) == pytest.approx(
        float(calibration_error(probs, target)), abs=1e-6
    )


def test_under_autocast_and_inference_mode() -> None:
    layer, images = torch.nn.Linear(8, 5), torch.randn(64, 8)
    metric = StreamingEvaluation(from_logits=True)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        metric.update(layer(images), torch.randint(5, (64,)))
    assert float(metric.compute()["accuracy"]) <= 1
    metric.update(layer(images), torch.randint(5, (64,)))
    assert int(metric.groups().count.sum()) == 128


def test_validation_can_be_switched_off() -> None:
    metric = CalibrationError(validate=False)
    metric.update(torch.ones(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="sum to one"):
        CalibrationError().update(torch.ones(2, 2), torch.tensor([0, 1]))


def test_functions_do_not_load_torchmetrics() -> None:
    code = "import sys, sfumato.metrics as m; m.accuracy; print('torchmetrics' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Callibration'"):
        sfumato.metrics.Callibration  # noqa: B018


def test_ranking_is_the_same_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confidences next to 1 differ in their last places only, and AURC ranks by those."""
    logits = torch.randn(20_000, 10, generator=torch.Generator().manual_seed(0)) * 8
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 3
    target, found = (logits + noise).argmax(1), []
    for _ in range(2):
        metric = sfumato.metrics.AURC(from_logits=True)
        metric.update(logits, target)
        found.append(float(metric.compute()))
        monkeypatch.setattr("sfumato.ops.library.library", lambda: None)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        m.CalibrationError,
        m.StreamingEvaluation,
        m.BrierScore,
        m.TopKAccuracy,
        m.StreamingScoreSplit,
        partial(m.ClasswiseCalibrationError, 6),
    ],
)
def test_probabilities_are_refused_as_logits(make: Callable[..., Any]) -> None:
    probs = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).softmax(1)
    target = torch.arange(8) % 6
    with pytest.raises(ValueError, match=r"got probabilities.*leave out from_logits=True"):
        make(from_logits=True).update(probs, target)
    make(from_logits=True).update(probs.log(), target)
    make(from_logits=True, any_logits=True).update(probs, target)
    make(from_logits=True, validate=False).update(probs, target)
    make().update(probs, target)


@pytest.mark.parametrize(
    ("stream", "function"),
    [(m.ExcessAURC, m.excess_aurc), (m.AccuracyAtCoverage, m.accuracy_at_coverage)],
)
def test_shares_are_no_single_sample(
    stream: Callable[[], Any], function: Callable[..., Tensor], make: Make
) -> None:
    probs, target = make(1000, 5)
    share = torch.full((1000,), 1e-3)
    metric = stream()
    metric.update(probs, target, share)
    expected = function(probs, target, sample_weight=share)
    torch.testing.assert_close(metric.compute(), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("stream", [Accuracy, NegativeLogLikelihood])
def test_no_interval_for_shares(stream: Callable[[], Any], make: Make) -> None:
    metric = stream()
    metric.update(*make(400, 5), torch.full((400,), 1 / 400))
    with pytest.raises(ValueError, match="weights that are whole numbers"):
        metric.interval()
