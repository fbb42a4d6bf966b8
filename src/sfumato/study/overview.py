"""The plan of a study as a table: what is done, what waits, and how long that will take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from sfumato.engine import content_hash
from sfumato.engine.tasks.reading import Reading
from sfumato.study.board import duration
from sfumato.study.config import StudyConfig, plan, select
from sfumato.study.jobs import Job, group_jobs
from sfumato.study.machine import default_threads
from sfumato.study.probe import Probe, makespan


def plan_table(
    study: StudyConfig,
    folder: Path,
    *,
    only: Sequence[str] = (),
    workers: int = 1,
    threads: int | None = None,
    probe: bool = True,
) -> Table:
    """Each method's runs, finished and waiting, and the time that the waiting ones will take.

    Args:
        study: the checked study.
        folder: where its results are or will be; only read.
        only: names of the methods to run; all where empty.
        workers: runs at a time.
        threads: threads of each run, `default_threads()` by default.
        probe: whether to rehearse each method, which takes some seconds and gives the times.
    """
    jobs = group_jobs(select(study, plan(study), only), (folder / "runs").resolve())
    at_a_time = max(1, min(workers, sum(not job.finished for job in jobs)))
    table = Table("method", "runs", "epochs", "finished", "waiting", "time", title=Text(study.name))
    table.caption_justify = table.title_justify = "left"
    readings: dict[str, str] = {}
    times: dict[Path, float | None] = {}  # by training, for the order in which they run
    with Probe(active=probe, threads=threads or default_threads()) as watch:
        for method, group in _by_method(jobs).items():
            waiting = {job.training: _remaining(job, watch) for job in group if not job.finished}
            times |= waiting
            readings = _reading_lines(group, watch) | readings
            counts = (len(group), group[0].epochs, len(group) - len(waiting), len(waiting))
            shown = _shown(list(waiting.values())) if waiting else ""
            table.add_row(Text(method), *(str(count) for count in counts), shown)
    in_order = [times[job.training] for job in jobs if job.training in times]
    known = [seconds for seconds in in_order if seconds is not None]
    if known:
        about = "about" if len(known) == len(in_order) else "more than"
        total = watch.start_up + makespan(known, at_a_time)
        table.caption = f"{about} {duration(total)} with {at_a_time} at a time"
        for line in readings.values():
            table.caption += f"\n{line}"
    return table


def _reading_lines(group: Sequence[Job], probe: Probe) -> dict[str, str]:
    """How waiting runs come to their images, where these are files, by what they read."""
    lines: dict[str, str] = {}
    for job in group:
        for run in job.waiting():
            costs = probe.costs(run.config)
            if costs is not None and costs.reading is not None and costs.reading.workers:
                read = run.config.model_dump(mode="json", include={"data", "augment"})
                lines[content_hash(read)] = _reading_line(run.config.data["name"], costs.reading)
    return lines


def _reading_line(name: str, reading: Reading) -> str:
    return (
        f"{name}: {reading.images:,} training images, {reading.steps:,} steps an epoch, "
        f"{_bytes(reading.bytes_per_epoch)} read an epoch; {reading.workers} decoding "
        f"process{'' if reading.workers == 1 else 'es'}, {_bytes(reading.memory)} of images each, "
        f"{duration(reading.seconds)} an epoch"
    )


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _shown(seconds: Sequence[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return duration(sum(known)) if known else "unknown"


def _by_method(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.method, []).append(job)
    return groups


def _remaining(job: Job, probe: Probe) -> float | None:
    """Seconds that a job will still take: its epochs, then the evaluation of its waiting runs."""
    costs = [probe.costs(run.config) for run in job.waiting()]
    known = [each for each in costs if each is not None]
    if len(known) < len(costs):
        return None
    devices = job.runs[0].config.train.devices
    at_once = devices if isinstance(devices, int) else 1
    epochs = known[0].epoch / at_once * (job.epochs - job.logged_epochs())
    return epochs + sum(each.start + each.evaluation for each in known)
