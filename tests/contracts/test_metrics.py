"""What every metric must hold: one battery over the literal list of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import sfumato.metrics as m

CLASSES = 4


@dataclass(frozen=True)
class Entry:
    """A function, its streaming class, and how far the two may be apart.

    `loose` is for what a stream rounds to its grid: confidences in one cell count as equal.
    """

    function: Callable[..., Tensor]
    metric: Callable[..., Any] | None = None
    low: float = 0.0
    high: float = 1.0
    loose: bool = False


METRICS: dict[str, Entry] = {
    "accuracy": Entry(m.accuracy, m.Accuracy),
    "top-2 accuracy": Entry(partial(m.accuracy, top_k=2), partial(m.TopKAccuracy, top_k=2)),
    "nll": Entry(m.negative_log_likelihood, m.NegativeLogLikelihood, high=math.inf),
    "brier": Entry(m.brier_score, m.BrierScore, high=2.0),
    "ece": Entry(m.calibration_error, m.CalibrationError),
    "ece, 7 bins": Entry(
        partial(m.calibration_error, num_bins=7), partial(m.CalibrationError, num_bins=7)
    ),
    "rms ce": Entry(
        partial(m.calibration_error, norm="l2"), partial(m.CalibrationError, norm="l2")
    ),
    "mce": Entry(partial(m.calibration_error, norm="max"), partial(m.CalibrationError, norm="max")),
    "aece": Entry(
        partial(m.calibration_error, binning="mass"),
        partial(m.CalibrationError, binning="mass"),
        loose=True,
    ),
    "classwise ece": Entry(
        m.classwise_calibration_error, partial(m.ClasswiseCalibrationError, CLASSES)
    ),
    "classwise ace": Entry(partial(m.classwise_calibration_error, binning="mass")),
    "debiased": Entry(m.debiased_calibration_error),
    "over": Entry(lambda *a, **k: m.signed_calibration_error(*a, **k).over),
    "net": Entry(lambda *a, **k: m.signed_calibration_error(*a, **k).net, low=-1.0),
    "smooth": Entry(m.smooth_calibration_error, m.SmoothCalibrationError, loose=True),
    "ks": Entry(m.ks_calibration_error, m.KSCalibrationError, loose=True),
    "overconfidence": Entry(m.overconfidence, m.Overconfidence),
    "underconfidence": Entry(m.underconfidence, m.Underconfidence),
    "average confidence": Entry(m.average_confidence, m.AverageConfidence),
    "aurc": Entry(m.aurc, m.AURC, loose=True),
    "augrc": Entry(m.augrc, m.AUGRC, high=0.5, loose=True),
    "excess aurc": Entry(m.excess_aurc, m.ExcessAURC, loose=True),
    "accuracy at 80": Entry(m.accuracy_at_coverage, m.AccuracyAtCoverage, loose=True),
    "confidence auroc": Entry(m.confidence_auroc, m.ConfidenceAUROC, loose=True),
    "acc-90": Entry(lambda *a, **k: m.threshold_rates(*a, **k).accuracy),
    "mean iou": Entry(m.mean_iou, partial(m.MeanIoU, CLASSES)),
}
every_metric = pytest.mark.parametrize("name", list(METRICS))
streaming = pytest.mark.parametrize("name", [n for n, e in METRICS.items() if e.metric])
# A confidence rounded over an edge moves to another bin: no closeness to promise.
JUMPY = {"mce", "aece", "classwise ace", "rms ce", "ece, 7 bins", "debiased"}
# Only the largest entry matters to it, so it need not be told what the entries are.
UNTOLD = {"mean iou"}


@st.composite
def predictions(draw: st.DrawFn, at_least: int = 1) -> tuple[Tensor, Tensor]:
    """Probabilities from the grid of twelfths: exact zeros, ones, ties and edges are common."""
    n = draw(st.integers(at_least, 30))
    rough = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    if rough:
        cuts = torch.randint(13, (n, CLASSES - 1), generator=generator).sort(1).values
        ends = torch.cat([torch.zeros(n, 1), cuts, torch.full((n, 1), 12.0)], 1).double()
        probs = ends.diff(dim=1) / 12
    else:
        scale = draw(st.sampled_from([0.1, 2.0, 30.0]))
        logits = scale * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
        probs = logits.softmax(1)
    return probs, torch.randint(CLASSES, (n,), generator=generator)


battery = settings(max_examples=8)


def assert_same(left: Tensor, right: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        left.double(), right.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@every_metric
@battery
@given(data=predictions(), seed=st.integers(0, 1000))
def test_order_does_not_matter(name: str, data: tuple[Tensor, Tensor], seed: int) -> None:
    probs, target = data
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    function = METRICS[name].function
    assert_same(function(probs, target), function(probs[order], target[order]))


@every_metric
@battery
@given(data=predictions())
def test_values_are_in_bounds(name: str, data: tuple[Tensor, Tensor]) -> None:
    entry = METRICS[name]
    value = float(entry.function(*data))
    assert entry.low - 1e-9 <= value <= entry.high + 1e-9 or math.isnan(value)
    undefined = name in ("confidence auroc", "acc-90")
    assert undefined or not math.isnan(value)


@every_metric
@battery
@given(data=predictions())
def test_ignored_samples_do_not_count(name: str, data: tuple[Tensor, Tensor]) -> None:
    probs, target = data
    function = METRICS[name].function
    more = torch.cat([probs, torch.full((5, CLASSES), 0.25, dtype=torch.float64)])
    padded = torch.cat([target, torch.full((5,), -100)])
    assert_same(function(more, padded), function(probs, target))


@every_metric
@battery
@given(data=predictions())
def test_pixels_are_samples(name: str, data: tuple[Tensor, Tensor]) -> None:
    probs, target = data
    function = METRICS[name].function
    dense = probs.view(1, 1, -1, CLASSES).permute(0, 3, 1, 2)
    assert_same(function(dense, target.view(1, 1, -1)), function(probs, target))


@every_metric
@battery
@given(data=predictions())
def test_classes_may_be_last(name: str, data: tuple[Tensor, Tensor]) -> None:
    probs, target = data
    entry, words = METRICS[name], (probs.view(1, -1, CLASSES), target.view(1, -1))
    assert_same(entry.function(*words, class_dim=-1), entry.function(probs, target))
    if entry.metric is not None:
        first, second = entry.metric(class_dim=-1), entry.metric()
        first.update(*words)
        second.update(probs, target)
        assert_same(first.compute(), second.compute())


@every_metric
def test_nothing_to_measure_is_nan(name: str) -> None:
    probs = torch.full((3, CLASSES), 0.25)
    for target in (torch.full((3,), -100), torch.zeros(0, dtype=torch.long)):
        assert math.isnan(METRICS[name].function(probs[: len(target)], target))


@pytest.mark.parametrize("name", [n for n in METRICS if n not in JUMPY])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_is_close(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(500, CLASSES, generator=generator, dtype=torch.float64)).softmax(1)
    target = torch.randint(CLASSES, (500,), generator=generator)
    function = METRICS[name].function
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    assert_same(function(probs.to(dtype), target), function(probs, target), tolerance)


@streaming
@battery
@given(data=predictions(at_least=2), cut=st.floats(0, 1))
def test_two_streams_are_one(name: str, data: tuple[Tensor, Tensor], cut: float) -> None:
    probs, target = data
    at = int(cut * len(target))
    metric = METRICS[name].metric
    assert metric is not None
    whole, left, right = metric(), metric(), metric()
    whole.update(probs, target)
    left.update(probs[:at], target[:at])
    right.update(probs[at:], target[at:])
    left.merge_state(right)
    assert_same(left.compute(), whole.compute())


@streaming
@battery
@given(data=predictions())
def test_stream_is_function(name: str, data: tuple[Tensor, Tensor]) -> None:
    entry = METRICS[name]
    assert entry.metric is not None
    metric = entry.metric()
    metric.update(*data)
    value, exact = metric.compute(), entry.function(*data)
    if entry.loose:
        # With thirty samples, two in one cell of 1/15,000 are rare but may happen.
        confidence = data[0].amax(1).unique()
        if len(confidence) > 1 and float(confidence.diff().min()) < 1e-4:
            return
        assert_same(value, exact, 2e-3)
    else:
        assert_same(value, exact)


@pytest.mark.parametrize("name", [n for n, e in METRICS.items() if e.metric and n not in UNTOLD])
@pytest.mark.parametrize("from_logits", [False, True])
def test_inputs_are_said(name: str, from_logits: bool) -> None:
    metric = METRICS[name].metric
    assert metric is not None
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, CLASSES, generator=generator, dtype=torch.float64)
    target = torch.randint(CLASSES, (40,), generator=generator)
    stream = metric(from_logits=from_logits)
    stream.update(logits if from_logits else logits.softmax(1), target)
    tolerance = 2e-3 if METRICS[name].loose else 1e-9
    assert_same(stream.compute(), METRICS[name].function(logits.softmax(1), target), tolerance)
    if not from_logits:
        with pytest.raises(ValueError, match="For raw scores pass logits"):
            metric().update(logits, target)


# Without a weight: labels that chance adds to, and rates of one threshold.
weighted = pytest.mark.parametrize(
    "name", [n for n in METRICS if n not in {"debiased", "acc-90", "mean iou"}]
)


@weighted
@battery
@given(data=predictions(), seed=st.integers(0, 1000))
def test_a_weight_of_two_is_two_copies(name: str, data: tuple[Tensor, Tensor], seed: int) -> None:
    probs, target = data
    weight = torch.randint(3, (len(target),), generator=torch.Generator().manual_seed(seed))
    weight[0] += 1
    entry = METRICS[name]
    copies = probs.repeat_interleave(weight, 0), target.repeat_interleave(weight)
    expected = entry.function(*copies)
    assert_same(entry.function(probs, target, sample_weight=weight), expected)
    if entry.metric is not None:
        streams = entry.metric(), entry.metric()
        streams[0].update(preds=probs, target=target, sample_weight=weight)
        streams[1].update(*copies)
        assert_same(streams[0].compute(), streams[1].compute())


@weighted
@pytest.mark.parametrize("weight", [1e-3, 0.5, 1.0])
def test_equal_weights_change_nothing(name: str, weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(60, CLASSES, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(CLASSES, (60,), generator=generator)
    function = METRICS[name].function
    found = function(probs, target, sample_weight=torch.full((60,), weight))
    assert_same(found, function(probs, target))


def test_weights_of_images_are_those_of_their_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(3, CLASSES, 2, 2, generator=generator).softmax(1)
    target = torch.randint(CLASSES, (3, 2, 2), generator=generator).to(torch.uint8)
    target[0, 0, 0] = 255
    weight = torch.tensor([1, 2, 3])
    given: dict[str, Any] = {"ignore_index": 255}
    of_images = m.calibration_error(probs, target, sample_weight=weight, **given)
    of_pixels = weight[:, None, None].expand(3, 2, 2)
    assert_same(m.calibration_error(probs, target, sample_weight=of_pixels, **given), of_images)


@weighted
def test_weights_of_nothing(name: str) -> None:
    """No sample, or none that counts: as without weights."""
    function = METRICS[name].function
    for probs, target in ((torch.zeros(0, 3), []), (torch.eye(3), [-100] * 3)):
        labels = torch.tensor(target, dtype=torch.long)
        found = function(probs, labels, sample_weight=torch.ones(len(labels)))
        assert_same(found, function(probs, labels))


@pytest.mark.parametrize("weight", [[-1.0, 1.0], [0.0, 0.0], [math.nan, 1.0], [1.0]])
def test_weights_that_make_no_sense(weight: list[float]) -> None:
    with pytest.raises(ValueError, match="sample_weight"):
        m.calibration_error(torch.full((2, 2), 0.5), torch.tensor([0, 1]), sample_weight=weight)
