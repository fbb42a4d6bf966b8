"""One training loop and one prediction loop on Lightning Fabric.

Names load when they are first used: an audit needs none of what a training does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.engine.checkpoint import Checkpoint, load_checkpoint, load_weights, save_checkpoint
    from sfumato.engine.config import (
        ConfigError,
        Strict,
        TrainConfig,
        content_hash,
        fingerprint,
        parse,
    )
    from sfumato.engine.detect import detector_from
    from sfumato.engine.detection_scores import detection_metrics
    from sfumato.engine.ensembles import load_ensemble, load_predictor
    from sfumato.engine.networks import NetworkFacts, TrainedNetwork, load_network
    from sfumato.engine.results import Predictions, RunDirectory
    from sfumato.engine.robustness import Robustness, evaluate_robustness
    from sfumato.engine.run_config import RunConfig, training_content
    from sfumato.engine.tasks import run
    from sfumato.engine.train import DivergenceError, Trainer

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
    "load_weights",
    "parse",
    "run",
    "save_checkpoint",
    "training_content",
]

# No module here may be called like a name that another one gives.
_HOMES = {
    "Checkpoint": "checkpoint",
    "ConfigError": "config",
    "DivergenceError": "train",
    "NetworkFacts": "networks",
    "Predictions": "results",
    "Robustness": "robustness",
    "RunConfig": "run_config",
    "RunDirectory": "results",
    "Strict": "config",
    "TrainConfig": "config",
    "TrainedNetwork": "networks",
    "Trainer": "train",
    "content_hash": "config",
    "detection_metrics": "detection_scores",
    "detector_from": "detect",
    "evaluate_robustness": "robustness",
    "fingerprint": "config",
    "load_checkpoint": "checkpoint",
    "load_ensemble": "ensembles",
    "load_network": "networks",
    "load_predictor": "ensembles",
    "load_weights": "checkpoint",
    "parse": "config",
    "run": "tasks",
    "save_checkpoint": "checkpoint",
    "training_content": "run_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato.engine' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.engine.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
