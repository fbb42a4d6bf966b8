"""From a study file to runs to results on disk."""

from sfumato._core.exports import public_names as _public_names
from sfumato.study.config import (
    PlannedRun as PlannedRun,
    StudyConfig as StudyConfig,
    load_study as load_study,
    plan as plan,
)
from sfumato.study.run import StudyOutcome as StudyOutcome, run_study as run_study

__all__ = _public_names(globals())
