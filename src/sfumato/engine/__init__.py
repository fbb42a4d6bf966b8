"""One training loop and one prediction loop on Lightning Fabric."""

from sfumato.engine.checkpoint import Checkpoint, load_checkpoint, load_weights, save_checkpoint
from sfumato.engine.config import ConfigError, Strict, TrainConfig, content_hash, fingerprint, parse
from sfumato.engine.detect import detector_from
from sfumato.engine.detection_metrics import detection_metrics
from sfumato.engine.ensembles import load_ensemble, load_predictor
from sfumato.engine.networks import NetworkFacts, TrainedNetwork, load_network
from sfumato.engine.results import Predictions, RunDirectory
from sfumato.engine.robustness import Robustness, evaluate_robustness
from sfumato.engine.run import run
from sfumato.engine.run_config import RunConfig, training_content
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
