"""Thresholds of sums: the promise is about what the reported confidence accepts."""

from __future__ import annotations

from bisect import bisect_left

import pytest
import torch

from sfumato.engine.evaluation.audit import audit
from sfumato.engine.evaluation.audit_tallies import Summed, Tallies
from sfumato.engine.evaluation.audit_thresholds import Target
from sfumato.engine.runs.prediction_rows import PredictionFile

RISKS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)


def _tallies(file: PredictionFile) -> Tallies:
    found = Tallies()
    found.add(file)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [2.0, 8.0])
def test_a_threshold_of_sums_accepts_the_rows_that_it_counts(
    dtype: torch.dtype, spread: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(5000, 4, generator=generator, dtype=dtype)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    file = PredictionFile("m", labels, probs=logits.softmax(1))
    tallies = _tallies(file)
    confidence, predicted = file.predictions.max(1)
    found = [audit([Summed("m", tallies)], resamples=0, target=Target(risk)) for risk in RISKS]
    chosen = [each["models"][0]["thresholds"]["accept"] for each in found]
    assert sum(each["confidence"] is not None for each in chosen) >= 5
    for each, model in zip(chosen, (each["models"][0] for each in found), strict=True):
        if each["confidence"] is None:
            continue
        kept = confidence.double() >= each["confidence"]
        assert int(kept.sum()) == each["accepted"]
        assert int((predicted != labels)[kept].sum()) == each["errors"]
        curve = model["curve"]
        place = bisect_left(curve["threshold"], each["confidence"])
        assert (curve["kept"][place], curve["wrong"][place]) == (each["accepted"], each["errors"])


def test_empty_cells_do_not_move_a_threshold() -> None:
    """Of 0.3 and 0.6 alone: all that lies between is a threshold of the upper ones."""
    sure = torch.tensor([0.3] * 500 + [0.6] * 500, dtype=torch.float64)
    rest = ((1 - sure) / 4)[:, None].expand(-1, 4)
    labels = torch.tensor([1] * 500 + [0] * 500)
    file = PredictionFile("m", labels, probs=torch.cat([sure[:, None], rest], 1))
    summed = Summed("m", _tallies(file))
    accept = audit([summed], resamples=0, target=Target(0.1))["models"][0]["thresholds"]["accept"]
    exact = audit([file], resamples=0, target=Target(0.1))["models"][0]["thresholds"]["accept"]
    assert (
        (accept["accepted"], accept["errors"]) == (exact["accepted"], exact["errors"]) == (500, 0)
    )
    assert accept["confidence"] == pytest.approx(exact["confidence"], abs=1e-4)
