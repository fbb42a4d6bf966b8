"""What goes wrong is recorded or said; what was finished stays whole."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing import ProcessExitedException

from sfumato._core import files
from sfumato.engine import Trainer, load_checkpoint
from sfumato.engine.runs.directory import EpochRecords
from sfumato.engine.training import checkpoint
from sfumato.study import load_study, run as run_module, run_study, workers as work
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job, run_directory
from sfumato.study.workers import End, StorageError

JobsOf = Callable[[Path, Path], list[Job]]
STUDY = """
name: small
recipe:
  data: {name: scenes, train: 48, validation: 20, test: 20, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 2, batch_size: 16}
  evaluate: {resamples: 0}
methods:
  plain: {}
  smooth: {loss: {name: cross_entropy, smoothing: 0.1}}
"""


pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def _run(study: Path, folder: Path, **options: Any) -> list[str]:
    lines: list[str] = []
    outcome = run_study(load_study(study), folder, show=False, announce=lines.append, **options)
    return [*lines, *(f"no results: {run.method}" for run in outcome.failed)]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("can't allocate 7 GB"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("something else"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failing_run_is_recorded_once_and_tried_again(
    study: Path,
    tmp_path: Path,
    jobs_of: JobsOf,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    step = Trainer._step

    def failing(self: Trainer, *arguments: Any) -> Any:
        if self.step.loss.smoothing == 0:
            raise error
        return step(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", failing)
        lines = _run(study, tmp_path / "out")
    plain, smooth = jobs_of(study, tmp_path / "out")
    assert lines[-1] == "no results: plain"
    assert smooth.finished
    assert str(error) in plain.reason()
    trace = next((tmp_path / "out" / "runs").glob("*/error.txt")).read_text()
    assert trace.startswith("Traceback")
    assert not any("no results" in line for line in _run(study, tmp_path / "out"))
    assert not list((tmp_path / "out" / "runs").glob("*/error.txt"))


@pytest.mark.parametrize("place", ["checkpoint", "log", "metrics"])
def test_full_disk_stops_the_study_and_harms_nothing(
    study: Path, tmp_path: Path, jobs_of: JobsOf, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The disk fills up in the second run; with space again, the study ends as usual."""
    folder = tmp_path / "out"
    whole = tmp_path / "whole"
    _run(study, whole)
    _run(study, folder, only=["plain"])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if place == "checkpoint":
            patched.setattr(checkpoint, "sync", full)
        elif place == "log":
            patched.setattr(EpochRecords, "append", full)
        else:
            patched.setattr(files.np, "savez", full)
        with pytest.raises(
            StorageError, match=r"([Nn]o space left|no room on the disk).*same command again"
        ):
            _run(study, folder)
    kept = {path: path.read_bytes() for path in before if path.name != "study.json"}
    assert kept == {path: before[path] for path in kept}
    assert not any("no results" in line for line in _run(study, folder))
    ours, theirs = (jobs_of(study, each)[1] for each in (folder, whole))
    weights = [
        (job.training / "checkpoint/model.safetensors").read_bytes() for job in (ours, theirs)
    ]
    assert weights[0] == weights[1]


