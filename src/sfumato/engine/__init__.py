"""One training loop and one prediction loop on Lightning Fabric.

Names load when they are first used: an audit needs none of what a training does.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from sfumato._core.exports import on_first_use as _on_first_use

if _TYPE_CHECKING:
    from sfumato.engine.config.run_config import (
        RunConfig as RunConfig,
        training_content as training_content,
    )
    from sfumato.engine.config.sections import (
        ConfigError as ConfigError,
        TrainConfig as TrainConfig,
        fingerprint as fingerprint,
        parse as parse,
    )
    from sfumato.engine.runs.directory import (
        Predictions as Predictions,
        RunDirectory as RunDirectory,
    )
    from sfumato.engine.tasks.detect import detector_from as detector_from
    from sfumato.engine.tasks.ensembles import (
        load_ensemble as load_ensemble,
        load_predictor as load_predictor,
        load_soup as load_soup,
    )
    from sfumato.engine.tasks.execution import run as run
    from sfumato.engine.training.checkpoint import (
        Checkpoint as Checkpoint,
        TrainedNetwork as TrainedNetwork,
        load_checkpoint as load_checkpoint,
        load_network as load_network,
        load_weights as load_weights,
        save_checkpoint as save_checkpoint,
    )
    from sfumato.engine.training.loop import DivergenceError as DivergenceError, Trainer as Trainer

_NAMES = {
    "config.run_config": ("RunConfig", "training_content"),
    "config.sections": ("ConfigError", "TrainConfig", "fingerprint", "parse"),
    "runs.directory": ("Predictions", "RunDirectory"),
    "tasks.detect": ("detector_from",),
    "tasks.ensembles": ("load_ensemble", "load_predictor", "load_soup"),
    "tasks.execution": ("run",),
    "training.checkpoint": (
        *("Checkpoint", "TrainedNetwork", "load_checkpoint", "load_network"),
        *("load_weights", "save_checkpoint"),
    ),
    "training.loop": ("DivergenceError", "Trainer"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = _on_first_use(__name__, _HOMES, globals())
