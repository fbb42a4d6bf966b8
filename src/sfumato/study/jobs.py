"""A job: one training with all the runs of a study that evaluate its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sfumato._core.files import DamagedFileError, read_json
from sfumato.engine import (
    RunConfig,
    RunDirectory,
    content_hash,
    fingerprint,
    training_content,
)
from sfumato.engine.runs.directory import TRAININGS
from sfumato.engine.runs.ensembles import member_trainings
from sfumato.study.config import PlannedRun, members_of


@dataclass(frozen=True)
class Job:
    """What one worker does at a time.

    Args:
        training: the training's directory, which workers claim.
        root: the folder of runs.
        runs: the planned runs that share the training, usually one.
        needs: trainings that must have ended before, of the networks of an ensemble.
    """

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
        """That this job trains; an ensemble trains none."""
        config = self.runs[0].config
        return config.train.epochs if config.predict.ensemble is None else 0

    @property
    def finished(self) -> bool:
        return not self.waiting()

    @property
    def crashed(self) -> bool:
        """Whether a worker crashed on it before, so that it keeps to conservative instructions."""
        path = self.training / "environment.json"
        try:
            return path.exists() and "crash" in read_json(path)
        except DamagedFileError:  # the worker sets it aside
            return False

    def waiting(self) -> list[PlannedRun]:
        """The runs without results."""
        return [run for run in self.runs if not run_directory(run, self.root).finished]

    def logged_epochs(self) -> int:
        return len(RunDirectory(self.training).log())

    def reason(self) -> str:
        """The last line of the traceback of a run that failed."""
        for run in self.waiting():
            path = run_directory(run, self.root).path / "error.txt"
            if path.exists():
                lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                return lines[-1] if lines else "no reason recorded"
        return "no reason recorded"


def run_directory(planned: PlannedRun, root: Path) -> RunDirectory:
    """Where a planned run's results go."""
    return RunDirectory(root / fingerprint(planned.config))


def group_jobs(runs: Iterable[PlannedRun], root: Path) -> list[Job]:
    """One job for each training, in the order of the plan, those that need others last."""
    groups: dict[Path, list[PlannedRun]] = {}
    for run in runs:
        training = root / TRAININGS / content_hash(training_content(run.config))
        groups.setdefault(training, []).append(run)
    jobs = [
        Job(training, root, tuple(members), _needs(members[0].config, root))
        for training, members in groups.items()
    ]
    return sorted(jobs, key=lambda job: bool(job.needs))


def _needs(config: RunConfig, root: Path) -> tuple[Path, ...]:
    return tuple(member_trainings(config, root)) if members_of(config) else ()