def test_real_limit_while_saving_a_checkpoint(tmp_path: Path) -> None:
    """The system itself refuses to write more; the old checkpoint stays."""
    resource = pytest.importorskip("resource", reason="this system has no limits on file sizes")
    small = checkpoint.Checkpoint(1, {"w": torch.ones(4)}, {}, {}, {})
    checkpoint.save_checkpoint(tmp_path / "checkpoint", small)
    large = checkpoint.Checkpoint(2, {"w": torch.ones(4)}, {"state": torch.ones(9000)}, {}, {})
    huge = checkpoint.Checkpoint(2, {"w": torch.ones(9000)}, {}, {}, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
        for too_big in (large, huge):
            with pytest.raises((OSError, RuntimeError)) as failed:
                checkpoint.save_checkpoint(tmp_path / "checkpoint", too_big)
            assert "File too large" in (work.storage_problem(failed.value, tmp_path) or "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old_handler)
    found = load_checkpoint(tmp_path / "checkpoint")
    assert found is not None
    assert found.epoch == 1


def test_folder_that_can_not_be_written(study: Path, tmp_path: Path, sfumato: Any) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    folder.chmod(0o500)
    message = "error: can't write results to"
    if os.access(folder, os.W_OK):  # the administrator may write everywhere
        folder.chmod(0o700)
        folder.rmdir()
        folder.write_text("a file where the folder should be")
        message = f"error: {folder} is a file; --out wants a folder"
    done = sfumato("run", str(study), "--out", str(folder), "--quiet")
    assert done.status == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_permission_errors_elsewhere_are_the_runs_own(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/data/train.npz")
    assert work.storage_problem(denied, tmp_path) is None
    inside = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "runs" / "x"))
    assert "Permission denied" in (work.storage_problem(inside, tmp_path) or "")


@pytest.fixture
def dying_of(workers_here: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Let workers die with an exit code of every job of the method plain; gives them."""

    def make(code: int, *, unless_cautious: bool = False) -> Any:
        class Dying(workers_here):  # type: ignore[misc]
            def finish(self, job: Job, after: int) -> Any:
                method, cautious = self.submitted[-1]
                if method != "plain" or (unless_cautious and cautious):
                    return super().finish(job, after)
                return End("died", work.describe_exit(code), code)

        workers = Dying()
        monkeypatch.setattr(run_module, "LocalProcesses", lambda *_: workers)
        return workers

    return make


def test_a_run_that_always_kills_its_worker_is_given_up(
    study: Path, tmp_path: Path, jobs_of: JobsOf, dying_of: Callable[..., Any]
) -> None:
    workers = dying_of(-signal.SIGKILL)
    lines = _run(study, tmp_path / "out")
    plain, smooth = jobs_of(study, tmp_path / "out")
    assert workers.submitted == [("plain", False)] * 3 + [("smooth", False)]
    assert smooth.finished
    assert "signal 9, as the system does where memory runs out, 3 times" in plain.reason()
    assert lines[-1] == "no results: plain"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL, signal.SIGABRT])
def test_a_crash_is_tried_once_more_with_conservative_instructions(
    study: Path,
    tmp_path: Path,
    jobs_of: JobsOf,
    dying_of: Callable[..., Any],
    number: signal.Signals,
) -> None:
    workers = dying_of(-number)
    lines = _run(study, tmp_path / "out")
    plain, _ = jobs_of(study, tmp_path / "out")
    assert workers.submitted == [("plain", False), ("plain", True), ("smooth", False)]
    again = [line for line in lines if "once more with a conservative instruction set" in line]
    assert len(again) == 1
    assert number.name in again[0]
    assert f"({number.name}, a crash in a library), with a conservative" in plain.reason()


def test_crashes_are_recorded_and_remembered(
    study: Path, tmp_path: Path, jobs_of: JobsOf, dying_of: Callable[..., Any]
) -> None:
    folder = tmp_path / "out"
    workers = dying_of(-signal.SIGSEGV, unless_cautious=True)
    assert not any("no results" in line for line in _run(study, folder))
    plain, smooth = jobs_of(study, folder)
    for found in (plain.training, run_directory(plain.runs[0], plain.root).path):
        facts = json.loads((found / "environment.json").read_text())
        assert facts["crash"]["signal"] == "SIGSEGV"
        assert facts["crash"]["retried_with"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
        assert facts["threads"] == torch.get_num_threads(), "the usual facts are there too"
    assert "crash" not in json.loads((smooth.training / "environment.json").read_text())
    # What is measured later is measured with the same instructions.
    run_directory(plain.runs[0], plain.root).path.joinpath("metrics.json").unlink()
    workers.submitted.clear()
    _run(study, folder)
    assert workers.submitted == [("plain", True)]


def test_a_crash_in_one_of_several_devices_is_a_crash(
    study: Path, tmp_path: Path, jobs_of: JobsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise ProcessExitedException("crashed", error_index=1, error_pid=7, exit_code=-11)

    monkeypatch.setattr(work, "run", crash)
    job = jobs_of(study, tmp_path / "out")[0]
    end = work.finish_job(job, 0, on_lost=lambda: None, say=print)
    assert (end.status, end.crash) == ("died", "SIGSEGV")
    assert newest_claim(job.training).ended == "interrupted"


def test_exit_status_and_last_words_tell(study: Path, tmp_path: Path, sfumato: Any) -> None:
    explodes = "{learning_rate: 1.0e+12, clip_norm: null, schedule: constant}"
    done = sfumato("run", str(study), f"methods.plain.train={explodes}", "--quiet")
    assert done.status == 1
    assert "plain, seed 0 failed: DivergenceError" in done.stdout
    assert "Without results: plain, seed 0" in done.stdout
    assert (tmp_path / "runs/small/report/index.html").exists()


@pytest.mark.parametrize("command", [("run", "--quiet"), ("run", "--dry-run"), ("check",)])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("methods.plain.data={name: npz, train: no.npz, test: no.npz}", "data npz: "),
        ("methods.smooth.train.accelerator=cuda", "train: "),
        ("methods.smooth.predict.mc_dropout=3", "model resnet: predict.mc_dropout needs"),
    ],
)
def test_what_would_fail_is_said_once_before_anything_starts(
    study: Path, tmp_path: Path, sfumato: Any, command: tuple[str, ...], override: str, message: str
) -> None:
    if "cuda" in override and torch.cuda.is_available():
        pytest.skip("this machine has the accelerator")
    done = sfumato(command[0], str(study), override, *command[1:])
    assert done.status == 2
    *progress, last = done.stderr.splitlines()
    assert last.startswith(f"error: {message}")
    assert not any(line.startswith("error: ") for line in progress)
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_finished_study_needs_no_data(study: Path, tmp_path: Path, sfumato: Any) -> None:
    data = tmp_path / "data.npz"
    images, labels = torch.zeros(30, 8, 8, 3, dtype=torch.uint8), torch.arange(30) % 3
    np.savez(data, images=images.numpy(), labels=labels.numpy())
    override = f"data={{name: npz, train: {data}, test: {data}}}"
    assert sfumato("run", str(study), override, "--quiet").status == 0
    data.unlink()
    assert sfumato("run", str(study), override).status == 0
    assert sfumato("check", str(study), override).status == 2


def test_interrupt_says_that_the_same_command_resumes(
    study: Path, sfumato: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "run", interrupt)
    done = sfumato("run", str(study), "--quiet")
    assert done.status == 130
    assert "The same command goes on from here" in done.stdout


def test_a_place_that_can_not_be_a_folder(study: Path, tmp_path: Path, sfumato: Any) -> None:
    done = sfumato("run", str(study), "--out", "/dev/null/x", "--quiet")
    assert (done.status, "Errno" in done.stderr) == (2, False)
    assert "error: /dev/null is a file; --out wants a folder" in done.stderr
    done = sfumato("check", str(tmp_path))
    assert (done.status, done.stderr) == (2, f"error: {tmp_path}: is a folder; pass a file in it\n")
    done = sfumato("schema", "--out", "/dev/null/x")
    assert (done.status, done.stderr) == (2, "error: /dev/null/x: Not a directory\n")
