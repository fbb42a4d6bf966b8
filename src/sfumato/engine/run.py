"""One run: configuration in, trained and evaluated directory out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning_fabric import Fabric

from sfumato.engine import classify
from sfumato.engine.config import fingerprint
from sfumato.engine.results import RunDirectory
from sfumato.engine.run_config import RunConfig

Task = Callable[[Fabric, RunConfig, RunDirectory, bool], None]
TASKS: dict[str, Task] = {"classify": classify.execute}


def run(config: RunConfig, root: Path, *, show: bool = True) -> RunDirectory:
    """Train, predict and evaluate; a finished run is returned as it is, a killed one goes on.

    Args:
        config: the checked configuration.
        root: the folder of runs; the run's own directory is named by the configuration's hash.
        show: whether to draw progress bars on standard error.
    """
    directory = RunDirectory(root / fingerprint(config))
    if directory.finished:
        return directory
    train = config.train
    directory.write_config(config.model_dump(mode="json"))
    fabric = Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy=train.strategy,
        precision=train.precision,
        num_nodes=train.num_nodes,
    )
    fabric.launch(_execute, config, directory.path, show)  # type: ignore[arg-type]
    return directory


def _execute(fabric: Fabric, config: RunConfig, path: Path, show: bool) -> None:
    task = TASKS[config.task]
    task(fabric, config, RunDirectory(path), show and fabric.is_global_zero)
