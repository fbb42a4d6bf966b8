"""The configuration of one run: everything that decides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from sfumato._core.import_path import module_folder
from sfumato._core.spec import Spec, content_hash
from sfumato.augment.recipes import mixes
from sfumato.engine.config.kinds import SPEC_KINDS, Kind, Task
from sfumato.engine.config.rules import check_task
from sfumato.engine.config.sections import (
    EvaluateConfig,
    PredictConfig,
    Strict,
    TrainConfig,
    is_unused,
    parse,
    resolved_config,
)


class ObjectsConfig(Strict):
    """Changes of the training images' annotated objects before training."""

    single: bool = False
    """Make one sample of each object, the others painted over."""
    context: float = Field(0.0, ge=0, lt=1)
    """Share of context-only images, labelled uniformly, in the training set."""


class StandardiseConfig(Strict):
    """Numbers to standardise images with, (x - mean) / std for x in [0, 1], channel by channel.

    For networks that were trained elsewhere; without it the training set's own statistics.
    """

    mean: list[float] = Field(min_length=1)
    """Means of the channels."""
    std: list[float] = Field(min_length=1)
    """Standard deviations of the channels."""

    @model_validator(mode="after")
    def _possible(self) -> StandardiseConfig:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                f"mean and std need one number for each channel, std above 0, got mean {self.mean} "
                f"and std {self.std}"
            )
        return self


class RunConfig(Strict):
    """Data, network, loss, training and evaluation. Specs are kept resolved, defaults included."""

    task: Task = "classify"
    """Classify images or texts, segment, or detect."""
    data: dict[str, Any]
    """Source of the images or texts; required."""
    model: dict[str, Any]
    """Network; required."""
    loss: dict[str, Any] = Field({"name": "cross_entropy"}, validate_default=True)
    """Loss that is trained."""
    augment: dict[str, Any] | None = None
    """Augmentation of the training images."""
    inputs: dict[str, Any] | None = None
    """Smoothing of the inputs."""
    labels: dict[str, Any] | None = Field(None, exclude_if=is_unused)
    """Soft labels from the image."""
    objects: ObjectsConfig | None = Field(None, exclude_if=is_unused)
    """Use of the training images' annotated objects."""
    standardise: StandardiseConfig | None = Field(None, exclude_if=is_unused)
    """Statistics that images are standardised with; the training set's own without it."""
    train: TrainConfig = TrainConfig()
    """Training."""
    predict: PredictConfig = PredictConfig()
    """Prediction by the trained network."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Measurements besides the clean validation and test sets."""
    class_weight: Literal["equal", "median_frequency"] = Field(
        "equal", exclude_if=lambda value: value == "equal"
    )
    """Weights of the classes in the loss, of `task: segment`."""
    seed: int = Field(0, ge=0)
    """Seed of the run."""
    classifier: dict[str, Any] | str | None = Field(None, exclude_if=is_unused)
    """Classifier whose trunk a detector uses: a recipe, or the directory of a run."""
    # Set by itself, so that runs whose numbers changed have another name: 2 where mixing and
    # mollification have random numbers of their own, apart from those of dropout.
    streams: Literal[2] | None = Field(None, exclude_if=is_unused)
    _modules: Path | None = PrivateAttr(default_factory=module_folder)

    @property
    def modules(self) -> Path | None:
        """The folder of the user's own modules; no part of the run, whose name has their digest."""
        return self._modules

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        has_own = content.get("inputs") is not None or mixes(content.get("augment"))
        return {**content, "streams": 2 if has_own else None}

    @model_validator(mode="after")
    def _fits_task(self) -> RunConfig:
        check_task(self)
        return self

    @field_validator(*SPEC_KINDS, mode="before")
    @classmethod
    def _known_component(cls, spec: Spec | None, info: ValidationInfo) -> dict[str, Any] | None:
        kind = cast(Kind, info.field_name)
        if spec is None and cls.model_fields[kind].default is None:
            return None
        return resolved_config(kind, cast(Spec, spec))

    @field_validator("classifier", mode="before")
    @classmethod
    def _classifier(cls, content: Any, info: ValidationInfo) -> Any:
        """A recipe is kept resolved; it has the run's seed where it names none."""
        if not isinstance(content, dict):
            return content
        recipe = parse(cls, {"seed": info.data.get("seed", 0), **content}, "classifier")
        return recipe.model_dump(mode="json")


def training_content(config: RunConfig) -> dict[str, Any]:
    """All that decides the weights, of an ensemble all members': the name of a training."""
    # These two sections read the weights and never change them.
    content = config.model_dump(mode="json", exclude={"predict", "evaluate"})
    if config.predict.ensemble is not None:
        content["ensemble"] = config.predict.ensemble
    return content


def training_name(config: RunConfig) -> str:
    return content_hash(training_content(config))
