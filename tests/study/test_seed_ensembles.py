"""`predict: {ensemble: seeds}`: the deep ensemble over a study's seeds as a method in its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato._core.files import read_json
from sfumato.engine import ConfigError, RunConfig, load_network, load_predictor, parse
from sfumato.engine.training.loop import Trainer
from sfumato.metrics import evaluate_predictions
from sfumato.report import compare_methods, read_study, write_report
from sfumato.study import plan, run_study
from sfumato.study.config import PlannedRun, StudyConfig, select
from sfumato.study.jobs import group_jobs, run_directory

RECIPE: dict[str, Any] = {
    "data": {"name": "scenes", "train": 40, "validation": 20, "test": 30, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.1},
    "train": {"epochs": 1, "batch_size": 20},
    "evaluate": {"resamples": 10},
}
ENSEMBLE = {"predict": {"ensemble": "seeds"}}


def study_of(methods: dict[str, Any], seeds: list[int], **recipe: Any) -> StudyConfig:
    content = {"name": "seeds", "recipe": {**RECIPE, **recipe}, "methods": methods, "seeds": seeds}
    return parse(StudyConfig, content)


def finish(study: StudyConfig, folder: Path, **settings: Any) -> tuple[list[PlannedRun], list[str]]:
    lines: list[str] = []
    outcome = run_study(study, folder, show=False, announce=lines.append, **settings)
    return outcome.failed, lines


@pytest.mark.usefixtures("in_this_process")
def test_ensemble_is_a_row_of_the_study(tmp_path: Path) -> None:
    methods = {"ensemble": ENSEMBLE, "single": {}}  # planned after what it needs all the same
    study = study_of(methods, [0, 1, 2])
    assert finish(study, tmp_path)[0] == []
    *singles, planned = plan(study)
    assert (planned.method, planned.config.predict.ensemble) == ("ensemble", [0, 1, 2])
    found = [run_directory(each, tmp_path / "runs").read_predictions("test") for each in singles]
    probs = torch.stack([each.logits.softmax(1) for each in found])
    directory = run_directory(planned, tmp_path / "runs")
    metrics = directory.metrics()
    for size in (1, 2, 3):
        expected = evaluate_predictions(probs=probs[:size].mean(0), target=found[0].labels)
        for name in ("nll", "accuracy", "ece"):
            curve = metrics["ensemble"][name]
            assert curve[size - 1] == pytest.approx(expected[name], abs=1e-5)
    assert metrics["test"]["nll"] == pytest.approx(metrics["ensemble"]["nll"][2], abs=1e-6)
    costs = [
        read_json(run_directory(each, tmp_path / "runs").path / "cost.json") for each in plan(study)
    ]
    assert costs[3]["training_seconds"] == pytest.approx(
        sum(each["training_seconds"] for each in costs[:3])
    )
    rows = {row.name: row for row in compare_methods(read_study(tmp_path)).rows}
    assert rows["ensemble"].cost.train_seconds == pytest.approx(costs[3]["training_seconds"])
    assert "sizes" in write_report(tmp_path).read_text(encoding="utf-8")
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    torch.testing.assert_close(load_predictor(directory.path)(images).sum(1), torch.ones(2))
    with pytest.raises(FileNotFoundError, match="load_predictor gives it whole"):
        load_network(directory.path)
    (directory.path / "metrics.json").unlink()  # as if it had been killed: the same numbers again
    assert finish(study, tmp_path)[0] == []
    assert directory.metrics() == metrics


@pytest.mark.usefixtures("in_this_process")
def test_seed_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of({"single": {}, "ensemble": ENSEMBLE}, [0, 1])
    usual = Trainer.fit

    def failing(self: Trainer) -> Any:
        if self.seed == 1:
            raise RuntimeError("no network today")
        return usual(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "fit", failing)
        failed, lines = finish(study, tmp_path)
    assert [(run.method, run.seed) for run in failed] == [("single", 1), ("ensemble", 0)]
    assert any("seed 1 has no trained network" in line for line in lines)
    assert finish(study, tmp_path)[0] == []


@pytest.mark.usefixtures("in_this_process")
def test_directories_of_other_runs(tmp_path: Path) -> None:
    """Networks of another standardisation get images as they know them."""
    plain = {"mean": [0.0] * 3, "std": [1.0] * 3}
    first = study_of({"single": {}}, [0, 1], standardise=plain)
    assert finish(first, tmp_path / "first")[0] == []
    runs = [run_directory(each, tmp_path / "first/runs") for each in plan(first)]
    paths = [str(each.path) for each in runs]
    study = study_of({"others": {"predict": {"ensemble": paths}}}, [0])
    assert finish(study, tmp_path / "second")[0] == []
    (planned,) = plan(study)
    found = run_directory(planned, tmp_path / "second/runs").read_predictions("test")
    probs = [each.read_predictions("test").logits.softmax(1) for each in runs]
    torch.testing.assert_close(found.logits.softmax(1), sum(probs) / 2, rtol=1e-4, atol=1e-5)


def test_networks_that_no_method_trains_are_trained_apart(tmp_path: Path) -> None:
    study = study_of({"ensemble": {"predict": {"ensemble": "seeds", "mc_dropout": 2}}}, [3, 4])
    assert len(plan(study)) == 1  # what the tables show
    first, second, ensemble = group_jobs(select(study, plan(study), []), tmp_path)
    assert ensemble.needs == (first.training, second.training)
    assert (ensemble.name, ensemble.epochs) == ("ensemble, seeds 3, 4", 0)
    assert (first.name, first.epochs) == ("member of ensemble, seed 3", 1)
    assert first.runs[0].config.predict.mc_dropout == 2


def test_only_the_ensemble_brings_its_networks() -> None:
    study = study_of({"single": {}, "other": {"loss": "focal"}, "ensemble": ENSEMBLE}, [0, 1])
    wanted = select(study, plan(study), ["ensemble"])
    assert [(run.method, run.seed) for run in wanted] == [
        ("single", 0),
        ("single", 1),
        ("ensemble", 0),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predict": {"ensemble": "seeds"}}, "two or more seeds, this one has"),
        ({"predict": {"ensemble": [1]}}, "list of two or more different seeds"),
        ({"predict": {"ensemble": [1, 1]}}, "list of two or more different seeds"),
        ({"predict": {"ensemble": [0, 1]}, "evaluate": {"ensemble_sizes": [2]}}, "leave the sizes"),
        ({"predict": {"ensemble": "sedes"}}, "predict.ensemble: .* got 'sedes'$"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(study_of({"ensemble": changes}, [0]))


def test_seeds_are_of_a_study() -> None:
    with pytest.raises(ConfigError, match=r"name them, as \[0, 1, 2\]"):
        parse(RunConfig, {**RECIPE, **ENSEMBLE})


@pytest.mark.slow
def test_two_workers(tmp_path: Path) -> None:
    study = study_of({"ensemble": ENSEMBLE, "single": {}}, [0, 1, 2])
    assert finish(study, tmp_path / "two", workers=2)[0] == []
    assert finish(study, tmp_path / "one", workers=1)[0] == []
    planned = plan(study)[-1]
    two, one = (
        run_directory(planned, tmp_path / name / "runs").metrics() for name in ("two", "one")
    )
    assert two == one
