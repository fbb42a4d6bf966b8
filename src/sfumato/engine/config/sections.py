"""The strict sections of a run's configuration, and plain messages for what is wrong in them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sfumato._core.files import ContentError
from sfumato._core.spec import Spec, content_hash
from sfumato.corruptions import CORRUPTIONS, PERTURBATIONS
from sfumato.engine.config.components import components, resolve_component
from sfumato.engine.config.kinds import Kind, Named, check_set_names
from sfumato.engine.config.networks import with_digest
from sfumato.metrics.robustness import alexnet_scores

_PLAIN: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text, in quotes",
    "list_type": lambda _: "must be a list, in brackets",
    "dict_type": lambda _: "must be a mapping of keys, in braces",
    "model_type": lambda _: "must be a mapping of keys, in braces",
    "greater_than": lambda limit: f"must be greater than {limit['gt']:g}",
    "greater_than_equal": lambda limit: f"must be {limit['ge']:g} or more",
    "less_than": lambda limit: f"must be less than {limit['lt']:g}",
    "less_than_equal": lambda limit: f"must be {limit['le']:g} or less",
    "too_short": lambda _: "must not be empty",
    "string_too_short": lambda _: "must not be empty",
    "literal_error": lambda choices: f"must be {choices['expected']}",
}

_ABBREVIATED = {"lr": "learning_rate", "wd": "weight_decay", "amp": "precision"}


def explain(kind: type[BaseModel], item: Mapping[str, Any]) -> str:
    """One mistake: where it is, what is wrong, and what came."""
    location = [str(part) for part in item["loc"]]
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        allowed = sorted(_model_at(kind, location[:-1]).model_fields)
        word = _ABBREVIATED.get(location[-1], location[-1])
        near = difflib.get_close_matches(word, allowed, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        message = f"unknown key; {hint}allowed keys: {', '.join(allowed)}"
    elif item["type"] == "missing":
        message = "this key is required"
    elif item["type"] != "value_error":
        plain = _PLAIN.get(item["type"], lambda _: message)(item.get("ctx", {}))
        message = f"{plain}, got {item['input']!r} ({type(item['input']).__name__})"
    return ": ".join(part for part in (".".join(location), message) if part)


def _model_at(kind: type[BaseModel], location: list[str]) -> type[BaseModel]:
    for name in location:
        field = kind.model_fields.get(name)
        annotation = field.annotation if field else None
        for inner in (annotation, *get_args(annotation)):  # the second for `Section | None`
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                kind = inner
    return kind


Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "bf16-true"]
Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ContentError):
    """A configuration that can't be run; the message says which key, why, and what to do."""


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; a configuration never changes after it is made.

    The text under a field is its line in docs/keys.md and in the JSON schema.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


def is_unused(value: Any) -> bool:
    """True for unused keys that came later: they are left out, so that older runs keep names."""
    return value is None or value is False or value == [] or value == {}


class TrainCopies(Strict):
    """Several augmented copies of each sample in a batch, and how their likelihoods are averaged.

    `jensen` is the mean of the logarithms, which is the tempered likelihood too; `monte_carlo` the
    logarithm of the mean; `bias_corrected` the same without its leading bias.
    """

    count: int = Field(ge=2)
    """Augmented copies of each sample in a batch; a step costs as many times as much."""
    estimator: Literal["jensen", "monte_carlo", "bias_corrected"] = "jensen"
    """How their likelihoods are averaged (mollification, appendix D)."""


