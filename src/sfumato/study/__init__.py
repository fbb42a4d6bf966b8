"""From a study file to runs to results on disk."""

from sfumato.study.config import PlannedRun, StudyConfig, load_study, plan
from sfumato.study.machine import default_workers
from sfumato.study.overrides import apply_overrides, parse_seeds
from sfumato.study.run import StudyOutcome, run_study
from sfumato.study.work import StorageError

__all__ = [
    "PlannedRun",
    "StorageError",
    "StudyConfig",
    "StudyOutcome",
    "apply_overrides",
    "default_workers",
    "load_study",
    "parse_seeds",
    "plan",
    "run_study",
]
