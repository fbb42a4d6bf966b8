"""Normalised logits as a part of a run's evaluation."""

from __future__ import annotations

import pytest
import torch

from sfumato.engine import ConfigError, RunConfig, parse
from sfumato.engine.evaluation.splits import Replicates, measure_normalised, ranked_logits
from sfumato.engine.runs.directory import Predictions
from sfumato.metrics import aurc
from sfumato.predictions import LogitNormaliser


def _spoiled(count: int) -> Predictions:
    """The larger the logits the rarer the mistakes, while softmax is the same for all."""
    size = torch.rand(count) * 4 + 1
    labels = torch.randint(0, 4, (count,))
    wrong = torch.rand(count) < 0.8 / size
    shown = torch.where(wrong, (labels + 1) % 4, labels)
    logits = torch.nn.functional.one_hot(shown, 4) * 2.0
    noise = torch.randn(count, 4) * size[:, None] / 8
    noise -= noise.mean(1, keepdim=True)
    noise[torch.arange(count), shown] = 0
    return Predictions(logits + noise, labels, torch.arange(count))


def test_ranks_are_those_of_the_scores() -> None:
    for scores in (torch.randn(50, 5).log_softmax(1), torch.rand(50, 5) * 9):
        probs = ranked_logits(scores).softmax(1)
        assert torch.equal(probs.argmax(1), scores.argmax(1))
        assert torch.equal(probs.amax(1).argsort(), scores.double().amax(1).argsort())


def test_it_is_measured_with_the_order_of_the_validation_set() -> None:
    held_out, test = _spoiled(800), _spoiled(800)
    found = measure_normalised(held_out, test, Replicates(0))
    scorer = LogitNormaliser().fit(logits=held_out.logits, target=held_out.labels)
    assert found.get("order") == scorer.order
    expected = aurc(ranked_logits(scorer(test.logits)).softmax(1), test.labels)
    assert found["aurc"] == pytest.approx(float(expected), abs=1e-9)
    assert set(found) - {"order"} == {"aurc", "augrc", "accuracy_at_80"}


def test_for_classifiers_only() -> None:
    content = {"task": "segment", "data": "scene_streams", "model": "unet"}
    with pytest.raises(ConfigError, match=r"evaluate\.normalised is for task: classify"):
        parse(RunConfig, {**content, "evaluate": {"normalised": True}}, "test")
