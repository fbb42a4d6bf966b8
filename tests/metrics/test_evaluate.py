"""All numbers at once: the numbers of the single functions, and nothing guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sfumato.metrics as metrics

Make = Callable[..., tuple[Tensor, Tensor]]
KEYS = {
    "accuracy": metrics.accuracy,
    "nll": metrics.negative_log_likelihood,
    "brier": metrics.brier_score,
    "ece": metrics.calibration_error,
    "aece": lambda p, y: metrics.calibration_error(p, y, binning="mass"),
    "mce": lambda p, y: metrics.calibration_error(p, y, norm="max"),
    "classwise_ece": metrics.classwise_calibration_error,
    "overconfidence": metrics.overconfidence,
    "underconfidence": metrics.underconfidence,
    "average_confidence": metrics.average_confidence,
    "aurc": metrics.aurc,
    "augrc": metrics.augrc,
    "accuracy_at_80": metrics.accuracy_at_coverage,
    "classwise_ace": lambda p, y: metrics.classwise_calibration_error(p, y, binning="mass"),
    "nll_calibration": lambda p, y: metrics.score_split(p, y).calibration,
    "nll_refinement": lambda p, y: metrics.score_split(p, y).refinement,
    "brier_calibration": lambda p, y: metrics.score_split(p, y, score="brier").calibration,
    "brier_refinement": lambda p, y: metrics.score_split(p, y, score="brier").refinement,
}
MANY_PASSES = set(list(KEYS)[-5:])


def test_each_key_is_its_function(make: Make) -> None:
    probs, target = make(700, 6, temperature=0.5)
    result = metrics.evaluate_predictions(probs=probs, target=target)
    assert result.keys() == KEYS.keys()
    for name, function in KEYS.items():
        assert result[name] == pytest.approx(float(function(probs, target))), name
        assert isinstance(result[name], float)


def test_what_takes_many_passes_can_be_left_out(make: Make) -> None:
    probs, target = make(100, 3)
    result = metrics.evaluate_predictions(probs=probs, target=target, splits=False, resamples=10)
    assert not MANY_PASSES & {name.removesuffix("_interval") for name in result}
    compared = metrics.compare_predictions(probs=(probs, probs), target=target, resamples=10)
    assert compared.keys() == KEYS.keys()


def test_logits_and_probabilities_agree(make: Make) -> None:
    probs, target = make(300, 6)
    from_logits = metrics.evaluate_predictions(logits=probs.log(), target=target)
    from_probs = metrics.evaluate_predictions(probs=probs, target=target)
    assert from_logits == pytest.approx(from_probs, abs=1e-12)


def test_intervals_come_with_resamples(make: Make) -> None:
    probs, target = make(100, 3)
    result = metrics.evaluate_predictions(probs=probs, target=target, resamples=20)
    assert result.keys() == KEYS.keys() | {f"{name}_interval" for name in KEYS}


def test_number_of_bins_is_passed_on(make: Make) -> None:
    probs, target = make(300, 3)
    result = metrics.evaluate_predictions(probs=probs, target=target, num_bins=4)
    error = metrics.calibration_error(probs, target, num_bins=4)
    assert result["ece"] == pytest.approx(float(error))


def test_dense_with_ignored_pixels(make: Make) -> None:
    probs, target = make(2 * 3 * 5, 4)
    target[::4] = 255
    dense = probs.view(2, 3, 5, 4).permute(0, 3, 1, 2)
    keep = target != 255
    result = metrics.evaluate_predictions(
        probs=dense, target=target.view(2, 3, 5), ignore_index=255
    )
    plain = metrics.evaluate_predictions(probs=probs[keep], target=target[keep])
    assert result == pytest.approx(plain)


def test_ignored_samples_with_resamples(make: Make) -> None:
    probs, target = make(50, 3)
    target[::3] = -100
    result = metrics.evaluate_predictions(probs=probs, target=target, resamples=30)
    assert result["accuracy_interval"][0] < result["accuracy"] < result["accuracy_interval"][1]


def test_nothing_to_measure_is_nan() -> None:
    probs, target = torch.full((3, 2), 0.5), torch.full((3,), -100)
    result = metrics.evaluate_predictions(probs=probs, target=target)
    assert all(math.isnan(value) for value in result.values())


def test_inputs_are_said_not_guessed(make: Make) -> None:
    probs, target = make(10, 3)
    with pytest.raises(ValueError, match="exactly one of logits= and probs=, got none"):
        metrics.evaluate_predictions(target=target)
    with pytest.raises(ValueError, match="exactly one of logits= and probs=, got both"):
        metrics.evaluate_predictions(logits=probs, target=target, probs=probs)
    with pytest.raises(ValueError, match="sum to one"):
        metrics.evaluate_predictions(probs=probs.log().exp() * 2, target=target)
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        metrics.evaluate_predictions(probs=probs, target=target, num_bins=0)
    with pytest.raises(ValueError, match="resamples must be at least 0"):
        metrics.evaluate_predictions(probs=probs, target=target, resamples=-1)


def test_streamed_numbers_agree(make: Make) -> None:
    probs, target = make(3000, 6, temperature=0.5)
    metric = metrics.StreamingEvaluation()
    for part, labels in zip(probs.split(400), target.split(400), strict=True):
        metric.update(part, labels)
    values = metric.compute()
    exact = metrics.evaluate_predictions(probs=probs, target=target)
    assert values.keys() == exact.keys() - {"brier", "classwise_ece"} - MANY_PASSES
    for name, value in values.items():
        rough = name in ("aece", "aurc", "augrc", "accuracy_at_80")
        assert float(value) == pytest.approx(exact[name], abs=1e-3 if rough else 1e-12), name


def test_probabilities_are_no_logits() -> None:
    probs, target = torch.randn(60, 3).softmax(1), torch.randint(3, (60,))
    for given in (probs, probs.numpy()):
        with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
            metrics.evaluate_predictions(logits=given, target=target)
        with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
            metrics.compare_predictions(logits=(probs.log(), given), target=target, resamples=10)
    assert metrics.evaluate_predictions(logits=probs, target=target, any_logits=True)["nll"] > 0
    assert metrics.evaluate_predictions(logits=probs, target=target, validate=False)


@pytest.mark.parametrize("dense", [False, True])
def test_whole_weights_are_copies(dense: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (60, 4, 2) if dense else (60, 4)
    probs = torch.randn(*shape, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(4, (60, 2) if dense else (60,), generator=generator)
    weight = torch.randint(4, (60,), generator=generator)
    found = metrics.evaluate_predictions(probs, target, sample_weight=weight)
    copies = probs.repeat_interleave(weight, 0), target.repeat_interleave(weight, 0)
    assert found == pytest.approx(metrics.evaluate_predictions(*copies), abs=1e-9)


@pytest.mark.parametrize("count", [500, 5000])  # single samples, and random blocks
def test_resamples_draw_samples_with_their_weights(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(count, 4, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(4, (count,), generator=generator)
    options: dict[str, Any] = {"resamples": 200, "splits": False}
    none = metrics.evaluate_predictions(
        probs, target, **options, generator=torch.Generator().manual_seed(1)
    )
    same = metrics.evaluate_predictions(
        probs,
        target,
        sample_weight=torch.full((count,), 0.5),
        **options,
        generator=torch.Generator().manual_seed(1),
    )
    for name in ("nll", "brier", "ece", "aece", "aurc", "classwise_ece"):
        assert same[f"{name}_interval"] == pytest.approx(none[f"{name}_interval"], abs=1e-6)
    # Of samples that count unequally fewer are known.
    weight = torch.rand(count, generator=generator) ** 8
    found = metrics.evaluate_predictions(probs, target, sample_weight=weight, **options)
    for name in ("nll", "brier", "accuracy"):
        ends = [each[f"{name}_interval"] for each in (found, none)]
        wide, narrow = (high - low for low, high in ends)
        effective = float(weight.sum() ** 2 / weight.square().sum())
        assert wide / narrow == pytest.approx((count / effective) ** 0.5, rel=0.3)


def test_bootstrap_of_a_weighted_metric() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
    target, weight = torch.tensor([0, 1] * 40 + [1, 0] * 10), torch.arange(100) % 3
    low, high = metrics.bootstrap_interval(
        lambda p, t, w: metrics.accuracy(p, t, sample_weight=w),
        probs,
        target,
        weight,
        generator=torch.Generator().manual_seed(1),
    )
    assert low < float(metrics.accuracy(probs, target, sample_weight=weight)) < high
    stream = metrics.StreamingEvaluation()
    stream.update(probs, target, weight / 2)
    with pytest.raises(ValueError, match="evaluate_predictions"):
        stream.interval()
