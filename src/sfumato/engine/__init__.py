"""One training loop and one prediction loop on Lightning Fabric.

Names load when they are first used: an audit needs none of what a training does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig, training_content
    from sfumato.engine.config.sections import (
        ConfigError,
        Strict,
        TrainConfig,
        content_hash,
        fingerprint,
        parse,
    )
    from sfumato.engine.evaluation.detection_scores import detection_metrics
    from sfumato.engine.evaluation.robustness import Robustness, evaluate_robustness
    from sfumato.engine.runs.directory import Predictions, RunDirectory
    from sfumato.engine.runs.ensembles import load_ensemble, load_predictor
    from sfumato.engine.runs.networks import NetworkFacts, TrainedNetwork, load_network
    from sfumato.engine.runs.soup import load_soup
    from sfumato.engine.tasks.detect import detector_from
    from sfumato.engine.tasks.execution import run
    from sfumato.engine.training.checkpoint import (
        Checkpoint,
        load_checkpoint,
        load_weights,
        save_checkpoint,
    )
    from sfumato.engine.training.loop import DivergenceError, Trainer

__all__ = [
    "Checkpoint",
    "ConfigError",
    "DivergenceError",
    "NetworkFacts",
    "Predictions",
    "Robustness",
    "RunConfig",
    "RunDirectory",
    "Strict",
    "TrainConfig",
    "TrainedNetwork",
    "Trainer",
    "content_hash",
    "detection_metrics",
    "detector_from",
    "evaluate_robustness",
    "fingerprint",
    "load_checkpoint",
    "load_ensemble",
    "load_network",
    "load_predictor",
    "load_soup",
    "load_weights",
    "parse",
    "run",
    "save_checkpoint",
    "training_content",
]

# No module here may be called like a name that another one gives.
_HOMES = {
    "Checkpoint": "training.checkpoint",
    "ConfigError": "config.sections",
    "DivergenceError": "training.loop",
    "NetworkFacts": "runs.networks",
    "Predictions": "runs.directory",
    "Robustness": "evaluation.robustness",
    "RunConfig": "config.run_config",
    "RunDirectory": "runs.directory",
    "Strict": "config.sections",
    "TrainConfig": "config.sections",
    "TrainedNetwork": "runs.networks",
    "Trainer": "training.loop",
    "content_hash": "config.sections",
    "detection_metrics": "evaluation.detection_scores",
    "detector_from": "tasks.detect",
    "evaluate_robustness": "evaluation.robustness",
    "fingerprint": "config.sections",
    "load_checkpoint": "training.checkpoint",
    "load_ensemble": "runs.ensembles",
    "load_network": "runs.networks",
    "load_predictor": "runs.ensembles",
    "load_soup": "runs.soup",
    "load_weights": "training.checkpoint",
    "parse": "config.sections",
    "run": "tasks.execution",
    "save_checkpoint": "training.checkpoint",
    "training_content": "config.run_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato.engine' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.engine.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