class TrainConfig(Strict):
    """Training of a network."""

    epochs: int = Field(20, ge=0)
    """Passes over the training images; with 0 the network is evaluated as it comes."""
    batch_size: int = Field(128, ge=1)
    """Samples of a step, over all devices together."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimiser of the weights."""
    learning_rate: float = Field(0.1, gt=0)
    """Learning rate; with `onecycle` its maximum."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD; Adam and AdamW keep PyTorch's betas."""
    nesterov: bool = False
    """Nesterov's momentum, of SGD."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay of all parameters."""
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "onecycle"
    """Rate over the steps: `onecycle` rises over 30 % of them, then falls to 0 as `cosine` does."""
    milestones: list[int] = []
    """Epochs after which `multistep` multiplies the rate by `decay_factor`."""
    decay_factor: float = Field(0.1, gt=0, le=1)
    """Factor of `multistep` at each milestone."""
    warmup_epochs: float = Field(0.0, ge=0)
    """First epochs, part of `epochs`, over which the rate rises linearly."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient; larger ones are scaled down to it."""
    passes: int = Field(1, ge=1)
    """Stochastic passes whose mean probability is trained on (training-phase ensembles)."""
    precision: Precision = "32-true"
    """Precision of training and prediction, as Fabric names it."""
    channels_last: bool = True
    """Keep images and maps in memory with channels last, which is faster for convolutions."""
    accelerator: str = "auto"
    """Device kind, as Fabric names it: `cpu`, `gpu`, `mps`; `auto` takes what is there."""
    devices: int | Literal["auto"] = 1
    """Devices of one run."""
    strategy: str = "auto"
    """Strategy over devices, as Fabric names it."""
    num_nodes: int = Field(1, ge=1)
    """Machines of one run."""
    freeze: list[str] = Field([], exclude_if=is_unused)
    """Patterns of parameter or module names that stay as they are."""
    head_learning_rate: float | None = Field(None, gt=0, exclude_if=is_unused)
    """Learning rate of the final layer; the others have `learning_rate`."""
    ema: float | None = Field(None, gt=0, lt=1, exclude_if=is_unused)
    """Decay of an exponential average of the weights, which then predicts."""
    swa: int | None = Field(None, ge=2, exclude_if=is_unused)
    """Last epochs whose mean of weights predicts."""
    best: Literal["accuracy", "nll", "scaled_nll"] | None = Field(None, exclude_if=is_unused)
    """Validation value that chooses the epoch whose weights predict."""
    sam: float | None = Field(None, gt=0, exclude_if=is_unused)
    """Radius of sharpness-aware minimisation; a step costs two passes."""
    copies: TrainCopies | None = Field(None, exclude_if=is_unused)
    """Several augmented copies of each sample in a step."""

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
        if self.swa is not None and 0 < self.epochs < self.swa:
            raise ValueError(f"swa ({self.swa}) must be at most epochs ({self.epochs})")
        for name in ("ema", "best"):
            if self.swa is not None and getattr(self, name) is not None:
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


def resolved_config(kind: Named, spec: Spec) -> dict[str, Any]:
    """A part with all its options, and with the digest of the file that its weights come from."""
    try:
        found = resolve_component(kind, spec)
        digests = {"weights_digest", "file_digest"}
        has_file = kind == "model" and not digests.isdisjoint(found.params)
        return with_digest(found.config) if has_file else found.config
    except TypeError as error:  # pydantic reports ValueError only
        raise ValueError(str(error)) from None


class TemporalConfig(Strict):
    """Temporal smoothing over past frames, with weights exp(-decay k)."""

    length: int = Field(5, ge=0)
    """Past frames that are averaged."""
    decay: float = Field(0.8, ge=0)
    """Weights are exp(-decay k) for the frame k steps ago."""


class CopiesConfig(Strict):
    """Test-time augmentation: the mean over changed copies of an image; see `AveragedCopies`."""

    flip: bool = True
    """Average over the image and its mirror image."""
    crop: int = Field(0, ge=0)
    """Shift by as many pixels in the four directions, too."""
    blur: list[float] = Field([])
    """Widths in pixels of blurred copies."""
    weights: Literal["equal", "likelihood"] = "equal"
    """Weigh the copies equally, or by their likelihood on validation images."""

    @model_validator(mode="after")
    def _possible(self) -> CopiesConfig:
        if not (self.flip or self.crop or self.blur):
            raise ValueError("nothing to average: ask for flip, a crop or blur")
        if any(not 0 < sigma < math.inf for sigma in self.blur):
            raise ValueError(f"blur must hold widths in pixels above 0, got {self.blur}")
        return self


class PredictConfig(Strict):
    """Prediction of a trained network: once, or as the mean over dropout masks, or over time.

    With both, each frame is the mean over `mc_dropout` masks (1 in the paper) and then smoothed.
    """

    mc_dropout: int | None = Field(None, ge=1)
    """Dropout masks whose probabilities are averaged."""
    ensemble: Literal["seeds"] | list[int] | list[str] | None = Field(None, exclude_if=is_unused)
    """Networks that are averaged: of all seeds of the study, of some, or of run directories."""
    temporal: TemporalConfig | None = Field(None, exclude_if=is_unused)
    """Temporal smoothing over past frames."""
    feature_clipping: bool = Field(False, exclude_if=is_unused)
    """Clamp the features before the last layer, by as much as suits the validation set."""
    tta: CopiesConfig | None = Field(None, exclude_if=is_unused)
    """Test-time augmentation: the mean over changed copies of an image."""

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


