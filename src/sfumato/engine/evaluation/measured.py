"""What an evaluation needs to be told: a run's configuration, or as much of one without a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sfumato.engine.config.evaluate_section import EvaluateConfig
from sfumato.engine.config.predict_section import PredictConfig
from sfumato.engine.config.sections import TrainConfig


class Measured(Protocol):
    """The sections of a run's configuration that decide what is measured, and how."""

    @property
    def predict(self) -> PredictConfig: ...

    @property
    def evaluate(self) -> EvaluateConfig: ...

    @property
    def train(self) -> TrainConfig: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class MeasuredSections:
    """The sections alone, for a network that no run has trained."""

    predict: PredictConfig
    evaluate: EvaluateConfig
    train: TrainConfig
    seed: int = 0
