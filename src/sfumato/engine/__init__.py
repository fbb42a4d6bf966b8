"""One training loop and one prediction loop on Lightning Fabric."""

from sfumato.engine.checkpoint import Checkpoint, load_checkpoint, load_weights, save_checkpoint
from sfumato.engine.config import ConfigError, Strict, TrainConfig, content_hash, fingerprint, parse
from sfumato.engine.results import Predictions, RunDirectory
from sfumato.engine.robustness import Robustness, evaluate_robustness
from sfumato.engine.run import run
from sfumato.engine.run_config import RunConfig, training_content
from sfumato.engine.train import DivergenceError, Trainer

__all__ = [
    "Checkpoint",
    "ConfigError",
    "DivergenceError",
    "Predictions",
    "Robustness",
    "RunConfig",
    "RunDirectory",
    "Strict",
    "TrainConfig",
    "Trainer",
    "content_hash",
    "evaluate_robustness",
    "fingerprint",
    "load_checkpoint",
    "load_weights",
    "parse",
    "run",
    "save_checkpoint",
    "training_content",
]
