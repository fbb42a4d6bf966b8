"""Runs have processes of their own, with threads that depend on nothing but the machine."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.study import load_study, run as run_module, run_study, workers
from sfumato.study.claims import newest_claim
from sfumato.study.config import PlannedRun
from sfumato.study.jobs import Job, default_threads, default_workers, group_jobs, idle_cores_hint

STUDY = """
name: small
recipe:
  data: {name: scenes, train: 48, validation: 20, test: 20, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 1, batch_size: 16}
  evaluate: {resamples: 0}
methods:
  plain: {}
  smooth: {loss: {name: cross_entropy, smoothing: 0.1}}
"""
JobsOf = Callable[[Path, Path], list[Job]]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


# In a module of its own, which the worker process can import too.
CRASHING = '''
import multiprocessing, os, signal
from sfumato.study.jobs import Job

class CrashingJob(Job):
    """Crashes its worker, as a library does, unless that keeps to conservative instructions."""

    def waiting(self):
        cautious = os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2"
        if multiprocessing.parent_process() is not None and not cautious:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().waiting()
'''


def test_one_worker_is_a_process_too_and_survives_a_crash(
    study: Path, tmp_path: Path, jobs_of: JobsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    kind: type[Job] = importlib.import_module("crashing").CrashingJob

    def crashing(runs: list[PlannedRun], root: Path) -> list[Job]:
        return [kind(job.training, job.root, job.runs) for job in group_jobs(runs, root)]

    monkeypatch.setattr(run_module, "group_jobs", crashing)
    folder, lines = tmp_path / "out", list[str]()
    outcome = run_study(
        load_study(study), folder, threads=3, only=["plain"], show=False, announce=lines.append
    )
    assert not outcome.failed
    assert sum("SIGSEGV" in line and "conservative" in line for line in lines) == 1, lines
    training = jobs_of(study, folder)[0].training
    assert newest_claim(training).number == 2
    assert newest_claim(training).owner["pid"] != os.getpid()
    facts = json.loads((folder / "environment.json").read_text())
    assert facts["threads"] == 3
    assert facts["crash"]["signal"] == "SIGSEGV"
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX2", "only the worker is careful"


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_threads_do_not_depend_on_workers_or_on_what_waits(
    study: Path,
    tmp_path: Path,
    in_this_process: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    loaded = load_study(study)
    for count, only in ((1, ["plain"]), (2, []), (4, ["smooth"])):
        options: dict[str, Any] = {"show": False, "announce": lambda line: None}
        monkeypatch.setattr(Job, "finished", False)
        monkeypatch.setattr(run_module.Job, "waiting", lambda _: [])
        run_study(loaded, tmp_path, workers=count, only=only, **options)
    assert [pool.slots for pool in in_this_process] == [1, 2, 4]
    assert {pool.threads for pool in in_this_process} == {max(1, cores // min(4, cores))}


def test_idle_cores_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert (default_workers(), default_threads()) == (4, 4)
    assert idle_cores_hint(4, 4) is None
    assert idle_cores_hint(3, 4) is None
    assert "--threads 16 uses them" in (idle_cores_hint(1, 4) or "")


class _Gone:
    """A process that died, and the connection to it."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def recv(self) -> None:
        raise EOFError

    def send(self, call: object) -> None:
        """Nobody reads it."""

    def join(self, timeout: float | None = None) -> None:
        """It is gone already."""

    def close(self) -> None:
        """Nobody is there."""


@pytest.mark.parametrize(("code", "tried"), [(-11, [False, True]), (-9, [False]), (1, [False])])
def test_a_call_apart_that_crashes_is_made_once_more(
    monkeypatch: pytest.MonkeyPatch, code: int, tried: list[bool]
) -> None:
    found: list[bool] = []

    def start(threads: int, *, cautious: bool) -> tuple[_Gone, _Gone]:
        found.append(cautious)
        return _Gone(code), _Gone(code)

    monkeypatch.setattr(workers, "_start_process", start)
    with pytest.raises(ChildProcessError, match="the worker process"):
        workers.Apart(threads=1).call(os.getpid)
    assert found == tried
