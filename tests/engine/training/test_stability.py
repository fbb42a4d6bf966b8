"""Squared penalties on logits at an absurd rate: clipping keeps them from diverging."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sfumato.engine import DivergenceError, RunConfig, parse, run

TRAIN = {"epochs": 4, "batch_size": 25, "learning_rate": 10.0, "clip_norm": 2.0}


@pytest.fixture
def steep(tiny: dict[str, Any]) -> dict[str, Any]:
    """A margin of 0.5 makes the penalties act on nearly every sample."""
    return {**tiny, "data": {**tiny["data"], "train": 200}}


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "mbls", "margin": 0.5},
        {"name": "acls", "margin": 0.5, "form": "paper"},
        {"name": "acls", "margin": 0.5, "form": "released"},
    ],
    ids=lambda loss: f"{loss['name']}-{loss.get('form', '')}",
)
def test_clipped_they_survive_a_high_rate(
    tmp_path: Path, steep: dict[str, Any], loss: dict[str, Any]
) -> None:
    config = parse(RunConfig, {**steep, "loss": loss, "train": TRAIN})
    log = run(config, tmp_path, show=False).log()
    assert all(math.isfinite(record["train_loss"]) for record in log)
    assert all(math.isfinite(record["validation_nll"]) for record in log)


def test_without_clipping_it_diverges(tmp_path: Path, steep: dict[str, Any]) -> None:
    train = {key: value for key, value in TRAIN.items() if key != "clip_norm"}  # the default
    config = parse(RunConfig, {**steep, "loss": {"name": "acls", "margin": 0.5}, "train": train})
    with pytest.raises(DivergenceError, match=r"ACLSLoss.*train\.clip_norm"):
        run(config, tmp_path, show=False)
