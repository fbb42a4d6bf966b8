"""A job: one training with all the runs of a study that evaluate its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sfumato._core.files import DamagedFileError, read_json
from sfumato.engine import RunDirectory, content_hash, fingerprint, training_content
from sfumato.engine.runs.directory import TRAININGS
from sfumato.study.config import PlannedRun


@dataclass(frozen=True)
class Job:
    """What one worker does at a time.

    Args:
        training: the training's directory, which workers claim.
        root: the folder of runs.
        runs: the planned runs that share the training, usually one.
    """

    training: Path
    root: Path
    runs: tuple[PlannedRun, ...]

    @property
    def name(self) -> str:
        methods = " / ".join(dict.fromkeys(run.method for run in self.runs))
        return f"{methods}, seed {self.runs[0].seed}"

    @property
    def epochs(self) -> int:
        return self.runs[0].config.train.epochs

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
    """One job for each training, in the order of the plan."""
    groups: dict[Path, list[PlannedRun]] = {}
    for run in runs:
        training = root / TRAININGS / content_hash(training_content(run.config))
        groups.setdefault(training, []).append(run)
    return [Job(training, root, tuple(members)) for training, members in groups.items()]
