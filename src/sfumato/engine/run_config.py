"""The configuration of one run: everything that decides its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from sfumato._spec import Resolved, Spec
from sfumato.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    HARDER_PERTURBATIONS,
    PERTURBATIONS,
)
from sfumato.engine.components import (
    resolve_augmentation,
    resolve_data,
    resolve_inputs,
    resolve_labels,
    resolve_loss,
    resolve_model,
)
from sfumato.engine.config import Strict, TrainConfig, parse
from sfumato.engine.task_rules import check_task


class TemporalConfig(Strict):
    """Temporal smoothing over past frames, with weights exp(-decay k)."""

    length: int = Field(5, ge=0)
    decay: float = Field(0.8, ge=0)


class PredictConfig(Strict):
    """How a trained network predicts: once, or as the mean over dropout masks, or over time.

    With both, each frame is the mean over `mc_dropout` masks (1 in the paper) and then smoothed.
    """

    mc_dropout: int | None = Field(None, ge=1)
    # Left out of the configuration, and so of the run's name, where it is not used.
    temporal: TemporalConfig | None = Field(None, exclude_if=lambda value: value is None)


class ObjectsConfig(Strict):
    """What happens to the training images' annotated objects before training.

    `single` makes one sample of each object, the others painted over; `context` is the share of
    context-only images, labelled uniformly, in the training set.
    """

    single: bool = False
    context: float = Field(0.0, ge=0, lt=1)


def _unused(value: Any) -> bool:
    """Sections that came later are left out where unused, so that older runs keep their names."""
    return value is None or value is False or value == []


class EvaluateConfig(Strict):
    """What is measured besides the clean validation and test sets.

    `context` measures confidence on context-only test images and against objectness,
    `perturbations` how steady predictions stay along sequences of slightly changed images (the
    first `corrupted_images`, as for corruptions), `temperature` the test set and the corrupted
    images after a temperature that was fitted on validation predictions.
    """

    resamples: int = Field(1000, ge=0)
    corruptions: Literal["all"] | list[str] = Field([])
    severities: list[int] = Field([1, 2, 3, 4, 5])
    corrupted_images: int | None = Field(None, ge=1)
    ensemble_sizes: list[int] = Field([])
    context: bool = Field(False, exclude_if=_unused)
    perturbations: Literal["all"] | list[str] = Field([], exclude_if=_unused)
    temperature: bool = Field(False, exclude_if=_unused)

    @model_validator(mode="after")
    def _known(self) -> EvaluateConfig:
        sequences = (*PERTURBATIONS, *HARDER_PERTURBATIONS)
        for name in self.perturbation_names:
            if name not in sequences:
                choices = ", ".join(sequences)
                raise ValueError(f"unknown perturbation {name!r}; choose from {choices}")
        unknown = set(self.corruption_names) - {*CORRUPTIONS, *EXTRA_CORRUPTIONS}
        if unknown:
            choices = ", ".join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))
            raise ValueError(f"unknown corruption {sorted(unknown)[0]!r}; choose from {choices}")
        if not set(self.severities) <= {1, 2, 3, 4, 5} or not self.severities:
            raise ValueError(f"severities must be from 1 to 5, got {self.severities}")
        if any(size < 1 for size in self.ensemble_sizes):
            raise ValueError(f"ensemble_sizes must be at least 1, got {self.ensemble_sizes}")
        return self

    @property
    def corruption_names(self) -> tuple[str, ...]:
        return CORRUPTIONS if self.corruptions == "all" else tuple(self.corruptions)

    @property
    def perturbation_names(self) -> tuple[str, ...]:
        return PERTURBATIONS if self.perturbations == "all" else tuple(self.perturbations)


class RunConfig(Strict):
    """Data, network, loss, training and evaluation. Specs are kept resolved, defaults included."""

    task: Literal["classify", "segment", "detect"] = "classify"
    data: dict[str, Any]
    model: dict[str, Any]
    loss: dict[str, Any] = Field({"name": "cross_entropy"}, validate_default=True)
    augment: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    labels: dict[str, Any] | None = Field(None, exclude_if=_unused)
    objects: ObjectsConfig | None = Field(None, exclude_if=_unused)
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    class_weight: Literal["equal", "median_frequency"] = Field(
        "equal", exclude_if=lambda value: value == "equal"
    )
    seed: int = Field(0, ge=0)
    # For task detect: the classifier whose trunk is used, as a run's directory or as a recipe.
    classifier: dict[str, Any] | str | None = Field(None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _fits_task(self) -> RunConfig:
        check_task(self)
        return self

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, spec: Spec) -> dict[str, Any]:
        return _resolved(resolve_data, spec)

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, spec: Spec) -> dict[str, Any]:
        return _resolved(resolve_model, spec)

    @field_validator("loss", mode="before")
    @classmethod
    def _loss(cls, spec: Spec) -> dict[str, Any]:
        return _resolved(resolve_loss, spec)

    @field_validator("augment", mode="before")
    @classmethod
    def _augment(cls, spec: Spec | None) -> dict[str, Any] | None:
        return None if spec is None else _resolved(resolve_augmentation, spec)

    @field_validator("inputs", mode="before")
    @classmethod
    def _inputs(cls, spec: Spec | None) -> dict[str, Any] | None:
        return None if spec is None else _resolved(resolve_inputs, spec)

    @field_validator("labels", mode="before")
    @classmethod
    def _labels(cls, spec: Spec | None) -> dict[str, Any] | None:
        return None if spec is None else _resolved(resolve_labels, spec)

    @field_validator("classifier", mode="before")
    @classmethod
    def _classifier(cls, content: Any, info: ValidationInfo) -> Any:
        """A recipe is kept resolved; it has the run's seed where it names none."""
        if not isinstance(content, dict):
            return content
        recipe = parse(cls, {"seed": info.data.get("seed", 0), **content}, "classifier")
        return recipe.model_dump(mode="json")


# They read the weights and never change them; every other section decides the weights.
AFTER_TRAINING = ("predict", "evaluate")


def training_content(config: RunConfig) -> dict[str, Any]:
    """All of a configuration that decides the weights: what names the directory of a training."""
    return config.model_dump(mode="json", exclude=set(AFTER_TRAINING))


def _resolved(resolver: Callable[[Spec], Resolved], spec: Spec) -> dict[str, Any]:
    try:
        return resolver(spec).config
    except TypeError as error:  # pydantic reports ValueError only
        raise ValueError(str(error)) from None
