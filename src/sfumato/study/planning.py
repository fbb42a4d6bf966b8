"""The plan of a study: what is done, what waits, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from sfumato._core.spec import content_hash
from sfumato.engine import ConfigError, RunConfig
from sfumato.engine.preflight import check_runs
from sfumato.engine.timing import Costs, ImageLoading, Rehearsal
from sfumato.study.config import PlannedRun, StudyConfig, plan, select
from sfumato.study.jobs import Job, default_threads, group_jobs
from sfumato.study.run import duration
from sfumato.study.workers import Apart


@dataclass
class Probe:
    """Rehearses runs, each once whatever its seed, and writes nothing into the study."""

    apart: Apart | None
    _costs: dict[str, Costs | None] = field(default_factory=dict)

    @property
    def start_up(self) -> float:
        """Seconds that a worker takes before its first run."""
        return 0.0 if self.apart is None else self.apart.start_up

    def costs(self, config: RunConfig) -> Costs | None:
        """Return the cost of a run; None where it is not asked for, or where it can't be run."""
        if self.apart is None:
            return None
        # All seeds of a method cost the same.
        name = content_hash(config.model_dump(mode="json", exclude={"seed"}))
        if name not in self._costs:
            self._costs[name] = None
            # Where it fails, the run itself will say what is wrong, and record it.
            with suppress(Exception):
                self._costs[name] = self.apart.call(_rehearse, config)
        return self._costs[name]


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Return when the last of some jobs ends that are begun in order, as soon as a worker is free.

    Example:
        >>> makespan([3.0, 1.0, 1.0, 4.0], workers=2)
        6.0
    """
    free = [0.0] * max(1, workers)
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free)


_REHEARSAL = Rehearsal()  # of the process apart: what runs have in common stays loaded there


def _rehearse(config: RunConfig) -> Costs:
    return _REHEARSAL.costs(config)


def plan_table(
    study: StudyConfig,
    runs: Sequence[PlannedRun],
    folder: Path,
    *,
    only: Sequence[str] = (),
    workers: int = 1,
    threads: int | None = None,
    probe: bool = True,
    devices: bool = True,
) -> Table:
    """Each method's runs, finished and waiting, and the time that the waiting ones will take.

    Waiting runs are looked at first: their data, networks and devices.
    """
    jobs = group_jobs(select(study, runs, only), (folder / "runs").resolve())
    at_a_time = max(1, min(workers, sum(not job.finished for job in jobs)))
    table = Table("method", "runs", "epochs", "finished", "waiting", "time", title=Text(study.name))
    table.caption_justify = table.title_justify = "left"
    readings: dict[str, str] = {}
    times: dict[Path, float | None] = {}  # by training, for the order in which they run
    methods: dict[str, list[Job]] = {}
    for job in jobs:
        methods.setdefault(job.method, []).append(job)
    with Apart(threads or default_threads()) as apart:
        _check(apart, [run.config for job in jobs for run in job.waiting()], devices)
        watch = Probe(apart if probe else None)
        for method, group in methods.items():
            waiting = {job.training: _remaining(job, watch) for job in group if not job.finished}
            times |= waiting
            readings = _loading_lines(group, watch) | readings
            counts = (len(group), group[0].epochs, len(group) - len(waiting), len(waiting))
            known = [seconds for seconds in waiting.values() if seconds is not None]
            shown = duration(sum(known)) if known else "unknown" if waiting else ""
            table.add_row(Text(method), *(str(count) for count in counts), shown)
    in_order = [times[job.training] for job in jobs if job.training in times]
    known = [seconds for seconds in in_order if seconds is not None]
    if known:
        about = "about" if len(known) == len(in_order) else "more than"
        total = duration(watch.start_up + makespan(known, at_a_time))
        said = (f"{about} {total} with {at_a_time} at a time", *readings.values())
        table.caption = "\n".join(said)
    return table


def _loading_lines(group: Sequence[Job], probe: Probe) -> dict[str, str]:
    """Describe how waiting runs read their images, where these are files; a line a source."""
    lines: dict[str, str] = {}
    for job in group:
        for run in job.waiting():
            costs = probe.costs(run.config)
            if costs is not None and costs.reading is not None and costs.reading.workers:
                read = run.config.model_dump(mode="json", include={"data", "augment"})
                lines[content_hash(read)] = _loading_line(run.config.data["name"], costs.reading)
    return lines


def _loading_line(name: str, reading: ImageLoading) -> str:
    return (
        f"{name}: {reading.images:,} training images, {reading.steps:,} steps an epoch, "
        f"{_bytes(reading.bytes_per_epoch)} read an epoch; {reading.workers} decoding "
        f"process{'' if reading.workers == 1 else 'es'}, {_bytes(reading.memory)} of images each, "
        f"{duration(reading.seconds)} an epoch"
    )


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _remaining(job: Job, probe: Probe) -> float | None:
    """Seconds that a job will still take: its epochs, then the evaluation of its waiting runs."""
    costs = [probe.costs(run.config) for run in job.waiting()]
    known = [each for each in costs if each is not None]
    if len(known) < len(costs):
        return None
    devices = job.runs[0].config.train.devices
    at_once = devices if isinstance(devices, int) else 1
    # Runs of one job share their training, so its epochs count once.
    epochs = known[0].epoch / at_once * (job.epochs - job.logged_epochs())
    return epochs + sum(each.start + each.evaluation for each in known)


def check_study(study: StudyConfig, *, probe: bool = True) -> list[PlannedRun]:
    """Look at all runs of a study, and give them."""
    runs = plan(study)
    if probe:
        with Apart(default_threads()) as apart:
            _check(apart, [run.config for run in runs], devices=True)
    return runs


def _check(apart: Apart, configs: Sequence[RunConfig], devices: bool) -> None:
    if not configs:
        return
    try:
        apart.call(partial(check_runs, configs, devices=devices))
    except ChildProcessError as error:
        raise ConfigError(f"looking at the study's data and networks: {error}") from None
