"""The study file: data, model and recipe once, then what each method changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from sfumato._files import read_yaml
from sfumato.engine import ConfigError, RunConfig, Strict, parse


class StudyConfig(Strict):
    """A comparison of methods: every method is trained with every seed, on the same recipe.

    `methods` maps a method's name to the keys of the recipe that it changes, for example
    `{loss: {name: acls, margin: 6.0}}`. The first method is the baseline.
    """

    name: str = Field(min_length=1)
    title: str = ""
    recipe: dict[str, Any]
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    seeds: list[int] = Field(default=[0], min_length=1)


@dataclass(frozen=True)
class PlannedRun:
    """One method with one seed, resolved and checked."""

    method: str
    seed: int
    config: RunConfig


def load_study(path: Path) -> StudyConfig:
    """Read and check a study file; nothing runs before all of it is known to be right."""
    if not path.exists():
        raise ConfigError(f"{path}: no such study file")
    try:
        content = read_yaml(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return parse(StudyConfig, content, str(path))


def plan(study: StudyConfig) -> list[PlannedRun]:
    """All runs of a study, seed by seed, so that a stopped study has compared all methods."""
    runs = []
    for seed in study.seeds:
        for method, changes in study.methods.items():
            source = f"study {study.name}, method {method!r}"
            config = parse(RunConfig, {**_merge(study.recipe, changes), "seed": seed}, source)
            runs.append(PlannedRun(method, seed, config))
    return runs


def _merge(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections are merged key by key; specs (data, model, loss ...) are replaced as a whole."""
    merged = {**recipe, **changes}
    for section in ("train", "predict", "evaluate"):
        ours, theirs = recipe.get(section), changes.get(section)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            merged[section] = {**ours, **theirs}
    return merged
