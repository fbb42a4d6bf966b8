"""The configuration of one run: everything that decides its numbers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from sfumato._core.import_path import module_folder
from sfumato._core.spec import Spec
from sfumato.augment.named import mixes
from sfumato.corruptions import CORRUPTIONS, PERTURBATIONS
from sfumato.engine.config.attack_sections import AttackConfig, FrequencyConfig, check_titles
from sfumato.engine.config.own_parts import Named
from sfumato.engine.config.part_kinds import SPEC_KINDS, Kind, Task
from sfumato.engine.config.parts import parts, resolve_part
from sfumato.engine.config.sections import Strict, TrainConfig, parse
from sfumato.engine.config.set_names import check_set_names
from sfumato.engine.config.task_rules import check_task
from sfumato.engine.config.weight_files import with_digest
from sfumato.metrics.corruption_ratio import alexnet_scores


class TemporalConfig(Strict):
    """Temporal smoothing over past frames, with weights exp(-decay k)."""

    length: int = Field(5, ge=0)
    decay: float = Field(0.8, ge=0)


class CopiesConfig(Strict):
    """Test-time augmentation: the mean over changed copies of an image; see `AveragedCopies`."""

    flip: bool = True
    crop: int = Field(0, ge=0)
    blur: list[float] = Field([])
    weights: Literal["equal", "likelihood"] = "equal"

    @model_validator(mode="after")
    def _possible(self) -> CopiesConfig:
        if not (self.flip or self.crop or self.blur):
            raise ValueError("nothing to average: ask for flip, a crop or blur")
        if any(not 0 < sigma < math.inf for sigma in self.blur):
            raise ValueError(f"blur must hold widths in pixels above 0, got {self.blur}")
        return self


class PredictConfig(Strict):
    """How a trained network predicts: once, or as the mean over dropout masks, or over time.

    With both, each frame is the mean over `mc_dropout` masks (1 in the paper) and then smoothed.
    `ensemble` averages over networks: "seeds" over those of all seeds of the study, which a run
    holds as the list of them; or over the networks of given run directories.
    `feature_clipping` clamps the features before the last layer, by as much as suits the validation
    set; `tta` averages over copies of the image.
    """

    mc_dropout: int | None = Field(None, ge=1)
    ensemble: Literal["seeds"] | list[int] | list[str] | None = Field(
        None, exclude_if=lambda value: value is None
    )
    # Left out of the configuration, and so of the run's name, where it is not used.
    temporal: TemporalConfig | None = Field(None, exclude_if=lambda value: value is None)
    feature_clipping: bool = Field(False, exclude_if=lambda value: not value)
    tta: CopiesConfig | None = Field(None, exclude_if=lambda value: value is None)

    @field_validator("ensemble", mode="before")
    @classmethod
    def _different_members(cls, members: Any) -> Any:
        """In one message, where the types alone would give one for each form."""
        if members is None or members == "seeds":
            return members
        kinds = {type(each) for each in members} if isinstance(members, list) else set()
        if kinds not in ({int}, {str}) or len(members) < 2 or len(set(members)) < len(members):
            raise ValueError(
                "an ensemble is over seeds (the word, for all of the study) or over a list of two "
                f"or more different seeds, or run directories, got {members!r}"
            )
        return members


class ObjectsConfig(Strict):
    """What happens to the training images' annotated objects before training.

    `single` makes one sample of each object, the others painted over; `context` is the share of
    context-only images, labelled uniformly, in the training set.
    """

    single: bool = False
    context: float = Field(0.0, ge=0, lt=1)


class StandardiseConfig(Strict):
    """What images are standardised with, (x - mean) / std for x in [0, 1], channel by channel.

    For networks that were trained elsewhere; without it the training set's own statistics.
    """

    mean: list[float] = Field(min_length=1)
    std: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> StandardiseConfig:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                f"mean and std need one number for each channel, std above 0, got mean {self.mean} "
                f"and std {self.std}"
            )
        return self


def _unused(value: Any) -> bool:
    """Sections that came later are left out where unused, so that older runs keep their names."""
    return value is None or value is False or value == [] or value == {}


class EvaluateConfig(Strict):
    """What is measured besides the clean validation and test sets.

    `context` measures confidence on context-only test images and against objectness,
    `perturbations` how steady predictions stay along sequences of slightly changed images (the
    first `corrupted_images`, as for corruptions), `temperature` the test set and the corrupted
    images after a temperature that was fitted on validation predictions, `normalised` how well
    normalised logits, with the norm that validation predictions ask for, say which to keep.
    `attacks` are gradient attacks and `frequency` damage in single bands of frequencies, both on
    the first `corrupted_images`. `train` measures the training set too, augmented as it is trained
    on (but not mixed). `bins` is the number of bins of calibration errors and reliability diagrams;
    of a list, the first is that, and the others give further errors (`ece_10`). `temperature: ece`
    is chosen by ECE from the grid 0.1, 0.2, ... 10 of released codes, `both` measures both.
    `alexnet` names the table of AlexNet's scores that corrupted images are measured relative to
    (mCE, mCNLL, mCECE). `own` are functions of the user's by import path. Attacks and
    functions have a title each, under which their numbers stand in `metrics.json`. `also` are
    further test sets, each a source of data under the name that its numbers have there; of a
    source with several parts the test part. `stored` are folders of corrupted images or
    sequences as the benchmarks publish them, which are read instead of made.
    """

    resamples: int = Field(1000, ge=0)
    corruptions: Literal["all"] | list[str] = Field([])
    severities: list[int] = Field([1, 2, 3, 4, 5])
    corrupted_images: int | None = Field(None, ge=1)
    ensemble_sizes: list[int] = Field([])
    context: bool = Field(False, exclude_if=_unused)
    perturbations: Literal["all"] | list[str] = Field([], exclude_if=_unused)
    temperature: bool | Literal["nll", "ece", "both"] = Field(False, exclude_if=_unused)
    normalised: bool = Field(False, exclude_if=_unused)
    attacks: dict[str, AttackConfig] = Field({}, exclude_if=_unused)
    frequency: FrequencyConfig | None = Field(None, exclude_if=_unused)
    train: bool = Field(False, exclude_if=_unused)
    bins: int | list[int] = Field(15, exclude_if=lambda value: value in (15, [15]))
    alexnet: Literal["cifar10", "cifar100", "imagenet"] | None = Field(None, exclude_if=_unused)
    own: dict[str, dict[str, Any]] = Field({}, exclude_if=_unused)
    also: dict[str, dict[str, Any]] = Field({}, exclude_if=_unused)
    stored: str | list[str] | None = Field(None, exclude_if=_unused)

    @field_validator("also", mode="before")
    @classmethod
    def _also(cls, specs: Any) -> Any:
        """Each is kept resolved."""
        if not isinstance(specs, Mapping):
            return specs
        check_set_names(specs)
        return {name: _resolved("data", spec) for name, spec in specs.items()}

    @field_validator("own", mode="before")
    @classmethod
    def _own(cls, specs: Any) -> Any:
        """Each is kept resolved; its title is a key of `metrics.json`, where dots part keys."""
        if not isinstance(specs, Mapping):
            return specs
        check_titles(specs, "own")
        return {title: _resolved("own", spec) for title, spec in specs.items()}

    @model_validator(mode="after")
    def _known(self) -> EvaluateConfig:
        _check_names("perturbations", self.perturbation_names)
        _check_names("corruptions", self.corruption_names)
        if not set(self.severities) <= {1, 2, 3, 4, 5} or not self.severities:
            raise ValueError(f"severities must be from 1 to 5, got {self.severities}")
        if any(size < 1 for size in self.ensemble_sizes):
            raise ValueError(f"ensemble_sizes must be at least 1, got {self.ensemble_sizes}")
        check_titles(self.attacks, "attacks")
        bins = self.all_bins
        if not bins or min(bins) < 1 or len(set(bins)) < len(bins):
            raise ValueError(f"bins must be different numbers of 1 or more, got {self.bins}")
        return self

    @model_validator(mode="after")
    def _comparable(self) -> EvaluateConfig:
        """AlexNet was measured on the benchmark's types, of which at least one is needed."""
        if self.alexnet is None:
            return self
        names = self.corruption_names
        if not names:
            raise ValueError("alexnet compares corrupted images: give corruptions, such as all")
        for name in names:
            alexnet_scores(self.alexnet, "error", names=[name])
        return self

    @property
    def all_bins(self) -> list[int]:
        """Numbers of bins, the usual one first."""
        return [self.bins] if isinstance(self.bins, int) else list(self.bins)

    @property
    def temperatures(self) -> tuple[Literal["nll", "ece"], ...]:
        """By what temperatures are chosen."""
        if self.temperature == "both":
            return ("nll", "ece")
        if self.temperature == "ece":
            return ("ece",)
        return ("nll",) if self.temperature else ()

    @property
    def stored_folders(self) -> list[str]:
        if self.stored is None:
            return []
        return [self.stored] if isinstance(self.stored, str) else self.stored

    @property
    def corruption_names(self) -> tuple[str, ...]:
        return CORRUPTIONS if self.corruptions == "all" else tuple(self.corruptions)

    @property
    def perturbation_names(self) -> tuple[str, ...]:
        return PERTURBATIONS if self.perturbations == "all" else tuple(self.perturbations)


