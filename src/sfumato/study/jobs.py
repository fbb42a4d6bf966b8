"""Jobs of a study (one training with its runs), and what they take of the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato._core.files import UnreadableFileError, last_line, read_json
from sfumato.engine import RunDirectory, fingerprint
from sfumato.engine.config.run_config import training_name
from sfumato.engine.runs.directory import TRAININGS
from sfumato.engine.tasks.ensembles import member_trainings
from sfumato.study.config import PlannedRun, members_of

CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGILL, signal.SIGABRT)


def usable_cores() -> int:
    """The cores that this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers() -> int:
    """One process for each core, up to four."""
    return min(4, usable_cores())


def default_threads() -> int:
    """Threads of each run: the cores shared out among the default number of workers.

    Sums are taken in another order with other threads, so neither `--workers` nor the number of
    runs that wait may change this.
    """
    return max(1, usable_cores() // default_workers())


def idle_cores_hint(at_a_time: int, threads: int) -> str | None:
    """One line where a study of few runs leaves half of the cores or more without work."""
    cores, busy = usable_cores(), at_a_time * threads
    if 2 * busy > cores:
        return None
    return (
        f"Runs at a time: {at_a_time}, threads of each: {threads}. "
        f"{cores - busy} of {cores} cores have no work; "
        f"--threads {cores // at_a_time} uses them (other threads change the last digits)."
    )


def conservative_environment() -> dict[str, str]:
    """Variables that keep PyTorch to instructions that have been in use for a decade.

    Kernels for the newest ones are where libraries still crash, and some virtual machines announce
    instructions that they then refuse.
    """
    found = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    # An instruction set that is named is used unchecked: only ever step down to it.
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        found["ATEN_CPU_CAPABILITY"] = "avx2"
    return found


@dataclass(frozen=True)
class Job:
    """A training with its runs: the work of one worker at a time."""

    training: Path
    root: Path
    runs: tuple[PlannedRun, ...]
    needs: tuple[Path, ...] = ()

    @property
    def method(self) -> str:
        return " / ".join(dict.fromkeys(run.method for run in self.runs))

    @property
    def name(self) -> str:
        config = self.runs[0].config
        if config.predict.ensemble is None:
            return f"{self.method}, seed {config.seed}"
        seeds = ", ".join(str(seed) for seed in members_of(config))
        return f"{self.method}, seeds {seeds}" if seeds else self.method

    @property
    def epochs(self) -> int:
        """Epochs that this job trains; an ensemble trains none."""
        config = self.runs[0].config
        return config.train.epochs if config.predict.ensemble is None else 0

    @property
    def finished(self) -> bool:
        return not self.waiting()

    @property
    def crashed(self) -> bool:
        """True if a worker crashed on it before: it then keeps to conservative instructions."""
        path = self.training / "environment.json"
        try:
            return path.exists() and "crash" in read_json(path)
        except UnreadableFileError:  # the worker sets it aside
            return False

    def waiting(self) -> list[PlannedRun]:
        return [run for run in self.runs if not run_directory(run, self.root).finished]

    def logged_epochs(self) -> int:
        return len(RunDirectory(self.training).log())

    def reason(self) -> str:
        """The last line of the traceback of a run that failed."""
        for run in self.waiting():
            path = run_directory(run, self.root).path / "error.txt"
            if path.exists():
                return last_line(path)
        return "no reason recorded"


def run_directory(planned: PlannedRun, root: Path) -> RunDirectory:
    return RunDirectory(root / fingerprint(planned.config))


def group_jobs(runs: Iterable[PlannedRun], root: Path) -> list[Job]:
    """One job for each training, in the order of the plan, those that need others last."""
    groups: dict[Path, list[PlannedRun]] = {}
    for run in runs:
        training = root / TRAININGS / training_name(run.config)
        groups.setdefault(training, []).append(run)
    jobs = []
    for training, members in groups.items():
        config = members[0].config
        needs = member_trainings(config, root) if members_of(config) else ()
        jobs.append(Job(training, root, tuple(members), tuple(needs)))
    return sorted(jobs, key=lambda job: bool(job.needs))
