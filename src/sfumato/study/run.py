"""Run a study: each planned run to its end, a failing one recorded while the others go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sfumato._core.files import DamagedFileError, read_json, write_json
from sfumato.engine import fingerprint
from sfumato.study.board import Board
from sfumato.study.claims import Observer, newest_claim
from sfumato.study.config import PlannedRun, StudyConfig, plan, select
from sfumato.study.jobs import Job, group_jobs, run_directory
from sfumato.study.launched import launched_rank, run_together
from sfumato.study.machine import default_threads, idle_cores_hint
from sfumato.study.profiles import write_profiles
from sfumato.study.work import (
    End,
    Note,
    StorageError,
    damage_told,
    record_crash,
    record_failure,
    storage_message,
)
from sfumato.study.workers import LocalProcesses, Workers

Announce = Callable[[str], None]
ATTEMPTS = 3
_SECONDS_BETWEEN_LOOKS = 0.3


@dataclass(frozen=True)
class StudyOutcome:
    """Where the results are and which runs failed."""

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
    announce: Announce = print,
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

    Raises:
        ConfigError: a mistake in the study, or an unknown name in `only`.
        StorageError: results can't be written.
    """
    runs = plan(study)
    wanted = select(study, runs, only)
    folder = Path(folder).resolve()
    rank = launched_rank()
    left_out = _finished_beside(runs, folder)
    if left_out and not rank:
        announce(
            f"{left_out} finished {'run' if left_out == 1 else 'runs'} in {folder.name} had other "
            "options, methods or seeds and will not be in its report. Their files stay, and the "
            "earlier command brings them back; for a try, name another folder: --out FOLDER"
        )
    _write_index(study, runs, folder)
    jobs = group_jobs(wanted, folder / "runs")
    waiting = []
    if rank is None:  # processes that work together must agree on what waits
        with damage_told(announce):
            for planned in wanted:
                run_directory(planned, folder / "runs").set_aside_damage()
    for job in jobs:
        if job.finished:
            announce(f"{job.name}: finished before")
        else:
            waiting.append(job)
    if rank is not None:
        run_together(waiting, rank, announce, threads)
    elif waiting:
        pool = _workers(workers, threads, ray)
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
    workers: Workers
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
                    if isinstance(news, Note):
                        self.board.note(job, news.text)
                    else:
                        self._handle(job, news)
        finally:
            self.workers.close()

    def _hand_out(self) -> None:
        for job in list(self.waiting):
            if self.workers.busy() >= self.workers.slots:
                return
            if self._must_wait(job):
                continue
            claim = newest_claim(job.training)
            if self.observer.held(job.training, claim):
                self.board.elsewhere(job, claim.holder)
                continue
            self.waiting.remove(job)
            if job.finished:
                self.board.ended(job, End("finished"))
            elif claim.ended == "failed" and claim.number > self.first_seen[job.training]:
                self.board.ended(job, End("failed", f"{job.reason()} (on {claim.holder})"))
            else:
                self.board.began(job)
                self.running.add(job.training)
                self.workers.submit(job, claim.number, cautious=job.crashed)

    def _must_wait(self, job: Job) -> bool:
        """Whether a training that the job needs has not ended yet, well or not."""
        unfinished = self.running | {other.training for other in self.waiting}
        return any(each in unfinished for each in job.needs)

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
        """Why a job whose worker died is not tried again; None where it is."""
        if end.crash is None:
            self.deaths[job.training] += 1
            given_up = self.deaths[job.training] == ATTEMPTS
            return f"{end.reason}, {ATTEMPTS} times" if given_up else None
        if job.crashed:
            return f"{end.reason}, with a conservative instruction set too"
        record_crash(job, end.crash)
        return None


def _workers(count: int, threads: int | None, ray: str | None) -> Workers:
    if ray is not None:
        from sfumato.study.cluster import RayCluster

        return RayCluster(ray, threads or 1)
    return LocalProcesses(count, threads or default_threads())


def _finished_beside(runs: list[PlannedRun], folder: Path) -> int:
    """How many finished runs the folder's report shows that are not among the planned ones."""
    try:
        shown = {entry["run"] for entry in read_json(folder / "study.json")["runs"]}
    except (OSError, DamagedFileError, LookupError, TypeError):
        return 0
    planned = {fingerprint(each.config) for each in runs}
    return sum((folder / "runs" / name / "metrics.json").exists() for name in shown - planned)


def _write_index(study: StudyConfig, runs: list[PlannedRun], folder: Path) -> None:
    try:
        write_json(folder / "study.json", _index(study, runs))
        write_profiles(runs, folder)
    except OSError as error:
        raise StorageError(storage_message(folder, error)) from error


def _index(study: StudyConfig, runs: list[PlannedRun]) -> dict[str, object]:
    return {
        "name": study.name,
        "title": study.title or study.name,
        "methods": list(study.methods),
        "runs": [
            {"method": each.method, "seed": each.seed, "run": fingerprint(each.config)}
            for each in runs
        ],
        "study": study.model_dump(mode="json"),
    }


def _write_environment(folder: Path, runs: list[PlannedRun]) -> None:
    """The environment of the first finished run, for the page's foot; each run has its own."""
    for planned in runs:
        found = run_directory(planned, folder / "runs")
        facts = found.path / "environment.json"
        if found.finished and facts.exists():
            write_json(folder / "environment.json", read_json(facts))
            return
