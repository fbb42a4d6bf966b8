"""Runs of 0 epochs: networks that were trained elsewhere, in one table with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfumato._core.files import read_json
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.report import compare_methods, read_study, write_report
from sfumato.study import plan, run_study
from sfumato.study.config import StudyConfig

DATA = {"name": "scenes", "train": 40, "validation": 20, "test": 30, "size": 16}
MODEL = {"name": "resnet", "depth": 8, "width": 4}


def config(**changes: Any) -> RunConfig:
    content = {
        "data": DATA,
        "model": MODEL,
        "train": {"epochs": 1, "batch_size": 20},
        "evaluate": {"resamples": 10, "corruptions": ["fog"], "severities": [1]},
    }
    return parse(RunConfig, {**content, **changes})


def test_weights_elsewhere_have_the_numbers_of_their_training(tmp_path: Path) -> None:
    trained = run(config(), tmp_path / "trained", show=False)
    weights = str(trained.checkpoint / "model.safetensors")
    facts = load_network(trained).facts
    untrained = config(
        model={**MODEL, "weights": weights},
        train={"epochs": 0, "batch_size": 20, "warmup_epochs": 1.0},  # the recipe's, unused
        standardise={"mean": list(facts.mean), "std": list(facts.std)},
    )
    directory = run(untrained, tmp_path / "untrained", show=False)
    assert directory.metrics() == trained.metrics()
    cost = read_json(directory.path / "cost.json")
    assert (cost["training_seconds"], cost["epochs"]) == (0, 0)
    assert cost["inference_seconds_per_image"] > 0
    before = directory.metrics()
    (directory.path / "metrics.json").unlink()  # as if it had been killed
    assert run(untrained, tmp_path / "untrained", show=False).metrics() == before
    Path(weights).unlink()  # the run has a copy of them
    assert load_network(directory).facts == facts


def test_other_statistics_give_other_numbers(tmp_path: Path) -> None:
    trained = run(config(), tmp_path, show=False)
    weights = str(trained.checkpoint / "model.safetensors")
    settings: dict[str, Any] = {"model": {**MODEL, "weights": weights}}
    plain = {"mean": [0.0] * 3, "std": [1.0] * 3}
    other = run(
        config(**settings, train={"epochs": 0}, standardise=plain), tmp_path, show=False
    ).metrics()
    assert other["test"]["nll"] != trained.metrics()["test"]["nll"]


@pytest.mark.slow
def test_in_a_study_beside_what_is_trained(tmp_path: Path) -> None:
    trained = run(config(), tmp_path / "elsewhere", show=False)
    weights = str(trained.checkpoint / "model.safetensors")
    methods = {
        "trained here": {},
        "trained elsewhere": {"model": {**MODEL, "weights": weights}, "train": {"epochs": 0}},
    }
    recipe = config(seed=0).model_dump(mode="json", include={"data", "model", "train", "evaluate"})
    content = {"name": "both", "recipe": recipe, "methods": methods, "seeds": [0, 1]}
    study = parse(StudyConfig, content)
    planned = [(run.method, run.seed) for run in plan(study)]
    assert planned == [("trained here", 0), ("trained elsewhere", 0), ("trained here", 1)]
    lines: list[str] = []
    outcome = run_study(study, tmp_path / "both", show=False, announce=lines.append)
    assert outcome.failed == []
    results = read_study(tmp_path / "both")
    rows = {row.name: row for row in compare_methods(results).rows}
    assert rows["trained elsewhere"].cost.train_seconds is None
    assert "test.ece" in rows["trained elsewhere"].differences
    assert write_report(tmp_path / "both").exists()
    assert any("trained elsewhere, seed 0: evaluating" in line for line in lines)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not trained: give its file, as weights"):
        config(train={"epochs": 0})
    with pytest.raises(ConfigError, match="one number for each channel, std above 0"):
        config(standardise={"mean": [0.5], "std": [0.0]})
    trained = run(config(), tmp_path, show=False)
    weights = str(trained.checkpoint / "model.safetensors")
    wrong = config(
        model={**MODEL, "weights": weights},
        train={"epochs": 0},
        standardise={"mean": [0.5], "std": [0.2]},
    )
    with pytest.raises(ValueError, match="mean must have 3 entries"):
        run(wrong, tmp_path / "wrong", show=False)
