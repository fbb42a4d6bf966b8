"""Files that were cut or scribbled on: set aside and computed anew, to the same numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfumato._core.files import UnreadableFileError
from sfumato.engine import RunDirectory, load_network
from sfumato.report import read_study
from sfumato.study import load_study, run_study
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job, run_directory

STUDY = """
name: small
recipe:
  data: {name: scenes, train: 48, validation: 20, test: 20, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 2, batch_size: 16}
  evaluate: {resamples: 0, corruptions: [fog], severities: [3]}
methods:
  plain: {}
"""
pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, run_here: Callable[..., None]) -> Path:
    """The study, finished; `FOLDER/study.yaml` and its results beside it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.yaml").write_text(STUDY)
    run_here(folder / "study.yaml", folder)
    return folder


@pytest.fixture
def job(whole: Path, tmp_path: Path, jobs_of: Callable[..., list[Job]]) -> Iterator[Job]:
    """A copy of the finished study's only job; what is unreadable ends as it was."""
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    (job,) = jobs_of(folder / "study.yaml", folder)
    before = run_directory(job.runs[0], job.root).metrics()
    yield job
    assert run_directory(job.runs[0], job.root).metrics() == before


def _run(job: Job) -> list[str]:
    folder = job.root.parent
    lines: list[str] = []
    study = load_study(folder / "study.yaml")
    assert not run_study(study, folder, show=False, announce=lines.append).failed
    return [line for line in lines if "damaged" in line]


def _directory(job: Job) -> RunDirectory:
    return run_directory(job.runs[0], job.root)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # hard links elsewhere stay whole
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    "name",
    [
        "metrics.json",
        "cost.json",
        "samples.json",
        "environment.json",
        "training.json",
        "config.yaml",
        "log.jsonl",
    ],
)
def test_a_damaged_result_is_measured_anew(job: Job, name: str) -> None:
    path = _directory(job).path / name
    before = path.read_text()
    path.write_text(before[:-9] + '{"')
    if name in ("metrics.json", "config.yaml", "log.jsonl"):
        with pytest.raises(UnreadableFileError, match=f"{name} is "):
            read_study(job.root.parent)
    assert len(_run(job)) == 1
    assert path.with_name(f"{name}.unreadable").exists()
    assert (path.read_text() == before) or name in ("cost.json", "environment.json")
    assert read_study(job.root.parent).methods[0].runs
    assert _run(job) == [], "said once"


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
@pytest.mark.parametrize("how", [_cut, Path.unlink], ids=["cut", "missing"])
def test_a_damaged_checkpoint_is_trained_anew(
    job: Job, name: str, how: Callable[[Path], None]
) -> None:
    folder = job.training / "checkpoint"
    weights = (folder / "model.safetensors").read_bytes()
    (_directory(job).path / "metrics.json").unlink()
    how(folder / name)
    (line,) = _run(job)
    assert "checkpoint is unreadable" in line
    assert "training begins anew" in line
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [record["epoch"] for record in RunDirectory(job.training).log()] == [0, 1]


def test_a_damaged_network_is_one_line_with_its_file(job: Job) -> None:
    path = job.training / "checkpoint" / "model.safetensors"
    content = path.read_bytes()
    _cut(path)
    with pytest.raises(
        UnreadableFileError, match=r"model\.safetensors is unreadable.*trains them anew"
    ):
        load_network(_directory(job))
    path.write_bytes(content)
    facts = job.training / "network.json"
    before = facts.read_text()
    _cut(facts)
    cut = facts.read_bytes()
    with pytest.raises(
        UnreadableFileError, match=r"network\.json is unreadable.*delete .*metrics\.json"
    ):
        load_network(_directory(job))
    assert facts.read_bytes() == cut  # reading changes nothing: the directory may be anyone's
    (_directory(job).path / "metrics.json").unlink()
    _run(job)
    assert facts.read_text() == before


@pytest.mark.parametrize("pattern", ["predictions/*/test.npz", "parts/*.json", "parts/*.npz"])
def test_damaged_evaluations_are_computed_anew(job: Job, pattern: str) -> None:
    (_directory(job).path / "metrics.json").unlink()
    paths = list(job.training.glob(pattern))
    for path in paths:
        _cut(path)
    assert len(_run(job)) == len(paths)
    assert all(path.exists() for path in paths)


def test_a_damaged_log_keeps_what_can_be_read(job: Job) -> None:
    (_directory(job).path / "metrics.json").unlink()
    path = job.training / "log.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first[:20]}\n{second}\n")
    (line,) = _run(job)
    assert "times of 1 epochs are lost" in line
    assert path.read_text() == second + "\n"


def test_strays_among_claims(job: Job) -> None:
    (_directory(job).path / "metrics.json").unlink()
    claims = job.training / "claims"
    for name in ("1 (copy).json", "7x.json", "notes.json", "000009.json.bak"):
        (claims / name).write_text("[]")
    assert newest_claim(job.training).number == 1
    (claims / "000002.json").write_text("[1]")
    assert newest_claim(job.training).owner == {}
    (claims / "000002.json").unlink()
    assert _run(job) == []


def test_an_empty_reason(job: Job) -> None:
    directory = _directory(job)
    metrics = directory.path / "metrics.json"
    content = metrics.read_text()
    metrics.unlink()
    (directory.path / "error.txt").write_bytes(b"")
    assert job.reason() == "no reason recorded"
    metrics.write_text(content)
