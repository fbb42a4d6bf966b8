"""A study file becomes runs and results; what is wrong is said before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sfumato.engine import ConfigError
from sfumato.study import load_study, plan, run_study
from sfumato.study.config import same_methods

STUDY = """
name: small
recipe:
  data: {name: scenes, train: 64, validation: 20, test: 30, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 1, batch_size: 32}
  evaluate: {resamples: 20}
methods:
  plain: {}
  smooth: {loss: {name: cross_entropy, smoothing: 0.1}, train: {learning_rate: 0.05}}
seeds: [0, 1]
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def test_plan_merges_and_orders(study_file: Path) -> None:
    runs = plan(load_study(study_file))
    assert [(r.method, r.seed) for r in runs] == [
        ("plain", 0),
        ("smooth", 0),
        ("plain", 1),
        ("smooth", 1),
    ]
    assert runs[1].config.loss["smoothing"] == 0.1
    assert runs[1].config.train.learning_rate == 0.05
    assert runs[1].config.train.epochs == 1
    assert runs[0].config.train.learning_rate == 0.1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "seds:", r"seds: unknown key; did you mean 'seeds'\?"),
        ("epochs: 1", "epochs: one", r"method 'plain': train\.epochs: .*got 'one'"),
        ("smoothing: 0.1", "smoothin: 0.1", r"method 'smooth': loss: .*'smoothin'"),
        ("name: small", "nam: [", "not valid YAML"),
        ("seeds: [0, 1]", "seeds: [0, 1, 0]", "seeds: 0 is there 2 times; name each seed once"),
        ("seeds: [0, 1]", "seeds: 3", r"write a list: \[3\] for this .*\[0, 1, 2\] for 3 of them"),
        ("  plain:", "  yes:", r"methods: YAML reads a name as True \(bool\).*as 'yes'"),
        ("  plain:", '  "":', "methods: a method has an empty name"),
        ("name: small", "name: ../up", "name: '../up' can't name the folder"),
        ("name: small", "name: 3", r"name: must be text, in quotes, got 3 \(int\)"),
        ("name: small", "extend: other.yaml", "extend: unknown key; did you mean 'extends'"),
        ("  smooth:", "  plain:", "small.yaml is not valid YAML: line 10: the key 'plain'"),
    ],
)
def test_mistakes_name_file_method_and_key(
    study_file: Path, old: str, new: str, message: str
) -> None:
    study_file.write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        plan(load_study(study_file))


def test_methods_that_are_none(study_file: Path) -> None:
    begin = STUDY[: STUDY.index("methods:")]
    for written in ("methods: {}", "methods:"):
        study_file.write_text(f"{begin}{written}\n")
        with pytest.raises(ConfigError, match="a study needs at least one method"):
            load_study(study_file)
    study_file.write_text(f"{begin}methods: [a, b]\n")
    with pytest.raises(ConfigError, match="each needs a name and what it changes"):
        load_study(study_file)


def test_a_method_of_which_nothing_is_said(study_file: Path) -> None:
    begin = STUDY[: STUDY.index("methods:")]
    study_file.write_text(f"{begin}methods:\n  the same:\n  too: {{}}\nseeds: [2, 1]\n")
    study = load_study(study_file)
    assert study.methods == {"the same": {}, "too": {}}
    assert same_methods(plan(study)) == [["the same", "too"]]


def test_numbers_as_people_write_them(study_file: Path) -> None:
    study_file.write_text(STUDY.replace("epochs: 1", "epochs: 1, learning_rate: 1e-3"))
    assert plan(load_study(study_file))[0].config.train.learning_rate == 0.001


def test_severities_of_nothing(study_file: Path) -> None:
    study = load_study(study_file, ["evaluate.severities=[1]"])
    with pytest.raises(ConfigError, match="severities is of corruptions, and no method has any"):
        plan(study)
    plan(load_study(study_file, ["evaluate.severities=[1]", "evaluate.corruptions=[]"]))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such study file"):
        load_study(tmp_path / "nowhere.yaml")


@pytest.mark.usefixtures("in_this_process")
def test_failing_run_is_recorded_and_the_others_go_on(study_file: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(STUDY)
    content["seeds"] = [0]
    content["methods"] = {
        "explodes": {"train": {"learning_rate": 1e12, "clip_norm": None, "schedule": "constant"}},
        "plain": {},
    }
    content["recipe"]["train"]["epochs"] = 2
    study_file.write_text(yaml.safe_dump(content, sort_keys=False))
    lines: list[str] = []
    outcome = run_study(load_study(study_file), tmp_path / "out", show=False, announce=lines.append)
    assert [r.method for r in outcome.failed] == ["explodes"]
    errors = list((tmp_path / "out" / "runs").glob("*/error.txt"))
    assert len(errors) == 1
    assert "DivergenceError" in errors[0].read_text()
    assert len(list((tmp_path / "out" / "runs").glob("*/metrics.json"))) == 1
    assert any("failed" in line for line in lines)


@pytest.mark.usefixtures("in_this_process")
def test_finished_runs_that_leave_the_report_are_counted(study_file: Path, tmp_path: Path) -> None:
    study = load_study(study_file)
    lines: list[str] = []

    def run(**changes: object) -> None:
        changed = study.model_copy(update=changes)
        run_study(changed, tmp_path / "out", only=["plain"], show=False, announce=lines.append)

    run(seeds=[0, 1])
    run(seeds=[0, 1])
    assert not any("will not be in its report" in line for line in lines)
    run(seeds=[1])
    assert any(line.startswith("1 finished run in out had other options") for line in lines)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "studies").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_studies_are_valid(path: Path) -> None:
    assert plan(load_study(path))
