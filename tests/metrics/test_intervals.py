"""Bootstrap intervals: they cover, they pair, and they are the same by either way."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    Accuracy,
    CalibrationError,
    StreamingEvaluation,
    accuracy,
    bootstrap_interval,
    calibration_error,
    compare_predictions,
    evaluate_predictions,
    paired_difference,
)
from sfumato.metrics.evaluate import centred_interval, draw_weights, share_interval

Make = Callable[..., tuple[Tensor, Tensor]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_centred_interval_by_hand() -> None:
    draws = torch.arange(101.0)  # mean 50, quantiles 5 and 95 at level 0.9
    assert centred_interval(draws, 10.0, level=0.9) == (-35, 55)
    assert centred_interval(draws, 10.0, level=0.9, bounds=(0, 50)) == (0, 50)
    assert all(map(math.isnan, centred_interval(torch.tensor([torch.nan]), 1.0, level=0.9)))


def test_weights_count_draws() -> None:
    weights = draw_weights(50, 200, generator=seeded(), device=torch.device("cpu"))
    assert weights.shape == (200, 50)
    assert bool((weights.sum(1) == 50).all())
    # Each count is binomial(50, 1/50): variance 0.98.
    assert float(weights.var()) == pytest.approx(0.98, rel=0.05)


def test_accuracy_interval_is_that_of_a_share(make: Make) -> None:
    probs, target = make(1000, 4)
    value = float(accuracy(probs, target))
    half = 1.96 * math.sqrt(value * (1 - value) / 1000)
    for low, high in (
        bootstrap_interval(accuracy, probs, target, generator=seeded()),
        evaluate_predictions(probs=probs, target=target, resamples=2000, generator=seeded())[
            "accuracy_interval"
        ],
    ):
        assert low == pytest.approx(value - half, abs=half / 5)
        assert high == pytest.approx(value + half, abs=half / 5)


def test_fast_way_agrees_with_a_loop_over_resamples(make: Make) -> None:
    """Every key, resample by resample: the same weights as repeated samples."""
    from sfumato.metrics.evaluate import Evaluation

    probs, target = make(60, 4, temperature=0.5)
    probs = (probs * 50).round() / 50  # ties
    probs = probs / probs.sum(1, keepdim=True)
    options: dict[str, Any] = {"from_logits": False, "num_bins": 7, "ignore_index": -100}
    evaluation = Evaluation(probs, target, validate=True, splits=True, **options)
    draws = evaluation.resample(25, generator=seeded(3))
    weights = draw_weights(60, 25, generator=seeded(3), device=torch.device("cpu"))
    for r in range(25):
        chosen = torch.arange(60).repeat_interleave(weights[r].long())
        plain = evaluate_predictions(probs=probs[chosen], target=target[chosen], num_bins=7)
        for name, value in plain.items():
            if name != "classwise_ace":
                expected = pytest.approx(value, abs=1e-9, nan_ok=True)
                assert float(draws[name][r]) == expected, name
        error = _error_in_the_bins_of(probs, probs[chosen], target[chosen], 7)
        assert float(draws["classwise_ace"][r]) == pytest.approx(error, abs=1e-6)


def _error_in_the_bins_of(whole: Tensor, probs: Tensor, target: Tensor, num_bins: int) -> float:
    """Classwise ACE of a resample, whose bins end where those of the whole sample do."""
    total = 0.0
    for number in range(whole.shape[1]):
        ordered = sorted(whole[:, number].tolist())
        edges = [ordered[len(ordered) * k // num_bins] for k in range(1, num_bins)]
        gaps = [0.0] * num_bins
        for value, label in zip(probs[:, number].tolist(), target.tolist(), strict=True):
            gaps[sum(edge < value for edge in edges)] += value - (label == number)
        total += sum(map(abs, gaps)) / len(target)
    return total / whole.shape[1]


def test_dense_predictions_are_drawn_by_image() -> None:
    # All pixels of an image are alike: resampling pixels would give far too narrow an interval.
    generator = seeded(1)
    right = torch.rand(40, generator=generator) < 0.7
    logits = torch.zeros(40, 2, 8, 8)
    logits[:, 0] = 1.0
    target = (~right).long().view(-1, 1, 1).expand(40, 8, 8)
    result = evaluate_predictions(logits=logits, target=target, resamples=500, generator=generator)
    low, high = result["accuracy_interval"]
    share = float(right.float().mean())
    half = 1.96 * math.sqrt(share * (1 - share) / 40)
    assert high - low == pytest.approx(2 * half, rel=0.2)


def test_dense_resamples_agree_with_a_loop() -> None:
    from sfumato.metrics.evaluate import Evaluation

    logits, target = 3 * torch.randn(6, 3, 4, 5), torch.randint(3, (6, 4, 5))
    target[2, 1] = 255
    options: dict[str, Any] = {"from_logits": True, "num_bins": 15, "ignore_index": 255}
    evaluation = Evaluation(logits, target, validate=True, splits=True, **options)
    draws = evaluation.resample(10, generator=seeded(3))
    weights = draw_weights(6, 10, generator=seeded(3), device=torch.device("cpu"))
    for r in range(10):
        chosen = torch.arange(6).repeat_interleave(weights[r].long())
        plain = evaluate_predictions(logits=logits[chosen], target=target[chosen], ignore_index=255)
        for name, value in plain.items():
            if name == "classwise_ace":  # in the bins of the whole sample
                continue
            # Pixels of one fine cell are taken together.
            assert float(draws[name][r]) == pytest.approx(value, abs=0.02), name
        for name in ("accuracy", "ece", "nll", "brier", "classwise_ece"):
            assert float(draws[name][r]) == pytest.approx(plain[name], abs=1e-6), name


def test_calibration_interval_covers_its_mean(make: Make) -> None:
    values, covered = [], []
    results = []
    for seed in range(60):
        probs, target = make(400, 3, temperature=0.7, seed=seed)
        results.append(
            evaluate_predictions(probs=probs, target=target, resamples=200, generator=seeded(seed))
        )
        values.append(results[-1]["ece"])
    mean = np.mean(values)
    covered = [r["ece_interval"][0] <= mean <= r["ece_interval"][1] for r in results]
    assert 0.85 <= np.mean(covered) <= 1.0


def test_interval_holds_the_value(make: Make) -> None:
    # A calibrated model: plain quantiles of resampled ECE would lie above the measured ECE.
    probs, target = make(2000, 4)
    result = evaluate_predictions(probs=probs, target=target, resamples=300, generator=seeded())
    for name in [key for key in result if not key.endswith("_interval")]:
        low, high = result[f"{name}_interval"]
        assert low <= result[name] <= high, name


def test_same_seed_same_interval(make: Make) -> None:
    probs, target = make(200, 3)
    first, second, other = (
        evaluate_predictions(probs=probs, target=target, resamples=50, generator=seeded(s))
        for s in (1, 1, 2)
    )
    assert first == second
    assert first["ece_interval"] != other["ece_interval"]


def test_impossible_label_gives_an_infinite_interval() -> None:
    probs = torch.tensor([[1.0, 0.0]] + [[0.5, 0.5]] * 20)
    target = torch.ones(21, dtype=torch.long)
    result = evaluate_predictions(probs=probs, target=target, resamples=200, generator=seeded())
    assert result["nll"] == math.inf
    low, high = result["nll_interval"]
    assert math.isfinite(low)
    assert high == math.inf


def test_paired_interval_is_narrower(make: Make) -> None:
    probs, target = make(1000, 4)
    noisy = (probs.log() + 0.2 * torch.randn(1000, 4, generator=seeded())).softmax(1)
    result = compare_predictions(
        probs=(probs, noisy), target=target, resamples=400, generator=seeded()
    )
    alone = evaluate_predictions(probs=probs, target=target, resamples=400, generator=seeded())
    for name in ("accuracy", "nll", "brier"):
        width = alone[f"{name}_interval"][1] - alone[f"{name}_interval"][0]
        assert result[name].high - result[name].low < 0.8 * width, name
        assert result[name].difference == pytest.approx(result[name].second - result[name].first)
    slow = paired_difference(accuracy, probs, noisy, target, resamples=400, generator=seeded())
    assert slow.difference == pytest.approx(result["accuracy"].difference)
    assert slow.low == pytest.approx(result["accuracy"].low, abs=0.01)
    assert slow.high == pytest.approx(result["accuracy"].high, abs=0.01)


def test_comparison_with_itself_is_zero(make: Make) -> None:
    probs, target = make(100, 3)
    result = compare_predictions(probs=(probs, probs), target=target, resamples=50)
    assert all((c.difference, c.low, c.high) == (0, 0, 0) for c in result.values())


def test_both_models_see_the_same_draws(make: Make) -> None:
    # The same predicted classes, but one model has two confidences and the other hundreds.
    probs, target = make(300, 3)
    hard = torch.nn.functional.one_hot(probs.argmax(1), 3).double()
    hard[::2] = 0.9 * hard[::2] + 0.1 / 3
    result = compare_predictions(
        probs=(probs, hard), target=target, resamples=300, generator=seeded()
    )
    assert (result["accuracy"].low, result["accuracy"].high) == (0, 0)
    assert result["ece"].low > 0


def test_as_many_pixels_as_images() -> None:
    logits, target = torch.randn(4, 3, 2, 1), torch.randint(3, (4, 2, 1))
    target[::2] = -100  # four pixels are left, in two of the four images
    result = evaluate_predictions(logits=logits, target=target, resamples=200, generator=seeded())
    low, high = result["nll_interval"]
    assert low < result["nll"] < high
    images = torch.nn.functional.cross_entropy(logits, target, reduction="none").sum((1, 2))
    draws = draw_weights(4, 200, generator=seeded(), device=torch.device("cpu"))
    kept = 2 * draws[:, 1::2].sum(1)
    means = ((draws @ images.double()) / kept)[kept > 0]
    expected = centred_interval(means, result["nll"], level=0.95)
    assert (low, high) == pytest.approx(expected, abs=1e-6)


def test_comparison_from_logits(make: Make) -> None:
    probs, target = make(300, 3)
    pair = (probs.log(), 2 * probs.log())
    result = compare_predictions(logits=pair, target=target, resamples=100, generator=seeded())
    probs_pair = (probs, pair[1].softmax(1))
    same = compare_predictions(probs=probs_pair, target=target, resamples=100, generator=seeded())
    assert result["accuracy"].difference == 0
    for name, each in result.items():
        assert each == pytest.approx(same[name], abs=1e-6), name


def test_streamed_interval_agrees(make: Make) -> None:
    probs, target = make(3000, 4, temperature=0.6)
    metric = StreamingEvaluation()
    metric.update(probs, target)
    streamed = metric.interval(resamples=500, generator=seeded())
    direct = evaluate_predictions(probs=probs, target=target, resamples=500, generator=seeded())
    for name, (low, high) in streamed.items():
        width = direct[f"{name}_interval"][1] - direct[f"{name}_interval"][0]
        assert low == pytest.approx(direct[f"{name}_interval"][0], abs=0.3 * width), name
        assert high == pytest.approx(direct[f"{name}_interval"][1], abs=0.3 * width), name
    single = CalibrationError()
    single.update(probs, target)
    assert single.interval(resamples=500, generator=seeded()) == pytest.approx(
        streamed["ece"], abs=0.003
    )


def test_any_function_can_be_resampled(make: Make) -> None:
    probs, target = make(200, 3)
    error = partial(calibration_error, num_bins=5, norm="l2")
    low, high = bootstrap_interval(error, probs, target, resamples=50, generator=seeded())
    assert low < float(error(probs, target)) < high


def test_bad_input(make: Make) -> None:
    probs, target = make(20, 3)
    with pytest.raises(ValueError, match="at least 2 samples"):
        evaluate_predictions(probs=probs[:1], target=target[:1], resamples=10)
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        bootstrap_interval(accuracy, probs, target, resamples=0)
    with pytest.raises(ValueError, match="level must be in"):
        bootstrap_interval(accuracy, probs, target, level=0.0)
    with pytest.raises(ValueError, match="one length"):
        bootstrap_interval(accuracy, probs, target[:5])
    with pytest.raises(ValueError, match="exactly one of"):
        compare_predictions(target=target)
    with pytest.raises(ValueError, match="must be a pair"):
        compare_predictions(probs=(probs,), target=target)  # type: ignore[arg-type]


def test_all_right_is_no_certainty() -> None:
    probs = torch.tensor([[0.9, 0.1]]).repeat(50, 1)
    target = torch.zeros(50, dtype=torch.int64)
    found = evaluate_predictions(probs=probs, target=target, resamples=20, generator=seeded())
    assert found["accuracy_interval"] == pytest.approx((0.928878, 1.0), abs=1e-6)  # 0.025^(1/50)
    assert found["accuracy_at_80_interval"] == pytest.approx((0.911903, 1.0), abs=1e-6)
    metric = Accuracy()
    metric.update(probs, target)
    assert metric.interval(resamples=20) == pytest.approx((0.928878, 1.0), abs=1e-6)
    images = probs.view(5, 10, 2).movedim(2, 1)  # five images of ten pixels count as five
    found = evaluate_predictions(probs=images, target=target.view(5, 10), resamples=20)
    assert found["accuracy_interval"] == pytest.approx((0.478176, 1.0), abs=1e-6)


@pytest.mark.parametrize(("count", "share"), [(50, 0.98), (300, 0.997), (40, 0.5), (200, 0.9)])
def test_interval_of_a_share_covers(count: int, share: float) -> None:
    """Over the binomial distribution of the hits, exactly; a bootstrap covered 59 to 63 %."""
    hits = torch.arange(count + 1, dtype=torch.float64)
    chance = torch.distributions.Binomial(count, torch.tensor(share).double()).log_prob(hits).exp()
    covered = 0.0
    for hit, weight in zip(hits.tolist(), chance.tolist(), strict=True):
        if weight > 1e-9:
            low, high = share_interval(hit / count, None, units=count, level=0.95)
            covered += weight * (low <= share <= high)
    assert 0.95 <= covered <= 1


def test_dependent_hits_count_as_fewer() -> None:
    """Images of ten pixels that are right or wrong together: as wide as of the images alone."""
    draws = torch.distributions.Binomial(40, torch.tensor(0.7)).sample((20_000,)).double() / 40
    found = share_interval(0.7, draws, units=400, level=0.95)
    assert found == pytest.approx(share_interval(0.7, None, units=40, level=0.95), abs=0.01)
