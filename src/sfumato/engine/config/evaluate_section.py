"""The section of a run that says what is measured."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sfumato.corruptions import CORRUPTIONS, PERTURBATIONS
from sfumato.engine.config.attack_sections import AttackConfig, FrequencyConfig, check_titles
from sfumato.engine.config.part_kinds import Kind
from sfumato.engine.config.parts import parts
from sfumato.engine.config.resolved import resolved_config
from sfumato.engine.config.sections import Strict, is_unused
from sfumato.engine.config.set_names import check_set_names
from sfumato.metrics.corruption_ratio import alexnet_scores


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
    context: bool = Field(False, exclude_if=is_unused)
    perturbations: Literal["all"] | list[str] = Field([], exclude_if=is_unused)
    temperature: bool | Literal["nll", "ece", "both"] = Field(False, exclude_if=is_unused)
    normalised: bool = Field(False, exclude_if=is_unused)
    attacks: dict[str, AttackConfig] = Field({}, exclude_if=is_unused)
    frequency: FrequencyConfig | None = Field(None, exclude_if=is_unused)
    train: bool = Field(False, exclude_if=is_unused)
    bins: int | list[int] = Field(15, exclude_if=lambda value: value in (15, [15]))
    alexnet: Literal["cifar10", "cifar100", "imagenet"] | None = Field(None, exclude_if=is_unused)
    own: dict[str, dict[str, Any]] = Field({}, exclude_if=is_unused)
    also: dict[str, dict[str, Any]] = Field({}, exclude_if=is_unused)
    stored: str | list[str] | None = Field(None, exclude_if=is_unused)

    @field_validator("also", mode="before")
    @classmethod
    def _also(cls, specs: Any) -> Any:
        """Each is kept resolved."""
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


def _check_names(kind: Kind, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in parts(kind):
            near = difflib.get_close_matches(name, parts(kind), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what, choices = kind.removesuffix("s"), ", ".join(parts(kind))
            raise ValueError(f"unknown {what} {name!r}; choose from {choices}{hint}")
