"""The strict configuration of a run: checked whole before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sfumato.engine.config.mistakes import explain

Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "bf16-true"]
Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration that can't be run; the message says which key, why, and what to do."""


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; a configuration never changes after it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def is_unused(value: Any) -> bool:
    """Of keys that came later: they are left out where unused, so that older runs keep names."""
    return value is None or value is False or value == [] or value == {}


class TrainCopies(Strict):
    """Several augmented copies of each sample in a batch, and how their likelihoods are averaged.

    `jensen` is the mean of the logarithms, which is the tempered likelihood too; `monte_carlo` the
    logarithm of the mean; `bias_corrected` the same without its leading bias (mollification,
    appendix D). A step costs `count` times as much.
    """

    count: int = Field(ge=2)
    estimator: Literal["jensen", "monte_carlo", "bias_corrected"] = "jensen"


class TrainConfig(Strict):
    """How a network is trained.

    `batch_size` is the batch over all devices. `passes` above 1 trains on the mean probability of
    several stochastic passes (training-phase ensembles). `freeze` holds patterns of parameters that
    stay as they are, `head_learning_rate` is the rate of the final layer. `ema` is the decay of an
    average over all steps, `swa` the number of last epochs of a plain mean, `best` what is
    validated to choose an epoch: these weights predict in the end. `sam` is the radius of
    sharpness-aware minimisation. `copies` trains on several augmented copies of each sample.
    With 0 `epochs` the network is evaluated as it comes, from its file of weights.
    """

    epochs: int = Field(20, ge=0)
    batch_size: int = Field(128, ge=1)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = Field(0.1, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "onecycle"
    milestones: list[int] = []
    decay_factor: float = Field(0.1, gt=0, le=1)
    warmup_epochs: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(None, gt=0)
    passes: int = Field(1, ge=1)
    precision: Precision = "32-true"
    channels_last: bool = True
    accelerator: str = "auto"
    devices: int | Literal["auto"] = 1
    strategy: str = "auto"
    num_nodes: int = Field(1, ge=1)
    freeze: list[str] = Field([], exclude_if=is_unused)
    head_learning_rate: float | None = Field(None, gt=0, exclude_if=is_unused)
    ema: float | None = Field(None, gt=0, lt=1, exclude_if=is_unused)
    swa: int | None = Field(None, ge=2, exclude_if=is_unused)
    best: Literal["accuracy", "nll", "scaled_nll"] | None = Field(None, exclude_if=is_unused)
    sam: float | None = Field(None, gt=0, exclude_if=is_unused)
    copies: TrainCopies | None = Field(None, exclude_if=is_unused)

    @model_validator(mode="after")
    def _possible(self) -> TrainConfig:
        if 0 < self.epochs <= self.warmup_epochs:
            raise ValueError(
                f"warmup_epochs ({self.warmup_epochs:g}) must be below epochs ({self.epochs})"
            )
        if bool(self.milestones) != (self.schedule == "multistep"):
            raise ValueError("milestones and schedule: multistep need each other")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("nesterov needs optimizer: sgd with momentum above 0")
        return self

    @model_validator(mode="after")
    def _one_way_to_keep_weights(self) -> TrainConfig:
        if self.swa is None:
            return self
        if 0 < self.epochs < self.swa:
            raise ValueError(f"swa ({self.swa}) must be at most epochs ({self.epochs})")
        for name in ("ema", "best"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"swa is a mean over the last {self.swa} epochs, {name} keeps other weights: "
                    "choose one of them"
                )
        return self


def parse(kind: type[Model], content: Any, source: str = "configuration") -> Model:
    """Make `kind` from plain data, or raise ConfigError with one line per mistake."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"{source}: expected a mapping of keys, got {type(content).__name__}")
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        lines = [explain(kind, dict(item)) for item in error.errors()]
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def fingerprint(config: BaseModel) -> str:
    """A short hash of the full resolved configuration: the name of its run directory."""
    return content_hash(config.model_dump(mode="json"))


def content_hash(content: Mapping[str, Any]) -> str:
    """A short hash of plain data, whatever the order of its keys.

    Example:
        >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
