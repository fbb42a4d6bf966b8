"""What a command looks at before it starts anything: data, devices and networks, then the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from sfumato.engine import ConfigError
from sfumato.engine.preflight import check_runs
from sfumato.study.config import StudyConfig, plan, select
from sfumato.study.jobs import group_jobs
from sfumato.study.machine import default_threads
from sfumato.study.overview import plan_table
from sfumato.study.workers import Answer, call_apart


def check_study(study: StudyConfig) -> int:
    """Look at the data, devices and networks of all runs; how many runs those are.

    Raises:
        ConfigError: a mistake in the study, in one line; also where a look at it crashed.
    """
    runs = plan(study)
    _apart(check_runs, [run.config for run in runs], threads=default_threads())
    return len(runs)


def preview(
    study: StudyConfig,
    folder: Path,
    *,
    only: Sequence[str] = (),
    workers: int = 1,
    threads: int | None = None,
    probe: bool = True,
    devices: bool = True,
) -> Table:
    """The plan of a study whose waiting runs were looked at, apart, since that calls libraries.

    Args:
        study: the checked study.
        folder: where its results are or will be; only read.
        only: names of the methods to run; all where empty.
        workers: runs at a time.
        threads: threads of each run.
        probe: whether to time a few steps of methods of which nothing is known.
        devices: whether this machine is the one that will run them; not so on a cluster.

    Raises:
        ConfigError: a run would fail, in one line; also where a look at it crashed.
    """
    jobs = group_jobs(select(study, plan(study), only), (folder / "runs").resolve())
    if all(job.finished for job in jobs):
        return plan_table(study, folder, only=only, workers=workers, probe=False)
    threads = threads or default_threads()
    return _apart(_look, study, folder, only, workers, probe, devices, threads=threads)


def _look(
    study: StudyConfig, folder: Path, only: Sequence[str], workers: int, probe: bool, devices: bool
) -> Table:
    jobs = group_jobs(select(study, plan(study), only), (folder / "runs").resolve())
    check_runs([run.config for job in jobs for run in job.waiting()], devices=devices)
    return plan_table(study, folder, only=only, workers=workers, probe=probe)


def _apart(function: Callable[..., Answer], *arguments: Any, threads: int) -> Answer:
    try:
        return call_apart(function, *arguments, threads=threads)
    except ChildProcessError as error:
        raise ConfigError(f"looking at the study's data and networks: {error}") from None
