"""The plan of a study as a table: what is done, what waits, and how long that will take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from sfumato.engine import RunDirectory
from sfumato.study.board import duration
from sfumato.study.config import StudyConfig, plan, select
from sfumato.study.jobs import Job, group_jobs
from sfumato.study.probe import Probe


def plan_table(
    study: StudyConfig,
    folder: Path,
    *,
    only: Sequence[str] = (),
    workers: int = 1,
    probe: bool = True,
) -> Table:
    """Each method's runs, finished and waiting, and the time that the waiting ones will take.

    Args:
        study: the checked study.
        folder: where its results are or will be; only read.
        only: names of the methods to run; all where empty.
        workers: runs at a time.
        probe: whether to time a few steps of methods of which nothing is known from earlier runs.
    """
    jobs = group_jobs(select(study, plan(study), only), (folder / "runs").resolve())
    watch = Probe(active=probe)
    table = Table("method", "runs", "epochs", "finished", "waiting", "time", title=Text(study.name))
    table.caption_justify = table.title_justify = "left"
    known, total, waiting_jobs = True, 0.0, 0
    for method, group in _by_method(jobs).items():
        waiting = [job for job in group if not job.finished]
        seconds = [_remaining(job, group, watch) for job in waiting]
        numbers = [each for each in seconds if each is not None]
        known, total = known and len(numbers) == len(seconds), total + sum(numbers)
        waiting_jobs += len(waiting)
        shown = "" if not waiting else duration(sum(numbers)) if numbers else "unknown"
        counts = (len(group), group[0].epochs, len(group) - len(waiting), len(waiting))
        table.add_row(Text(method), *(str(count) for count in counts), shown)
    side_by_side = max(1, min(workers, waiting_jobs))
    if waiting_jobs and total:
        about = "about" if known else "more than"
        table.caption = f"{about} {duration(total / side_by_side)} with {side_by_side} at a time"
    return table


def _by_method(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.name.rpartition(", seed ")[0], []).append(job)
    return groups


def _remaining(job: Job, group: Sequence[Job], probe: Probe) -> float | None:
    """Seconds of training left: from this run's log, else another seed's, else a probe."""
    done = job.logged_epochs()
    for known in (job, *group):
        records = RunDirectory(known.training).log()
        if records:
            mean = sum(record.get("seconds", 0.0) for record in records) / len(records)
            return mean * (job.epochs - done)
    epoch = probe.seconds_per_epoch(job.runs[0].config)
    return None if epoch is None else epoch * (job.epochs - done)
