"""One run: configuration in, trained and evaluated directory out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sfumato._core.files import read_json, read_or_set_aside, write_json
from sfumato._core.import_path import searching
from sfumato.engine.config.build import build_fabric
from sfumato.engine.config.run_config import RunConfig, training_content
from sfumato.engine.config.sections import fingerprint
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory, environment_facts
from sfumato.engine.tasks import classify, detect, segment

# A task trains (which does nothing where the checkpoint is at its last epoch), predicts and
# measures; what it keeps through the directory is not computed again by a later evaluation.
Task = Callable[[Fabric, RunConfig, RunDirectory, bool], None]
TASKS: dict[str, Task] = {
    "classify": classify.execute,
    "segment": segment.execute,
    "detect": detect.execute,
}


def run(config: RunConfig, root: str | Path, *, show: bool = True) -> RunDirectory:
    """Train, predict and evaluate; a finished run is returned as it is, a killed one goes on.

    A configuration that differs from an earlier one in `predict` or `evaluate` only is evaluated
    with the weights that are there already.

    Args:
        config: the checked configuration.
        root: the folder of runs; the run's own directory is named by the configuration's hash.
        show: whether to draw progress bars on standard error.
    """
    directory = RunDirectory(Path(root) / fingerprint(config))
    if directory.finished:
        return directory
    directory.begin(config.model_dump(mode="json"), training_content(config))
    fabric = build_fabric(config.train)
    fabric.launch(_execute, config, directory.path, show)  # type: ignore[arg-type]
    return directory


def _execute(fabric: Fabric, config: RunConfig, path: Path, show: bool) -> None:
    directory = RunDirectory(path)
    if fabric.is_global_zero:
        for folder in {path, directory.training}:
            # A training that is evaluated later, elsewhere, keeps the facts of where it began;
            # what a study noted before (a crash) stays beside them.
            file = folder / "environment.json"
            known = read_or_set_aside(file, read_json, "it is written anew") or {}
            if "versions" not in known:
                write_json(file, {**environment_facts(fabric), **known})
        directory.records.repair()
    task = TASKS[config.task]
    with searching(config.modules):
        task(fabric, config, directory, show and fabric.is_global_zero)
