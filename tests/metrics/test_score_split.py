"""NLL and Brier score in calibration and refinement."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from sfumato.metrics import (
    StreamingScoreSplit,
    bootstrap_interval,
    brier_score,
    evaluate_predictions,
    negative_log_likelihood,
    score_split,
)
from sfumato.metrics.scores import Score


def draw(n: int = 800, factor: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    true = 1.5 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
    return (factor * true).softmax(1), labels


@pytest.mark.parametrize("score", ["nll", "brier"])
@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_against_a_search_for_the_temperature(score: Score, factor: float) -> None:
    probs, labels = draw(factor=factor)
    measure = negative_log_likelihood if score == "nll" else brier_score

    def after(log_temperature: float) -> float:
        scaled = (probs.log() / np.exp(log_temperature)).softmax(1)
        return float(measure(scaled, labels))

    best = minimize_scalar(after, bounds=(-2.3, 2.3), method="bounded")
    parts = score_split(probs, labels, score=score)
    assert float(parts.score) == pytest.approx(after(0.0))
    assert float(parts.refinement) == pytest.approx(best.fun, abs=3e-4)
    assert float(parts.temperature) == pytest.approx(np.exp(best.x), rel=0.03)
    assert float(parts.calibration) == pytest.approx(after(0.0) - best.fun, abs=3e-4)
    assert float(parts.calibration) >= 0


def test_a_stream_is_the_whole_and_has_an_interval() -> None:
    probs, labels = draw()
    metric = StreamingScoreSplit(score="brier")
    for part, own in zip(probs.split(300), labels.split(300), strict=True):
        metric.update(part, own)
    torch.testing.assert_close(
        tuple(metric.compute()), tuple(score_split(probs, labels, score="brier"))
    )
    interval = bootstrap_interval(
        lambda p, y: score_split(p, y).calibration,
        probs,
        labels,
        resamples=100,
        generator=torch.Generator().manual_seed(0),
    )
    assert interval[0] < float(score_split(probs, labels).calibration) < interval[1]


def test_edges() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    parts = score_split(probs, torch.tensor([1, 0]))
    assert parts.score.isinf()
    assert parts.calibration.isnan()
    assert score_split(probs, torch.tensor([1, 0]), score="brier").score.isfinite()
    with pytest.raises(ValueError, match="score must be one of"):
        score_split(probs, torch.tensor([1, 0]), score="ece")  # type: ignore[arg-type]


def test_in_the_evaluation_with_intervals() -> None:
    probs, labels = draw(2500)  # more than 2,000: drawn in blocks
    settings = {"resamples": 60, "generator": torch.Generator().manual_seed(0)}
    found = evaluate_predictions(probs=probs, target=labels, **settings)
    for name in ("nll", "brier"):
        parts = score_split(probs, labels, score=name)  # type: ignore[arg-type]
        assert found[f"{name}_calibration"] == pytest.approx(float(parts.calibration))
        assert found[f"{name}_refinement"] == pytest.approx(float(parts.refinement))
        low, high = found[f"{name}_calibration_interval"]
        assert low < found[f"{name}_calibration"] < high
    few = evaluate_predictions(probs=probs[:200], target=labels[:200], **settings)
    low, high = few["nll_refinement_interval"]
    assert low < few["nll_refinement"] < high
    impossible = probs.clone()
    impossible[0] = torch.nn.functional.one_hot((labels[0] + 1) % 4, 4).double()
    found = evaluate_predictions(probs=impossible, target=labels, resamples=20)
    assert np.isnan(found["nll_calibration"])
    assert np.isnan(found["nll_calibration_interval"]).all()


def test_logits_that_leave_no_probability() -> None:
    """exp(-200) is 0 in single precision; the parts of a likelihood that is finite are, too."""
    logits, labels = torch.tensor([[200.0, 0.0], [0.0, 3.0]]), torch.tensor([1, 1])
    found = evaluate_predictions(logits=logits, target=labels)
    assert found["nll_calibration"] + found["nll_refinement"] == pytest.approx(found["nll"])
    metric = StreamingScoreSplit(from_logits=True)
    metric.update(logits, labels)
    assert float(metric.compute().score) == pytest.approx(found["nll"])


def test_numpy_arrays_are_taken() -> None:
    probs, labels = draw(100)
    found = evaluate_predictions(probs=probs.numpy(), target=labels.numpy())
    assert found == evaluate_predictions(probs=probs, target=labels)
    assert float(score_split(probs.numpy(), labels.numpy()).score) == pytest.approx(found["nll"])


def test_no_part_is_below_zero_where_all_is_right() -> None:
    labels = torch.arange(200) % 5
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[torch.arange(200), labels] = logits.amax(1) + 1
    # A parabola through nearly nothing dips below it.
    assert float(score_split((3 * logits).softmax(1), labels, score="nll").refinement) == 0.0