def _resolved(kind: Named, spec: Spec) -> dict[str, Any]:
    try:
        found = resolve_part(kind, spec)
        digests = {"weights_digest", "file_digest"}
        has_file = kind == "model" and not digests.isdisjoint(found.params)
        return with_digest(found.config) if has_file else found.config
    except TypeError as error:  # pydantic reports ValueError only
        raise ValueError(str(error)) from None


def _check_names(kind: Kind, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in parts(kind):
            near = difflib.get_close_matches(name, parts(kind), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what, choices = kind.removesuffix("s"), ", ".join(parts(kind))
            raise ValueError(f"unknown {what} {name!r}; choose from {choices}{hint}")


class RunConfig(Strict):
    """Data, network, loss, training and evaluation. Specs are kept resolved, defaults included."""

    task: Task = "classify"
    data: dict[str, Any]
    model: dict[str, Any]
    loss: dict[str, Any] = Field({"name": "cross_entropy"}, validate_default=True)
    augment: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    labels: dict[str, Any] | None = Field(None, exclude_if=_unused)
    objects: ObjectsConfig | None = Field(None, exclude_if=_unused)
    standardise: StandardiseConfig | None = Field(None, exclude_if=_unused)
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    class_weight: Literal["equal", "median_frequency"] = Field(
        "equal", exclude_if=lambda value: value == "equal"
    )
    seed: int = Field(0, ge=0)
    # For task detect: the classifier whose trunk is used, as a run's directory or as a recipe.
    classifier: dict[str, Any] | str | None = Field(None, exclude_if=lambda value: value is None)
    # Set by itself, so that runs whose numbers changed have another name: 2 where mixing and
    # mollification have random numbers of their own, apart from those of dropout.
    streams: Literal[2] | None = Field(None, exclude_if=_unused)
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
    def _known_part(cls, spec: Spec | None, info: ValidationInfo) -> dict[str, Any] | None:
        kind = cast(Kind, info.field_name)
        if spec is None and cls.model_fields[kind].default is None:
            return None
        return _resolved(kind, cast(Spec, spec))

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
    """All of a configuration that decides the weights: what names the directory of a training.

    Those of an ensemble are the weights of all its members.
    """
    content = config.model_dump(mode="json", exclude=set(AFTER_TRAINING))
    if config.predict.ensemble is not None:
        content["ensemble"] = config.predict.ensemble
    return content
