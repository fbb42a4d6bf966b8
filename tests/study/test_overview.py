"""The plan before, the table during: what a user sees of a study."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from sfumato.engine import RunConfig, RunDirectory
from sfumato.engine.timing import Costs, ImageLoading
from sfumato.study import StudyConfig, load_study, plan, run_study
from sfumato.study.jobs import Job
from sfumato.study.planning import Probe, plan_table
from sfumato.study.run import Board
from sfumato.study.workers import Apart, End

JobsOf = Callable[[Path, Path], list[Job]]
STUDY = """
name: small
recipe:
  data: {name: scenes, train: 64, validation: 20, test: 20, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 2, batch_size: 32}
  evaluate: {resamples: 0}
methods:
  plain: {}
  "[red]smooth[/red]": {loss: {name: cross_entropy, smoothing: 0.1}}
seeds: [0, 1]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def _text(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def _cells(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def _table(study: StudyConfig, folder: Path, **options: Any) -> RenderableType:
    return plan_table(study, plan(study), folder, **options)


@dataclass
class Rehearsed(Probe):
    """Every run takes the same, and a worker five seconds to start."""

    @property
    def start_up(self) -> float:
        return 5.0

    def costs(self, config: RunConfig) -> Costs | None:
        return None if self.apart is None else Costs(start=1, epoch=2, evaluation=3)


@dataclass
class FromFiles(Probe):
    """Every run decodes files."""

    def costs(self, config: RunConfig) -> Costs | None:
        reading = ImageLoading(
            1_281_167, 5004, 148_000_000_000, 115_600_000, 4, 3600.0 + config.seed
        )
        return Costs(start=1, epoch=2, evaluation=3, reading=reading)


@pytest.mark.usefixtures("in_this_process")
def test_plan_says_once_what_is_read(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.study.planning.Probe", FromFiles)
    text = " ".join(_text(_table(load_study(study), tmp_path / "out")).split())
    said = "scenes: 1,281,167 training images, 5,004 steps an epoch, 148.0 GB read an epoch; "
    assert text.count(said) == 1
    assert "4 decoding processes, 115.6 MB of images each, 1 h" in text


@pytest.mark.usefixtures("in_this_process")
def test_plan_says_what_is_done_what_waits_and_how_long(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.study.planning.Probe", Rehearsed)
    loaded = load_study(study)
    text = _text(_table(loaded, tmp_path / "out", workers=3))
    # Two runs of two epochs each.
    assert _cells(text, "plain")[1:] == ["2", "2", "0", "2", "16 s"]
    assert _cells(text, "[red]smooth[/red]")[5] == "16 s"
    # Four runs of 8 s on three workers: one of them does two.
    assert "about 21 s with 3 at a time" in text
    assert not (tmp_path / "out").exists()
    run_study(loaded, tmp_path / "out", only=["plain"], show=False, announce=lambda line: None)
    text = _text(_table(loaded, tmp_path / "out", probe=False))
    assert _cells(text, "plain")[1:] == ["2", "2", "2", "0", ""]
    assert _cells(text, "smooth")[5] == "unknown"


def test_probe_times_and_a_broken_method_is_left_to_its_run(study: Path, jobs_of: JobsOf) -> None:
    config = jobs_of(study, study.parent)[0].runs[0].config
    broken = config.model_copy(update={"data": {"name": "npz", "train": "absent.npz"}})
    with Apart(threads=1) as apart:
        probe = Probe(apart)
        found = probe.costs(config)
        assert found is not None
        assert min(found.start, found.epoch, found.evaluation, probe.start_up) > 0
        assert probe.costs(config.model_copy(update={"seed": 1})) is found
        assert probe.costs(broken) is None
    assert Probe(None).costs(config) is None


def test_board_follows_jobs(study: Path, tmp_path: Path, jobs_of: JobsOf) -> None:
    jobs = jobs_of(study, tmp_path / "out")
    lines: list[str] = []
    with Board(jobs, slots=2, live=True, announce=lines.append) as board:
        board.began(jobs[0])
        jobs[0].training.mkdir(parents=True)
        RunDirectory(jobs[0].training).records.append({"epoch": 0, "seconds": 30.0})
        text = _text(board.render())
        name, state, epoch, _, left = _cells(text, "plain, seed 0")
        assert (name, state, epoch, left) == ("plain, seed 0", "running", "1/2", "30 s")
        assert "1 running, 3 waiting" in text
        # 30 s of the first, two epochs of each of the others, two at a time.
        assert "about 1 min 45 s of training left" in text
        RunDirectory(jobs[0].training).records.append({"epoch": 1, "seconds": 30.0})
        assert _cells(_text(board.render()), "plain, seed 0")[1] == "evaluating"
        board.ended(jobs[0], End("finished"))
        board.elsewhere(jobs[1], "other (process 3)")
        board.elsewhere(jobs[1], "other (process 3)")
        board.ended(jobs[2], End("failed", "ValueError: [bold]"))
        assert "1 elsewhere, 1 failed, 1 waiting, 1 finished" in _text(board.render())
    assert lines == [
        "[1/4] plain, seed 0: training",
        "plain, seed 0: finished in 0 s",
        "[red]smooth[/red], seed 0: under way on other (process 3)",
        "plain, seed 1 failed: ValueError: [bold]",
    ]


def test_live_table_on_a_terminal(
    study: Path, tmp_path: Path, jobs_of: JobsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines: list[str] = []
    jobs = jobs_of(study, tmp_path / "out")
    with Board(jobs, slots=1, live=True, announce=lines.append) as board:
        board.began(jobs[0])
        board.ended(jobs[0], End("failed", "why"))
    assert lines == ["plain, seed 0 failed: why"], "the table shows the rest"


@pytest.mark.usefixtures("in_this_process")
def test_a_study_is_planned_and_judged_once(
    study: Path, sfumato: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: str, name: str) -> None:
        inner = getattr(import_module(module), name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return inner(*arguments, **options)

        monkeypatch.setattr(f"{module}.{name}", call)

    for module in ("sfumato.study", "sfumato.study.planning", "sfumato.study.run"):
        counted(module, "plan")
    for module in ("sfumato.report", "sfumato.report.page"):
        counted(module, "read_studies")
        counted(module, "compare_methods")
    done = sfumato("run", str(study), "--seeds", "0", "--epochs", "1", "--quiet")
    assert done.status == 0, done.stderr
    assert sorted(calls) == ["compare_methods", "plan", "read_studies"]


@pytest.mark.usefixtures("in_this_process")
def test_commands(study: Path, tmp_path: Path, sfumato: Any) -> None:
    dry = sfumato("run", str(study), "--epochs", "7", "--seeds", "0-2", "--dry-run", "--quiet")
    assert dry.status == 0, dry.stderr
    assert _cells(dry.stdout, "plain")[1:5] == ["3", "7", "0", "3"]
    assert not (tmp_path / "runs").exists()
    good = sfumato("check", str(study), "train.epochs=3")
    assert (good.status, "2 methods, 4 runs" in good.stdout) == (0, True)
    bad = sfumato("check", str(study), "train.epoch=3")
    assert bad.status == 2
    assert "did you mean 'epochs'?" in bad.stderr
    only = sfumato("run", str(study), "--only", "plian", "--dry-run")
    assert only.status == 2
    assert "did you mean 'plain'?" in only.stderr
    assert '"Sfumato study"' in sfumato("schema").stdout
