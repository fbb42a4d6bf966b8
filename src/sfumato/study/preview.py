"""What a command looks at before it starts anything: data, devices and networks, then the plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.table import Table

from sfumato.engine import ConfigError, RunConfig
from sfumato.engine.config.preflight import check_runs
from sfumato.study.config import PlannedRun, StudyConfig, plan, select
from sfumato.study.jobs import group_jobs
from sfumato.study.machine import default_threads
from sfumato.study.overview import plan_table
from sfumato.study.workers import call_apart


def check_study(study: StudyConfig, *, probe: bool = True) -> list[PlannedRun]:
    """Look at all runs of a study, and give them.

    Args:
        study: the checked study.
        probe: whether to load data, look for devices, build networks and push a batch through
            each method. Without it only names and parameters are checked, which imports the
            modules that the study names.

    Raises:
        ConfigError: a mistake in the study, in one line; also where a look at it crashed.
    """
    runs = plan(study)
    if probe:
        _check_apart([run.config for run in runs], devices=True)
    return runs


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
    """The plan of a study whose waiting runs were looked at.

    Args:
        study: the checked study.
        folder: where its results are or will be; only read.
        only: names of the methods to run; all where empty.
        workers: runs at a time.
        threads: threads of each run.
        probe: whether to rehearse each method, which takes some seconds and gives the times.
        devices: whether this machine is the one that will run them; not so on a cluster.

    Raises:
        ConfigError: a run would fail, in one line; also where a look at it crashed.
    """
    jobs = group_jobs(select(study, plan(study), only), (folder / "runs").resolve())
    waiting = [run.config for job in jobs for run in job.waiting()]
    if waiting:
        _check_apart(waiting, devices)
    return plan_table(study, folder, only=only, workers=workers, threads=threads, probe=probe)


def _check_apart(configs: Sequence[RunConfig], devices: bool) -> None:
    try:
        call_apart(partial(check_runs, configs, devices=devices), threads=default_threads())
    except ChildProcessError as error:
        raise ConfigError(f"looking at the study's data and networks: {error}") from None
