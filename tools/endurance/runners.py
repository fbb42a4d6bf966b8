"""Runners of studies that a stress test can start by the hundred: forked from a warm process.

A process of the command line imports for seconds and trains these studies in tenths. One server
imports once and forks runners, which fork their workers; all else is the command as it is.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from sfumato.study import load_study, plan
from sfumato.study.jobs import Job, group_jobs, run_directory
from tools.endurance.trials import ViolationError

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int | str = "self") -> int:
    """Bytes in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def handles(pid: int | str = "self") -> int:
    """Open files, pipes and sockets."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_seconds(pid: int | str = "self") -> float:
    """Time that it computed, however busy the machine is."""
    fields = _status(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def descendants(pid: int) -> list[int]:
    """Processes that it started, and those that they did."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents.setdefault(int(_status(folder.name)[1]), []).append(int(folder.name))
            except OSError:  # it has ended
                continue
    found = list(parents.get(pid, ()))
    for each in found:
        found += parents.get(each, ())
    return found


def _status(pid: int | str) -> list[str]:
    """The fields of `stat` behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


LONGEST = 300.0  # seconds that a study of these may take
_PRELOADED = ["sfumato.cli", "sfumato.study", "sfumato.engine.tasks.execution", "sfumato.report"]
_PRELOADED += ["sfumato.engine.config.components", "sfumato.study.planning", __name__]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: waiting for a disk is most of the time of such runs.

    A killed process loses nothing that it has written, in memory as on a disk.
    """
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


class Runner:
    """`sfumato run STUDY --out OUT` in a process of its own.

    Args:
        study: the study file.
        out: where runs and report go; what it says goes beside them.
        more: further arguments.
        is_cold: start it as a user does, with a new interpreter for each process.
        prepare: is called in a warm process before the command.
        variables: of the environment, besides ours.
    """

    def __init__(
        self,
        study: Path,
        out: Path,
        *more: object,
        is_cold: bool = False,
        prepare: Callable[[], None] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        words = ["run", study, "--out", out, "--threads", 1, "--quiet", *(more or ["--workers", 2])]
        self.log = out.with_name(f"{out.name}.log")
        environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", **(variables or {})}
        arguments = list(map(str, words))
        self._process: Any
        if is_cold:
            with self.log.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sfumato", *arguments],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                )
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(_PRELOADED)
            self._process = context.Process(
                target=_command, args=(arguments, str(self.log), environment, prepare)
            )
            self._process.start()
        self.pid: int = self._process.pid
        self._is_cold = is_cold

    @property
    def status(self) -> int | None:
        """None while it runs."""
        code: int | None = self._process.poll() if self._is_cold else self._process.exitcode
        return code

    def wait(self) -> None:
        """Wait until it ends, however it ends."""
        if self._is_cold:
            self._process.wait(LONGEST)
        else:
            self._process.join(LONGEST)

    def finish(self) -> None:
        """Wait until it ends well."""
        self.wait()
        if self.status != 0:
            self._process.kill()
            said = self.log.read_text(errors="replace")
            raise ViolationError(f"the study ended with {self.status}: {said[-3000:]}")


def _command(
    arguments: list[str],
    log: str,
    environment: dict[str, str],
    prepare: Callable[[], None] | None,
) -> None:
    """The command line in a forked process, which forks its workers."""
    os.setsid()
    os.environ.update(environment)
    time.tzset()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    import torch

    from sfumato.cli import main

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    forked = multiprocessing.get_context("fork")
    sys.argv = ["sfumato", *arguments]
    with mock.patch.object(multiprocessing, "get_context", return_value=forked):
        main()


CLASSIFY: dict[str, Any] = {
    "data": {"name": "scenes", "train": 96, "validation": 20, "test": 30, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.2},
    "train": {"epochs": 6, "batch_size": 8},
    "evaluate": {"resamples": 20, "corruptions": ["fog", "snow"], "severities": [3]},
}
SEGMENT: dict[str, Any] = {
    "task": "segment",
    "data": {"name": "scene_streams", "train": 24, "validation": 4, "test": 3, "size": 16},
    "model": {"name": "unet", "width": 4, "depth": 2},
    "train": {"epochs": 4, "batch_size": 4},
    "evaluate": {"resamples": 20},
}
DETECT: dict[str, Any] = {
    "task": "detect",
    "data": {"name": "scene_objects", "size": 32, "train": 12, "validation": 2, "test": 8},
    "model": {"name": "faster_rcnn", "channels": 8, "proposals": 16},
    "augment": {"name": "basic", "crop": 0},
    "train": {"epochs": 3, "batch_size": 4},
    "classifier": {
        "data": {"name": "scenes", "size": 16, "train": 40, "validation": 10, "test": 10},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 2, "batch_size": 10},
        "evaluate": {"resamples": 0},
    },
}
STUDIES: dict[str, dict[str, Any]] = {
    "classify": {"plain": {}, "mixed": {"augment": "fcr+mixup", "inputs": "mollify"}},
    "segment": {"plain": {}, "smooth": {"loss": {"name": "mbls", "margin": 2.0}}},
    "detect": {"plain": {}, "other": {"train": {"learning_rate": 0.01}}},
}
RECIPES = {"classify": CLASSIFY, "segment": SEGMENT, "detect": DETECT}


def write_study(task: str, folder: Path) -> Path:
    """The file of a study of this task."""
    path = folder / f"{task}.yaml"
    content = {"name": task, "recipe": RECIPES[task], "methods": STUDIES[task]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def jobs_of(study: Path, out: Path) -> list[Job]:
    return group_jobs(plan(load_study(study)), out / "runs")


def results_of(jobs: list[Job]) -> list[dict[str, Any]]:
    """Every number that the runs of these jobs have measured."""
    return [run_directory(run, job.root).metrics() for job in jobs for run in job.runs]