def _unset(value: Any) -> bool:
    return value is None


class AttackConfig(Strict):
    """A gradient attack on the whole predictor: with MC dropout on the mean over its masks."""

    name: Literal["fgsm", "pgd"]
    """Fast gradient sign method, or projected gradient descent."""
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """Radius of the ball, in units of images in [0, 1]."""
    norm: Literal["linf", "l2"] = "linf"
    """Norm of the ball."""
    steps: int | None = Field(None, ge=1, exclude_if=_unset)
    """Steps of `pgd`; 10 without it."""
    step_size: float | None = Field(None, gt=0, allow_inf_nan=False, exclude_if=_unset)
    """Step size of `pgd`; 2.5 epsilon / steps without it."""
    random_start: bool | None = Field(None, exclude_if=_unset)
    """Start of `pgd` at a random point of the ball; true without it."""

    @model_validator(mode="after")
    def _options_of_its_own(self) -> AttackConfig:
        said = {"steps", "step_size", "random_start"} & self.options.keys()
        if self.name == "fgsm" and said:
            found = ", ".join(sorted(said))
            raise ValueError(f"fgsm is one step of size epsilon; {found} is for name: pgd")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name"})

    def describe(self) -> str:
        """One line that two attacks share only where they are the same."""
        said = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.name} ({said})"


