"""A run as its user sees it: a directory with everything in it, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato._core.files import read_json
from sfumato.engine import DivergenceError, RunConfig, fingerprint, load_weights, parse, run
from sfumato.metrics import evaluate_predictions


def test_directory_holds_the_whole_run(tmp_path: Path, tiny: dict[str, Any]) -> None:
    config = parse(RunConfig, tiny)
    done = run(config, tmp_path, show=False)
    assert done.path == tmp_path / fingerprint(config)
    assert parse(RunConfig, done.config()) == config
    assert [record["epoch"] for record in done.log()] == [0, 1, 2]
    assert {"train_loss", "train_accuracy", "validation_ece", "learning_rate"} <= set(done.log()[0])
    found = done.predictions("test")
    assert found["logits"].shape == (50, 10)
    assert np.array_equal(found["index"], np.sort(found["index"]))
    expected = evaluate_predictions(
        logits=torch.from_numpy(found["logits"]), target=torch.from_numpy(found["labels"])
    )
    metrics = done.metrics()["test"]
    for name in ("accuracy", "nll", "ece", "aece"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-6)
        low, high = metrics[f"{name}_interval"]
        assert low <= high
    assert sum(metrics["reliability"]["counts"]) == 50
    mistakes = read_json(done.path / "samples.json")["samples"]
    wrong = found["index"][found["logits"].argmax(1) != found["labels"]]
    assert len(mistakes) == min(12, len(wrong))
    assert {each["index"] for each in mistakes} <= set(wrong.tolist())
    assert any(name.startswith("stages.") for name in load_weights(done.checkpoint))


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path, tiny: dict[str, Any]) -> None:
    first = run(parse(RunConfig, tiny), tmp_path / "a", show=False)
    again = run(parse(RunConfig, tiny), tmp_path / "b", show=False)
    other = run(parse(RunConfig, {**tiny, "seed": 1}), tmp_path / "a", show=False)
    weights = [(d.checkpoint / "model.safetensors").read_bytes() for d in (first, again, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_finished_run_is_never_touched(tmp_path: Path, tiny: dict[str, Any]) -> None:
    config = parse(RunConfig, tiny)
    done = run(config, tmp_path, show=False)
    before = {p: p.stat().st_mtime_ns for p in done.path.rglob("*")}
    run(config, tmp_path, show=False)
    assert {p: p.stat().st_mtime_ns for p in done.path.rglob("*")} == before
    with pytest.raises(FileExistsError, match="never overwritten"):
        done.write_metrics({})


def test_divergence_says_where_and_what_to_try(tmp_path: Path, tiny: dict[str, Any]) -> None:
    train = {"epochs": 2, "batch_size": 32, "learning_rate": 1e12, "clip_norm": None}
    config = parse(RunConfig, {**tiny, "train": {**train, "schedule": "constant"}})
    with pytest.raises(DivergenceError, match=r"epoch \d.*train\.learning_rate"):
        run(config, tmp_path, show=False)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precision(tmp_path: Path, tiny: dict[str, Any], precision: str) -> None:
    tiny["train"] |= {"precision": precision, "epochs": 1}
    done = run(parse(RunConfig, tiny), tmp_path, show=False)
    assert np.isfinite(done.predictions("test")["logits"]).all()


def test_batch_larger_than_the_data_and_layouts(tmp_path: Path, tiny: dict[str, Any]) -> None:
    tiny["train"] |= {"batch_size": 500, "epochs": 1, "channels_last": False}
    assert len(run(parse(RunConfig, tiny), tmp_path, show=False).log()) == 1
