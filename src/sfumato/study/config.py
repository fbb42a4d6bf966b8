"""The study file: data, model and recipe once, then what each method changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, field_validator

from sfumato._core.import_path import module_folder, searching
from sfumato.engine import (
    ConfigError,
    RunConfig,
    Strict,
    content_hash,
    fingerprint,
    parse,
    training_content,
)
from sfumato.engine.config.evaluate_section import EvaluateConfig
from sfumato.engine.runs.ensembles import member_config
from sfumato.study.extended import merge_recipe, read_extended


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
    _modules: Path | None = PrivateAttr(default_factory=module_folder)

    @property
    def modules(self) -> Path | None:
        """The folder of the study file, beside which its own modules are found."""
        return self._modules

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        """Results are in a folder of this name unless told otherwise."""
        if set(name) & set("/\\\0\n") or name.strip() in ("", ".", ".."):
            raise ValueError(
                f"{name!r} can't name the folder of the results: leave out slashes, write words"
            )
        return name

    @field_validator("methods", mode="before")
    @classmethod
    def _named(cls, methods: Any) -> Any:
        """A method of which nothing is said changes nothing."""
        if methods is None or methods == {}:
            raise ValueError("a study needs at least one method, as methods: {plain: {}}")
        if isinstance(methods, list):
            raise ValueError(
                f"each needs a name and what it changes, as {{plain: {{}}}}, got the list {methods}"
            )
        if not isinstance(methods, Mapping):
            return methods
        for name in methods:
            if not isinstance(name, str):
                example = ("yes" if name else "no") if isinstance(name, bool) else name
                raise ValueError(
                    f"YAML reads a name as {name!r} ({type(name).__name__}): put it in quotes, as "
                    f"'{example}'"
                )
            if not name.strip():
                raise ValueError("a method has an empty name: give it one, tables show it")
        return {name: {} if changes is None else changes for name, changes in methods.items()}

    @field_validator("seeds", mode="before")
    @classmethod
    def _listed(cls, seeds: Any) -> Any:
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            several = f", or {list(range(seeds))} for {seeds} of them" if 1 < seeds <= 10 else ""
            raise ValueError(f"write a list: [{seeds}] for this one seed{several}")
        return seeds

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        """The same seed twice would count as two runs and make intervals too narrow."""
        for seed in seeds:
            if seeds.count(seed) > 1:
                raise ValueError(f"{seed} is there {seeds.count(seed)} times; name each seed once")
        return seeds


@dataclass(frozen=True)
class PlannedRun:
    """One method with one seed, resolved and checked."""

    method: str
    seed: int
    config: RunConfig


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read and check a study file; nothing runs before all of it is known to be right.

    Args:
        path: the YAML file; with `extends` it says only what it changes of another.
        overrides: keys to replace, as `train.epochs=5` (see `apply_overrides`).
    """
    from sfumato.study.overrides import apply_overrides

    path = Path(path)
    content = read_extended(path)
    if overrides and isinstance(content, Mapping):
        content = apply_overrides(content, overrides)
    with searching(path.resolve().parent):
        return parse(StudyConfig, content, str(path))


def plan(study: StudyConfig) -> list[PlannedRun]:
    """All runs of a study, seed by seed, so that a stopped study has compared all methods.

    Modules that the study names are imported, to check parameters against their signatures. A deep
    ensemble is one run, which needs the networks of others and comes after them. A network that is
    not trained is one run, too: it would be the same with every seed, and look like certainty.
    """
    runs, ensembles = [], []
    with searching(study.modules):
        for seed in study.seeds:
            for method, changes in study.methods.items():
                source = f"study {study.name}, method {method!r}"
                content = {**merge_recipe(study.recipe, changes), "seed": seed}
                is_first = seed == study.seeds[0]
                if not _is_ensemble(content):
                    config = parse(RunConfig, content, source)
                    if config.train.epochs or is_first:
                        runs.append(PlannedRun(method, seed, config))
                elif is_first:
                    ensembles.append(PlannedRun(method, seed, _ensemble(study, content, source)))
    _check_severities(study)
    return runs + ensembles


def same_methods(runs: Sequence[PlannedRun]) -> list[list[str]]:
    """The names of methods that are one and the same, group by group."""
    groups: dict[str, list[str]] = {}
    seeds = {run.method: run.seed for run in reversed(runs)}
    for run in runs:
        if run.seed == seeds[run.method]:
            groups.setdefault(fingerprint(run.config), []).append(run.method)
    return [names for names in groups.values() if len(names) > 1]


def select(study: StudyConfig, runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs of the methods named in `only`, or all where it is empty.

    With an ensemble come the runs that train its networks: those of the study, or, where no method
    is of single networks, runs that are in no table.
    """
    for name in only:
        if name not in study.methods:
            near = difflib.get_close_matches(name, study.methods, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            choices = ", ".join(repr(each) for each in study.methods)
            raise ConfigError(f"--only {name}: no such method; {hint}the study has {choices}")
    chosen = [run for run in runs if not only or run.method in only]
    found = {_training(run.config): run for run in chosen}
    every = {_training(run.config): run for run in reversed(runs)}
    for run in chosen:
        for seed in members_of(run.config):
            config = member_config(run.config, seed)
            alone = config.model_copy(update={"evaluate": EvaluateConfig(resamples=0)})
            hidden = PlannedRun(f"member of {run.method}", seed, alone)
            name = _training(config)
            found.setdefault(name, every.get(name, hidden))
    added = [run for run in found.values() if run not in chosen]
    return added + chosen


def members_of(config: RunConfig) -> list[int]:
    """The seeds of a run's ensemble, whose networks are trained in the same folder."""
    members = config.predict.ensemble or ()
    return [each for each in members if isinstance(each, int)]


def _training(config: RunConfig) -> str:
    return content_hash(training_content(config))


def _check_severities(study: StudyConfig) -> None:
    """Raise where they are set and nothing says what they are of: they would do nothing."""
    merged = [merge_recipe(study.recipe, changes) for changes in study.methods.values()]
    sections = [each.get("evaluate") or {} for each in merged]
    if not any("severities" in each for each in sections):
        return
    if not any("corruptions" in each or "stored" in each for each in sections):
        raise ConfigError(
            f"study {study.name}: evaluate.severities is of corruptions, and no method has any: "
            "add evaluate.corruptions, as [fog] or all, or leave severities out"
        )


def _is_ensemble(content: Mapping[str, Any]) -> bool:
    predict = content.get("predict")
    return isinstance(predict, Mapping) and predict.get("ensemble") is not None


def _ensemble(study: StudyConfig, content: dict[str, Any], source: str) -> RunConfig:
    """With the study's seeds in place of the word for them: they are part of the run's name."""
    predict = content["predict"]
    if predict["ensemble"] == "seeds":
        if len(study.seeds) < 2:
            raise ConfigError(
                f"{source}: predict.ensemble: seeds needs a study of two or more seeds, this one "
                f"has {study.seeds}"
            )
        content = {**content, "predict": {**predict, "ensemble": study.seeds}}
    return parse(RunConfig, content, source)
