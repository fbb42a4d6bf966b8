"""Run a study: each planned run in turn, a failing one recorded while the others go on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sfumato._files import write_json
from sfumato.engine import RunDirectory, fingerprint, run
from sfumato.study.config import PlannedRun, StudyConfig, plan

Announce = Callable[[str], None]


@dataclass(frozen=True)
class StudyOutcome:
    """Where the results are and which runs failed."""

    folder: Path
    failed: list[PlannedRun]


def run_study(
    study: StudyConfig, folder: Path, *, show: bool = True, announce: Announce = print
) -> StudyOutcome:
    """Bring every run of the study to its end, in `folder/runs`; finished ones are kept.

    Args:
        study: the checked study.
        folder: where `study.json` and the runs go.
        show: whether to draw progress bars.
        announce: called with a line of text as each run begins or fails.
    """
    runs = plan(study)
    write_json(folder / "study.json", _index(study, runs))
    failed = []
    for number, planned in enumerate(runs, start=1):
        directory = RunDirectory(folder / "runs" / fingerprint(planned.config))
        state = "finished before" if directory.finished else "training"
        announce(f"[{number}/{len(runs)}] {planned.method}, seed {planned.seed}: {state}")
        try:
            run(planned.config, folder / "runs", show=show)
        except Exception as error:
            directory.write_error(traceback.format_exc())
            announce(f"    failed: {error}")
            failed.append(planned)
    return StudyOutcome(folder, failed)


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
