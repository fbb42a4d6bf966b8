"""Run a study: each planned run to its end, shown live; a failing one is recorded."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sfumato._core.files import UnreadableFileError, read_json, write_json
from sfumato._core.import_path import searching
from sfumato._core.spec import DIGEST
from sfumato._core.text import print_line, terminal
from sfumato.analysis import smoothing_profile
from sfumato.engine import ConfigError, RunDirectory, fingerprint, run
from sfumato.engine.config.build import build_loss
from sfumato.engine.config.components import find_component
from sfumato.study.claims import Observer, claimed, newest_claim
from sfumato.study.config import PlannedRun, StudyConfig, plan, select
from sfumato.study.jobs import Job, default_threads, group_jobs, idle_cores_hint, run_directory
from sfumato.study.workers import (
    End,
    LocalProcesses,
    RayCluster,
    StorageError,
    damage_told,
    record_crash,
    record_failure,
    storage_message,
)

Announce = Callable[[str], None]
_STEPS = 60
_CLASSES = 10
_NOT_SHOWN = ("name", "ignore_index", DIGEST)


def write_profiles(runs: Sequence[PlannedRun], folder: Path) -> None:
    """Write `profiles.json`: one profile for each different loss, named by its methods."""
    losses: dict[str, dict[str, None]] = {}
    with searching(runs[0].config.modules):
        for planned in runs:
            spec = planned.config.loss
            # The others compare the samples of a batch or keep a history: no profile of one.
            loss = find_component("loss", spec["name"])
            if loss.is_of_single_entries and not loss.remembers_samples(spec):
                losses.setdefault(json.dumps(spec, sort_keys=True), {})[planned.method] = None
        found = {}
        for text, (first, *others) in losses.items():
            title = f"{first} and {len(others)} more" if others else first
            found[title] = _profile(json.loads(text))
    write_json(folder / "profiles.json", found)


def _plain(values: Tensor) -> list[float]:
    """Without the rounding errors of a gradient that is zero, which would fill a chart."""
    return [round(value, 9) for value in values.tolist()]


def _profile(spec: dict[str, Any]) -> dict[str, Any]:
    loss = build_loss(spec, num_samples=1, num_classes=_CLASSES, epochs=1)
    found = smoothing_profile(loss, num_classes=_CLASSES, num_steps=_STEPS)
    settings = ", ".join(f"{key} {value}" for key, value in spec.items() if key not in _NOT_SHOWN)
    return {
        "loss": f"{spec['name']}: {settings}" if settings else spec["name"],
        "lead": found.lead.tolist(),
        "predicted": _plain(found.smoothing[:, -1]),
        "others": _plain(found.smoothing[:, :-1].mean(1)),
    }


_ORDER = ("running", "elsewhere", "failed", "waiting", "finished")
_COLOURS = {"running": "bold cyan", "finished": "green", "failed": "bold red", "waiting": "dim"}
MOST_ROWS = 24


@dataclass
class _Row:
    state: str
    note: str = ""
    began: float | None = None


class Board:
    """Follows jobs from their beginning to their end."""

    def __init__(self, jobs: Sequence[Job], *, slots: int, live: bool, announce: Announce) -> None:
        self._jobs = jobs
        self._slots = slots
        self.announce = announce
        self._rows = {job.training: _Row("finished" if job.finished else "waiting") for job in jobs}
        self._waiting = sum(row.state == "waiting" for row in self._rows.values())
        self._number = 0
        console = terminal(stderr=True)
        self._live: Live | None = None
        if live and console.is_terminal:
            self._live = Live(
                get_renderable=self.render, console=console, refresh_per_second=2, transient=True
            )

    def began(self, job: Job) -> None:
        row = self._rows[job.training]
        if row.began is None:
            self._number += 1
        done = job.logged_epochs()
        row.state, row.note = "running", ""
        row.began = time.monotonic()
        step = "training" if done < job.epochs else "evaluating"
        resumed = f" from epoch {done + 1}" if 0 < done < job.epochs else ""
        self._say(f"[{self._number}/{self._waiting}] {job.name}: {step}{resumed}")

    def elsewhere(self, job: Job, holder: str) -> None:
        row = self._rows[job.training]
        if row.note != holder:
            row.state, row.note = "elsewhere", holder
            self._say(f"{job.name}: under way on {holder}")

    def again(self, job: Job, reason: str, *, cautious: bool) -> None:
        """The job's worker died; it will go on from the last checkpoint."""
        self._rows[job.training].state = "waiting"
        how = ", once more with a conservative instruction set" if cautious else ""
        self.announce(f"{job.name}: {reason}; going on from its last checkpoint{how}")

    def ended(self, job: Job, end: End) -> None:
        """The job has results, or never will."""
        row = self._rows[job.training]
        row.state, row.note = end.status, end.reason
        if end.status == "failed":
            self.announce(f"{job.name} failed: {end.reason}")
        elif row.began is not None:
            self._say(f"{job.name}: finished in {duration(time.monotonic() - row.began)}")

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def render(self) -> RenderableType:
        """The table as it is now: what runs first, then what failed, waits and is done."""
        table = Table("run", "state", "epoch", "time", "left")
        ranked = sorted(self._jobs, key=lambda job: _ORDER.index(self._rows[job.training].state))
        for job in ranked[:MOST_ROWS]:
            row = self._rows[job.training]
            is_running = row.state == "running"
            epochs = job.logged_epochs() if is_running or row.state == "elsewhere" else 0
            spent = None if row.began is None else time.monotonic() - row.began
            table.add_row(
                Text(job.name),
                Text(
                    "evaluating" if is_running and epochs >= job.epochs else row.state,
                    style=_COLOURS.get(row.state, ""),
                ),
                f"{min(epochs, job.epochs)}/{job.epochs}" if epochs else "",
                *(_shown(each) if is_running else "" for each in (spent, _left(job))),
            )
        states = [row.state for row in self._rows.values()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in _ORDER if s in states)
        return Group(table, Text(f"{counts}{self._total_left()}"))

    def _total_left(self) -> str:
        running, waiting = (
            [job for job in self._jobs if self._rows[job.training].state == state]
            for state in ("running", "waiting")
        )
        known = [seconds for job in running for seconds in _epoch_seconds(job)]
        if not known:
            return ""
        total = sum(_left(job) or 0.0 for job in running)
        total += fmean(known) * sum(job.epochs for job in waiting)
        return f"; about {duration(total / self._slots)} of training left"

    def _say(self, line: str) -> None:
        if self._live is None:
            self.announce(line)


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    Example:
        >>> duration(5), duration(130), duration(7500)
        ('5 s', '2 min 10 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _epoch_seconds(job: Job) -> list[float]:
    return [record.get("seconds", 0.0) for record in RunDirectory(job.training).log()]


def _left(job: Job) -> float | None:
    """Seconds of training left, from the epochs that this study has seen."""
    seconds = _epoch_seconds(job)
    return fmean(seconds) * (job.epochs - len(seconds)) if seconds else None


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def launched_rank() -> int | None:
    """This process's number where torchrun or srun started several; None where it is alone."""
    for marker, size, rank in (
        ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK"),
        ("SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_PROCID"),
    ):
        if marker in os.environ and int(os.environ.get(size, "1")) > 1:
            return int(os.environ[rank])
    return None


def run_distributed(
    jobs: Sequence[Job], rank: int, announce: Announce, threads: int | None = None
) -> None:
    """Bring jobs to their end one after the other, all processes working on the same run.

    A failing run is recorded and ends the command, because the other processes can't know of the
    failure. Each process has the threads that its launcher gave it, unless `threads` says
    otherwise.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    for job in jobs:
        with ExitStack() as stack:
            if rank == 0:
                claim = newest_claim(job.training)
                if Observer().held(job.training, claim):
                    raise ConfigError(f"{job.name}: under way on {claim.holder}")
                announce(f"{job.name}: training, all processes together")
                end = stack.enter_context(
                    claimed(job.training, claim.number, on_lost=lambda: os._exit(1))
                )
            try:
                for planned in job.waiting():
                    run(planned.config, job.root, show=False)
            except Exception:
                if rank == 0:
                    record_failure(job, job.waiting(), traceback.format_exc())
                raise
            if rank == 0:
                end("finished")


ATTEMPTS = 3
_SECONDS_BETWEEN_LOOKS = 0.3


@dataclass(frozen=True)
class StudyOutcome:
    """The folder of the results, and the runs that failed."""

    folder: Path
    failed: list[PlannedRun]


def run_study(
    study: StudyConfig,
    folder: str | Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    only: Sequence[str] = (),
    ray: str | None = None,
    show: bool = True,
    announce: Announce = print_line,
    runs: list[PlannedRun] | None = None,
) -> StudyOutcome:
    """Bring every run of the study to its end, in `folder/runs`; finished ones are kept.

    Several runners may work on one folder at a time, also from several machines: each run is done
    by one of them.

    Args:
        study: the checked study.
        folder: where `study.json` and the runs go.
        workers: runs at a time, each in a process of its own: a script that calls this must do so
            under `if __name__ == "__main__":`. Small networks train faster side by side than one
            after the other on all cores.
        threads: threads of each run. By default the cores shared out among `default_workers()`,
            however many workers there are, so that their number changes no result; on Ray 1.
        only: names of the methods to run; all where empty. The others stay as they are.
        ray: address of a Ray cluster that runs the study, or "auto"; `folder` must be on all its
            machines, and `workers` does not count.
        show: whether to draw a live table where the output is a terminal.
        announce: called with a line of text as each run begins or fails.
        runs: the runs of the study where `plan` has given them before.
    """
    runs = plan(study) if runs is None else runs
    wanted = select(study, runs, only)
    folder = Path(folder).resolve()
    rank = launched_rank()
    left_out = _count_finished_unplanned(runs, folder)
    if left_out and not rank:
        announce(
            f"{left_out} finished {'run' if left_out == 1 else 'runs'} in {folder.name} had other "
            "options, methods or seeds and will not be in its report. Their files stay, and the "
            "earlier command brings them back; for a try, name another folder: --out FOLDER"
        )
    _write_index(study, runs, folder)
    jobs = group_jobs(wanted, folder / "runs")
    if rank is None:  # processes that work together must agree on what waits
        with damage_told(announce):
            for planned in wanted:
                run_directory(planned, folder / "runs").set_aside_damage()
    waiting = [job for job in jobs if not job.finished]
    for job in jobs:
        if job not in waiting:
            announce(f"{job.name}: finished before")
    if rank is not None:
        run_distributed(waiting, rank, announce, threads)
    elif waiting:
        pool = (
            LocalProcesses(workers, threads or default_threads())
            if ray is None
            else RayCluster(ray, threads or 1)
        )
        hint = None if threads or ray else idle_cores_hint(min(workers, len(jobs)), pool.threads)
        if hint is not None:
            announce(hint)
        with Board(jobs, slots=pool.slots, live=show, announce=announce) as board:
            _Runner(waiting, pool, board).finish()
    failed = [run for job in jobs for run in job.waiting()]
    _write_environment(folder, runs)
    return StudyOutcome(folder, failed)


@dataclass
class _Runner:
    """Hands jobs to workers until every job has ended, here or elsewhere."""

    waiting: list[Job]
    workers: LocalProcesses | RayCluster
    board: Board
    observer: Observer = field(default_factory=Observer)
    deaths: Counter[Path] = field(default_factory=Counter)
    running: set[Path] = field(default_factory=set)

    def finish(self) -> None:
        self.first_seen = {job.training: newest_claim(job.training).number for job in self.waiting}
        try:
            while self.waiting or self.workers.busy():
                self._hand_out()
                for job, news in self.workers.collect(_SECONDS_BETWEEN_LOOKS):
                    if isinstance(news, End):
                        self._handle(job, news)
                    else:
                        self.board.announce(f"{job.name}: {news}")
        finally:
            self.workers.close()

    def _hand_out(self) -> None:
        for job in list(self.waiting):
            if self.workers.busy() >= self.workers.slots:
                return
            unfinished = self.running | {other.training for other in self.waiting}
            if unfinished.intersection(job.needs):  # may end well or not
                continue
            claim = newest_claim(job.training)
            if self.observer.held(job.training, claim):
                self.board.elsewhere(job, claim.holder)
                continue
            self.waiting.remove(job)
            if job.finished:
                self.board.ended(job, End("finished"))
            # It failed elsewhere since this runner began, and would fail here too.
            elif claim.ended == "failed" and claim.number > self.first_seen[job.training]:
                self.board.ended(job, End("failed", f"{job.reason()} (on {claim.holder})"))
            else:
                self.board.began(job)
                self.running.add(job.training)
                self.workers.submit(job, claim.number, cautious=job.crashed)

    def _handle(self, job: Job, end: End) -> None:
        self.running.discard(job.training)
        if end.status == "storage":
            raise StorageError(end.reason)
        if end.status == "died":
            last_words = self._give_up(job, end)
            if last_words is None:
                self.board.again(job, end.reason, cautious=job.crashed)
                self.waiting.insert(0, job)
                return
            end = End("failed", last_words)
            record_failure(job, job.waiting(), f"WorkerDied: {last_words}\n")
        if end.status == "held":
            self.waiting.append(job)
            return
        self.board.ended(job, end)

    def _give_up(self, job: Job, end: End) -> str | None:
        """Say why a job whose worker died is not tried again; None where it is."""
        if end.crash is None:
            self.deaths[job.training] += 1
            given_up = self.deaths[job.training] == ATTEMPTS
            return f"{end.reason}, {ATTEMPTS} times" if given_up else None
        if job.crashed:
            return f"{end.reason}, with a conservative instruction set too"
        record_crash(job, end.crash)
        return None


def _count_finished_unplanned(runs: list[PlannedRun], folder: Path) -> int:
    """Count the finished runs of the folder's last report that are not planned any more."""
    try:
        shown = {entry["run"] for entry in read_json(folder / "study.json")["runs"]}
    except (OSError, UnreadableFileError, LookupError, TypeError):
        return 0
    planned = {fingerprint(each.config) for each in runs}
    return sum((folder / "runs" / name / "metrics.json").exists() for name in shown - planned)


def _write_index(study: StudyConfig, runs: list[PlannedRun], folder: Path) -> None:
    index = {
        "name": study.name,
        "title": study.title or study.name,
        "methods": list(study.methods),
        "runs": [
            {"method": each.method, "seed": each.seed, "run": fingerprint(each.config)}
            for each in runs
        ],
        "study": study.model_dump(mode="json"),
    }
    try:
        write_json(folder / "study.json", index)
        write_profiles(runs, folder)
    except OSError as error:
        raise StorageError(storage_message(folder, error)) from error


def _write_environment(folder: Path, runs: list[PlannedRun]) -> None:
    """The environment of the first finished run, for the page's foot; each run has its own."""
    for planned in runs:
        found = run_directory(planned, folder / "runs")
        facts = found.path / "environment.json"
        if found.finished and facts.exists():
            write_json(folder / "environment.json", read_json(facts))
            return