class FrequencyConfig(Strict):
    """Measurements where images change in one band of spatial frequencies only.

    Frequencies are in units of pi radians per pixel: 0 is the mean, 1 changes from pixel to pixel.
    """

    frequencies: list[float] = Field([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    """Middles of the bands, in units of pi radians per pixel."""
    width: float = Field(0.1, gt=0, le=1)
    """Width of a band."""
    noise: float | None = Field(0.1, gt=0, allow_inf_nan=False)
    """Standard deviation of Gaussian noise before the band is cut out of it; null for none."""
    equal_energy: bool = False
    """Scale what is left of the noise back to that deviation."""
    attack: AttackConfig | None = None
    """Attack that is made within each band, too."""

    @model_validator(mode="after")
    def _possible(self) -> FrequencyConfig:
        found = self.frequencies
        if not found or any(not 0 <= each <= 1 for each in found) or len(set(found)) < len(found):
            raise ValueError(
                "frequencies must be different numbers from 0 to 1, in units of pi radians per "
                f"pixel, got {found}"
            )
        if self.noise is None and self.attack is None:
            raise ValueError("nothing to do in the bands: give noise (such as 0.1) or an attack")
        if self.equal_energy and self.noise is None:
            raise ValueError("equal_energy scales noise: give noise, or leave it out")
        return self


def check_titles(titles: Any, what: str) -> None:
    """Raise unless each is a text without dots, which part keys in `metrics.json`."""
    for title in titles:
        if not isinstance(title, str) or not title.strip() or "." in title:
            raise ValueError(f"a title of {what} must be a text without dots, got {title!r}")


class EvaluateConfig(Strict):
    """Measurements besides the clean validation and test sets.

    Attacks, functions and further test sets have a title each, under which their numbers stand in
    `metrics.json`.
    """

    resamples: int = Field(1000, ge=0)
    """Bootstrap resamples of the test images, for intervals and verdicts; 0 for none."""
    corruptions: Literal["all"] | list[str] = Field([])
    """Corruptions that test images are measured under."""
    severities: list[int] = Field([1, 2, 3, 4, 5])
    """Severities of the corruptions, from 1 to 5."""
    corrupted_images: int | None = Field(None, ge=1)
    """First test images that are corrupted, perturbed or attacked; all without it."""
    ensemble_sizes: list[int] = Field([])
    """Numbers of dropout masks to measure with."""
    context: bool = Field(False, exclude_if=is_unused)
    """Measure confidence on context-only test images and against objectness."""
    perturbations: Literal["all"] | list[str] = Field([], exclude_if=is_unused)
    """Sequences of slightly changed images, along which predictions should stay steady."""
    temperature: bool | Literal["nll", "ece", "both"] = Field(False, exclude_if=is_unused)
    """Measure after a temperature from validation predictions, too: by `nll` (`true`), by `ece` on
    the grid 0.1, 0.2, ... 10 of released codes, or by `both`."""
    normalised: bool = Field(False, exclude_if=is_unused)
    """Measure how well normalised logits rank predictions."""
    attacks: dict[str, AttackConfig] = Field({}, exclude_if=is_unused)
    """Gradient attacks, each under a title of its own."""
    frequency: FrequencyConfig | None = Field(None, exclude_if=is_unused)
    """Noise or attacks in single bands of frequencies."""
    train: bool = Field(False, exclude_if=is_unused)
    """Measure the training set too, augmented as in training but not mixed."""
    bins: int | list[int] = Field(15, exclude_if=lambda value: value in (15, [15]))
    """Bins of calibration errors and diagrams; further ones of a list add `ece_10` and so on."""
    alexnet: Literal["cifar10", "cifar100", "imagenet"] | None = Field(None, exclude_if=is_unused)
    """Table of AlexNet's scores that corrupted images are measured relative to."""
    own: dict[str, dict[str, Any]] = Field({}, exclude_if=is_unused)
    """Functions of yours by import path, each under a title."""
    also: dict[str, dict[str, Any]] = Field({}, exclude_if=is_unused)
    """Further test sets: sources of data, each under a name."""
    ood: dict[str, dict[str, Any]] = Field({}, exclude_if=is_unused)
    """Strange inputs, of none of the classes: sources of data, each under a name."""
    ood_features: str | Literal[False] | None = Field(None, exclude_if=_unset)
    """Layer before which distances of strange inputs are measured; the last one without it, `false`
    for no distances and no pass over the training images."""
    stored: str | list[str] | None = Field(None, exclude_if=is_unused)
    """Folders of corrupted images or sequences as they are published, read instead of made."""

    @field_validator("also", "ood", mode="before")
    @classmethod
    def _also(cls, specs: Any) -> Any:
        if not isinstance(specs, Mapping):
            return specs
        check_set_names(specs)
        return {name: resolved_config("data", spec) for name, spec in specs.items()}

    @field_validator("own", mode="before")
    @classmethod
    def _own(cls, specs: Any) -> Any:
        """Each is kept resolved; its title is a key of `metrics.json`, where dots part keys."""
        if not isinstance(specs, Mapping):
            return specs
        check_titles(specs, "own")
        return {title: resolved_config("own", spec) for title, spec in specs.items()}

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
    def _strange(self) -> EvaluateConfig:
        if self.ood_features is not None and not self.ood:
            raise ValueError("ood_features is of strange inputs: give ood, or leave it out")
        both = sorted(self.ood.keys() & self.also.keys())
        if both:
            raise ValueError(f"ood and also need different names, both have {', '.join(both)}")
        return self

    @model_validator(mode="after")
    def _comparable(self) -> EvaluateConfig:
        """AlexNet was measured on the benchmark's types, of which at least one is needed."""
        if self.alexnet is not None:
            if not self.corruption_names:
                raise ValueError("alexnet compares corrupted images: give corruptions, such as all")
            for name in self.corruption_names:
                alexnet_scores(self.alexnet, "error", names=[name])
        return self

    @property
    def all_bins(self) -> list[int]:
        """Numbers of bins, the usual one first."""
        return [self.bins] if isinstance(self.bins, int) else list(self.bins)

    @property
    def temperatures(self) -> tuple[Literal["nll", "ece"], ...]:
        if self.temperature == "both":
            return ("nll", "ece")
        if not self.temperature:
            return ()
        return ("ece",) if self.temperature == "ece" else ("nll",)

    @property
    def stored_folders(self) -> list[str]:
        return [self.stored] if isinstance(self.stored, str) else self.stored or []

    @property
    def corruption_names(self) -> tuple[str, ...]:
        return CORRUPTIONS if self.corruptions == "all" else tuple(self.corruptions)

    @property
    def perturbation_names(self) -> tuple[str, ...]:
        return PERTURBATIONS if self.perturbations == "all" else tuple(self.perturbations)


def _check_names(kind: Kind, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in components(kind):
            near = difflib.get_close_matches(name, components(kind), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what, choices = kind.removesuffix("s"), ", ".join(components(kind))
            raise ValueError(f"unknown {what} {name!r}; choose from {choices}{hint}")
