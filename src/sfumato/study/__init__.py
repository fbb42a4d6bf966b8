"""From a study file to runs to results on disk."""

from sfumato.study.config import PlannedRun, StudyConfig, load_study, plan
from sfumato.study.run import StudyOutcome, default_workers, run_study

__all__ = [
    "PlannedRun",
    "StudyConfig",
    "StudyOutcome",
    "default_workers",
    "load_study",
    "plan",
    "run_study",
]
