"""Calibration error: by hand, by a loop, against golden numbers and peers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from sfumato.metrics import CalibrationError, Reliability, calibration_error, reliability

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])
Case = tuple[Tensor, Tensor, Callable[[str], float]]
Make = Callable[..., tuple[Tensor, Tensor]]


def loop_error(probs: Tensor, target: Tensor, num_bins: int, norm: str, binning: str) -> float:
    """The definition, sample by sample."""
    confidence = probs.double().amax(1).numpy()
    correct = (probs.argmax(1) == target).numpy().astype(float)
    n = len(confidence)
    if binning == "width":
        edges = [k / num_bins for k in range(num_bins + 1)]
    else:
        edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(confidence))
    gaps, sizes = [], []
    for b in range(num_bins):
        members = [
            i
            for i in range(n)
            if (confidence[i] > edges[b] or (b == 0 and confidence[i] >= edges[0]))
            and confidence[i] <= edges[b + 1]
        ]
        if members:
            gaps.append(abs(np.mean(confidence[members]) - np.mean(correct[members])))
            sizes.append(len(members) / n)
    if norm == "max":
        return float(max(gaps))
    power = 1 if norm == "l1" else 2
    return float(sum(s * g**power for s, g in zip(sizes, gaps, strict=True)) ** (1 / power))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # (0.4, 0.6]: 0.6 - 1; (0.6, 0.8]: 1.5 - 1; (0.8, 1]: 0.9 - 1
        ({"num_bins": 5}, (0.4 + 0.5 + 0.1) / 4),
        ({"num_bins": 5, "norm": "max"}, 0.4),
        ({"num_bins": 5, "norm": "l2"}, math.sqrt((0.4**2 + 2 * 0.25**2 + 0.1**2) / 4)),
        ({"num_bins": 1}, 0.0),
        # edges at positions 0, 2, 4: {0.6, 0.7, 0.8} and {0.9}
        ({"num_bins": 2, "binning": "mass"}, (0.1 + 0.1) / 4),
    ],
)
def test_hand_worked_values(options: dict[str, Any], expected: float) -> None:
    assert float(calibration_error(PROBS, TARGET, **options)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_agrees_with_a_loop(make: Make, num_bins: int, norm: Any, binning: Any) -> None:
    probs, target = make(301, 4, temperature=0.6)
    ours = calibration_error(probs, target, num_bins=num_bins, norm=norm, binning=binning)
    assert float(ours) == pytest.approx(loop_error(probs, target, num_bins, norm, binning))


@pytest.mark.parametrize("num_bins", [10, 15, 100])
def test_golden_equal_width(case: Case, num_bins: int) -> None:
    probs, target, number = case
    expected = number(f"ece{num_bins}")
    assert float(calibration_error(probs, target, num_bins=num_bins)) == pytest.approx(
        expected, rel=1e-12
    )
    metric = CalibrationError(num_bins=num_bins)
    for part, labels in zip(probs.split(97), target.split(97), strict=True):
        metric.update(part, labels)
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-12)


def test_golden_bins(golden: Callable[[str], dict[str, Any]]) -> None:
    arrays = golden("metrics")
    for name in ("c10", "c100", "edge"):
        probs, target = (torch.from_numpy(arrays[f"{name}.{k}"]) for k in ("probs", "labels"))
        bins = reliability(probs, target, num_bins=15)
        np.testing.assert_array_equal(bins.counts, arrays[f"{name}.ece15.bin_count"])
        sums = (bins.confidences * bins.counts).nan_to_num()
        np.testing.assert_allclose(sums, arrays[f"{name}.ece15.bin_conf_sum"], rtol=1e-12)
        hits = (bins.accuracies * bins.counts).nan_to_num()
        np.testing.assert_allclose(hits, arrays[f"{name}.ece15.bin_correct"], rtol=1e-12)


def test_golden_equal_mass_and_maximum(case: Case) -> None:
    probs, target, number = case
    mass = calibration_error(probs, target, binning="mass")
    assert float(mass) == pytest.approx(number("aece15_closed_first"), rel=1e-12)
    highest = calibration_error(probs, target, norm="max")
    assert float(highest) == pytest.approx(number("mce15"), rel=1e-12)


def test_released_equal_mass_loses_the_smallest_confidence(case: Case) -> None:
    probs, target, number = case
    assert number("aece15_released") != pytest.approx(number("aece15_closed_first"), rel=1e-6)
    order = probs.amax(1).argsort()
    # Without that sample in its bin (but in the denominator) the released number comes out.
    kept = calibration_error(probs, target, binning="mass")
    smallest = order[0]
    gap = float(probs[smallest].max()) - float(probs[smallest].argmax() == target[smallest])
    change = abs(number("aece15_released") - float(kept)) * len(target)
    assert change == pytest.approx(abs(gap), rel=1e-6)


def test_agrees_with_torchmetrics_off_the_edges(make: Make) -> None:
    probs, target = make(2000, 5, temperature=0.5)
    probs = probs.float()
    for norm in ("l1", "l2", "max"):
        theirs = multiclass_calibration_error(probs, target, 5, n_bins=15, norm=norm)
        ours = calibration_error(probs, target, norm=norm)  # type: ignore[arg-type]
        assert float(ours) == pytest.approx(float(theirs), abs=1e-5)


def test_differs_from_torchmetrics_at_confidence_one() -> None:
    # One wrong at 1.0 and three correct at 0.95: theirs are two bins, ours one.
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05], [0.95, 0.05], [0.95, 0.05]])
    target = torch.tensor([1, 0, 0, 0])
    theirs = multiclass_calibration_error(probs, target, 2, n_bins=10)
    assert float(theirs) == pytest.approx((1 + 3 * 0.05) / 4, abs=1e-6)
    assert float(calibration_error(probs, target, num_bins=10)) == pytest.approx((1 - 0.15) / 4)


def test_differs_from_torchmetrics_on_an_inner_edge() -> None:
    # 0.5 belongs to (0.4, 0.5] here, to [0.5, 0.6) there.
    probs = torch.tensor([[0.5, 0.5], [0.55, 0.45]])
    target = torch.tensor([0, 1])
    theirs = multiclass_calibration_error(probs, target, 2, n_bins=10)
    assert float(theirs) == pytest.approx(0.05 / 2, abs=1e-6)
    assert float(calibration_error(probs, target, num_bins=10)) == pytest.approx(1.05 / 2)


def test_agrees_with_netcal(make: Make) -> None:
    metrics = pytest.importorskip("netcal.metrics")
    probs, target = make(2000, 5, temperature=0.5)
    for name, norm in (("ECE", "l1"), ("MCE", "max")):
        theirs = getattr(metrics, name)(bins=15).measure(probs.numpy(), target.numpy())
        ours = calibration_error(probs, target, norm=norm)  # type: ignore[arg-type]
        assert float(ours) == pytest.approx(float(theirs), abs=1e-9)


def test_confidence_zero_and_one_are_in_the_outer_bins() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    bins = reliability(probs, torch.tensor([0, 0]), num_bins=4)
    assert bins.counts.tolist() == [0, 1, 0, 1]
    assert bins.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert bins.accuracies.isnan().tolist() == [True, False, True, False]


def test_perfect_and_hopeless_models() -> None:
    sure = torch.eye(4)
    assert float(calibration_error(sure, torch.arange(4))) == 0
    assert float(calibration_error(sure, torch.arange(4).roll(1))) == 1


def test_calibrated_model_has_the_known_bias(make: Make) -> None:
    # E|N(0, s)| = s sqrt(2 / pi) in each bin, with s^2 = sum p (1 - p) over its samples.
    values, expected = [], []
    for seed in range(20):
        probs, target = make(2000, 4, seed=seed)
        values.append(float(calibration_error(probs, target)))
        confidence = probs.amax(1)
        member = torch.bucketize(confidence, torch.arange(1, 15, dtype=torch.float64) / 15)
        variance = torch.zeros(15, dtype=torch.float64)
        variance.index_add_(0, member, confidence * (1 - confidence))
        expected.append(float(variance.sqrt().sum()) * math.sqrt(2 / math.pi) / 2000)
    assert np.mean(values) == pytest.approx(np.mean(expected), rel=0.15)


def test_nothing_to_measure_is_nan() -> None:
    for target in (torch.tensor([-100] * 4), TARGET[:0]):
        probs = PROBS[: len(target)]
        for binning in ("width", "mass"):
            for norm in ("l1", "l2", "max"):
                value = calibration_error(probs, target, norm=norm, binning=binning)  # type: ignore[arg-type]
                assert math.isnan(value)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_dense_with_ignored_pixels_is_flat(make: Make, binning: Any) -> None:
    probs, target = make(2 * 5 * 6, 3)
    target[::7] = 255
    keep = target != 255
    dense = probs.view(2, 5, 6, 3).permute(0, 3, 1, 2)
    value = calibration_error(dense, target.view(2, 5, 6), binning=binning, ignore_index=255)
    torch.testing.assert_close(value, calibration_error(probs[keep], target[keep], binning=binning))


def test_one_sample() -> None:
    for binning in ("width", "mass"):
        value = calibration_error(PROBS[:1], TARGET[:1], binning=binning)  # type: ignore[arg-type]
        assert float(value) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_bins": 0}, "num_bins must be at least 1"),
        ({"norm": "l3"}, "norm must be one of"),
        ({"binning": "kernel"}, "binning must be one of"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_error(PROBS, TARGET, **options)
    with pytest.raises(ValueError, match=message):
        CalibrationError(**options)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("num_bins", [7, 15, 64, 100])
def test_streamed_equal_width_is_exact(make: Make, num_bins: int, norm: Any) -> None:
    probs, target = make(1500, 6, temperature=0.5)
    metric = CalibrationError(num_bins=num_bins, norm=norm)
    for part, labels in zip(probs.split(211), target.split(211), strict=True):
        metric.update(part, labels)
    expected = calibration_error(probs, target, num_bins=num_bins, norm=norm)
    torch.testing.assert_close(metric.compute(), expected)
    assert float(metric.bound()) == 0


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0])
def test_streamed_equal_mass_is_within_its_bound(make: Make, temperature: float) -> None:
    # At temperature 0.05 half of the confidences are above 0.9999.
    for seed in range(5):
        probs, target = make(3000, 5, temperature=temperature, seed=seed)
        metric = CalibrationError(binning="mass")
        metric.update(probs, target)
        exact = calibration_error(probs, target, binning="mass")
        error = abs(float(metric.compute() - exact))
        assert error <= float(metric.bound()) + 1e-12
        assert error < 1e-3


def test_bound_is_for_l1() -> None:
    metric = CalibrationError(binning="mass", norm="l2")
    metric.update(PROBS, TARGET)
    with pytest.raises(ValueError, match="norm='l1' only"):
        metric.bound()


def test_streamed_reliability(make: Make) -> None:
    probs, target = make(500, 3)
    metric = Reliability(num_bins=25)
    metric.update(probs[:200], target[:200])
    metric.update(probs[200:], target[200:])
    for ours, exact in zip(metric.compute(), reliability(probs, target, num_bins=25), strict=True):
        torch.testing.assert_close(ours, exact, equal_nan=True)
