"""Scaling in an audit: shown as a repair only where it is one; zeros, bounds and harm are said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit import audit
from sfumato.engine.runs.prediction_files import PredictionFile, PredictionFileError
from sfumato.report.audit_sentences import scaling_sentence, sentences, warnings_of


def _file(factor: float, *, seed: int = 0, name: str = "model") -> PredictionFile:
    """Predictions that are `factor` times too sure of labels drawn from their own distribution."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1500, 4, generator=generator) * 1.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return PredictionFile(name, labels=labels, logits=logits * factor)


def test_probabilities_of_zero_in_a_real_file(real_data: Callable[[str], Path]) -> None:
    """It ended at temperature 100, with an ECE of 67 % instead of 20 %, without a word."""
    probs = torch.from_numpy(np.load(real_data("predictions/20news-probs.npy")))
    labels = torch.from_numpy(np.load(real_data("predictions/20news-labels.npy"))).long()
    test, held_out = (
        PredictionFile("news", labels=labels[part::2], probs=probs[part::2]) for part in (0, 1)
    )
    found = audit([test], [held_out], resamples=50)
    scaled = found["models"][0]["scaled"]
    impossible = int((held_out.probabilities.gather(1, held_out.labels[:, None]) == 0).sum())
    assert [f"{impossible} of 3,766 held-out labels" in text for text in scaled["warnings"]] == [
        True
    ]
    assert 0 < scaled["uniform"] < 0.99
    assert 0.01 < scaled["temperature"] < 1
    assert scaled["metrics"]["ece"] < 0.03 < 0.2 < found["models"][0]["metrics"]["ece"]
    assert scaled["verdict"] == "better"
    assert "NLL infinite to 0." in scaling_sentence(found["models"][0])


def test_harm_is_never_a_repair() -> None:
    """Fitted on predictions of another kind, the temperature makes good ones worse."""
    found = audit([_file(1.0)], [_file(4.0, seed=1)], resamples=100)
    assert found["models"][0]["scaled"]["verdict"] == "worse"
    assert "makes model worse, don't use it" in scaling_sentence(found["models"][0])


def test_no_gain_is_not_called_one() -> None:
    found = audit([_file(1.0)], [_file(1.0, seed=1)], resamples=100)
    assert found["models"][0]["scaled"]["verdict"] == "can't tell"
    assert "no measurable gain" in scaling_sentence(found["models"][0])
    assert warnings_of(found) == []


def test_bound_and_own_predictions_are_warned_of() -> None:
    logits = _file(1.0).predictions
    hopeless = PredictionFile("model", labels=logits.argmin(1), logits=logits)
    found = audit([hopeless], [hopeless], resamples=20)
    bound, own = warnings_of(found)
    assert "model: the temperature ended at its bound" in bound
    assert "holds the audited predictions themselves" in own


def test_without_zeros_the_temperature_is_that_of_the_logits() -> None:
    file, held_out = _file(3.0), _file(3.0, seed=1)
    as_probs = [
        PredictionFile(each.name, labels=each.labels, probs=each.probabilities)
        for each in (file, held_out)
    ]
    first = audit([file], [held_out], resamples=0)["models"][0]["scaled"]
    second = audit([as_probs[0]], [as_probs[1]], resamples=0)["models"][0]["scaled"]
    assert second["uniform"] is None
    assert second["temperature"] == pytest.approx(first["temperature"], rel=1e-4)
    assert first["verdict"] == "not resampled"


def test_one_prediction_is_audited_without_intervals() -> None:
    one = PredictionFile("one", labels=torch.tensor([1]), probs=torch.tensor([[0.7, 0.3]]))
    found = audit([one], resamples=1000)
    model = found["models"][0]
    assert model["verdict"] == "can't tell"
    assert "ece_interval" not in model["metrics"]
    assert sentences(found) == ["one: one prediction can't tell whether confidences are right."]
    with pytest.raises(PredictionFileError, match="share one sample"):
        audit([one, one], resamples=10)


def test_bad_validation_files_are_named() -> None:
    bad = PredictionFile("held", labels=torch.tensor([0]), probs=torch.tensor([[0.9, -0.3, 0, 0]]))
    with pytest.raises(PredictionFileError, match=r"held: probs must not be negative, got -0\.3"):
        audit([_file(1.0)], [bad], resamples=0)
    other = PredictionFile("held", labels=torch.tensor([0]), probs=torch.tensor([[0.9, 0.1]]))
    with pytest.raises(PredictionFileError, match="held has 2 classes, model has 4"):
        audit([_file(1.0)], [other], resamples=0)
