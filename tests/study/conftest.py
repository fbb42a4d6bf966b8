"""A study of a few seconds, and the command line as a process that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sfumato.study import load_study, plan, run as run_module
from sfumato.study.jobs import Job, group_jobs, run_directory
from sfumato.study.workers import Apart, End, News, finish_job

EPOCHS = 8
KILLED = {
    "name": "killed",
    "recipe": {
        "data": {"name": "scenes", "train": 96, "validation": 20, "test": 30, "size": 16},
        "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.2},
        "train": {"epochs": EPOCHS, "batch_size": 8},
        "evaluate": {"resamples": 20, "corruptions": ["fog"], "severities": [3]},
    },
    "methods": {
        "plain": {},
        "smooth": {"loss": {"name": "cross_entropy", "smoothing": 0.1}},
        "sampled": {"predict": {"mc_dropout": 3}},
    },
}


class InThisProcess:
    """Workers that are none, for what is patched in this process; also remembers what was asked."""

    def __init__(self, count: int = 1, threads: int = 1) -> None:
        self.slots, self.threads = count, threads
        self.submitted: list[tuple[str, bool]] = []
        self.said: list[str] = []
        self._ended: list[tuple[Job, End]] = []

    def busy(self) -> int:
        return len(self._ended)

    def submit(self, job: Job, after: int, *, cautious: bool = False) -> None:
        self.submitted.append((job.runs[0].method, cautious))
        self._ended.append((job, self.finish(job, after)))

    def finish(self, job: Job, after: int) -> End:
        return finish_job(job, after, on_lost=lambda: None, say=self.said.append)

    def collect(self, timeout: float) -> list[News]:
        news: list[News] = []
        for job, end in self._ended:
            news += [*((job, text) for text in self.said), (job, end)]
        self.said.clear()
        self._ended.clear()
        return news

    def close(self) -> None:
        """Nothing to stop."""


@pytest.fixture(scope="session")
def workers_here() -> type[InThisProcess]:
    """The class of workers that are none, to derive from."""
    return InThisProcess


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[InThisProcess]:
    """Let studies run in this process; gives the workers of each of them."""
    pools: list[InThisProcess] = []

    def make(count: int, threads: int) -> InThisProcess:
        pools.append(InThisProcess(count, threads))
        return pools[-1]

    monkeypatch.setattr(run_module, "LocalProcesses", make)
    monkeypatch.setattr(Apart, "call", lambda apart, function, *given: function(*given))
    return pools


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def killed_study(tmp_path: Path) -> Path:
    """Three methods, two of which share a training."""
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(KILLED, sort_keys=False))
    return path


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `sfumato ARGUMENTS` as a process of its own, one thread to a worker."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sfumato", *(str(each) for each in arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def jobs_of() -> Callable[[Path, Path], list[Job]]:
    """The jobs of a study file whose results are in a folder."""
    return lambda study, folder: group_jobs(plan(load_study(study)), folder / "runs")


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """Wait for a true value and give it back."""

    def wait(condition: Callable[[], Any], what: str, seconds: float = 600) -> Any:
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture(scope="session")
def metrics_of() -> Callable[[list[Job]], list[dict[str, Any]]]:
    """The metrics of every run of some jobs."""
    return lambda jobs: [run_directory(run, job.root).metrics() for job in jobs for run in job.runs]


@pytest.fixture(scope="session")
def run_here() -> Callable[[Path, Path], None]:
    """Run a study file in this process, without disturbance, and index it."""

    def run_all(study: Path, folder: Path) -> None:
        loaded = load_study(study)
        runs = plan(loaded)
        run_module._write_index(loaded, runs, folder)
        for job in group_jobs(runs, folder / "runs"):
            finish_job(job, 0, on_lost=lambda: None, say=print)

    return run_all


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory,
    run_here: Callable[[Path, Path], None],
    jobs_of: Callable[[Path, Path], list[Job]],
    metrics_of: Callable[[list[Job]], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """The metrics of the killed study, run in this process without disturbance."""
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(KILLED, sort_keys=False))
    run_here(path, folder)
    return metrics_of(jobs_of(path, folder))
