"""The study file: recipe, methods, seeds; what it extends, and keys from the command line."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, field_validator

from sfumato._core.import_path import module_folder, searching
from sfumato._core.yaml_files import parse_yaml, read_yaml
from sfumato.engine import ConfigError, RunConfig, fingerprint, parse
from sfumato.engine.config.kinds import SPEC_KINDS
from sfumato.engine.config.run_config import training_name
from sfumato.engine.config.sections import EvaluateConfig, Strict
from sfumato.engine.tasks.ensembles import member_config

EXTENDS = "extends"
_MOST_EXTENDED = 100  # files, one above the other
_SECTIONS = ("train", "predict", "evaluate", "classifier")


def read_extended(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """The content of a study file, with all that it takes from the file which it extends.

    Its `recipe` changes the other's as a method does; any other key stands instead of the other's.
    """
    if not path.is_file():
        what = "is a folder; pass a file in it" if path.is_dir() else "no such study file"
        raise ConfigError(f"{path}: {what}{f', though {above[-1]} extends it' if above else ''}")
    try:
        content = read_yaml(path, by_hand=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(content, Mapping):
        return content
    if EXTENDS not in content:
        for key in content:  # before all that a file without it lacks
            if difflib.get_close_matches(str(key), [EXTENDS], cutoff=0.75):
                raise ConfigError(f"{path}: {key}: unknown key; did you mean {EXTENDS!r}?")
        return content
    own = dict(content)
    other = own.pop(EXTENDS)
    if not isinstance(other, str) or re.search("[\0\ud800-\udfff]", other) or "name" not in own:
        raise ConfigError(
            f"{path}: extends needs the name of a study file, and the study a name of its own"
        )
    chain = (*above, path.resolve())
    _check_chain(chain, other)
    base = read_extended(path.parent / other, chain)
    if not isinstance(base, Mapping):
        return own  # what is wrong with it is said as of any file
    recipe = merge_recipe(base.get("recipe") or {}, own.get("recipe") or {})
    return {**base, **own, "recipe": recipe}


def _check_chain(chain: tuple[Path, ...], other: str) -> None:
    """Raise where the last file of a chain extends one of it, or the chain is too long."""
    path = chain[-1]
    if len(chain) > _MOST_EXTENDED:
        raise ConfigError(f"{path}: is extended by a chain of {_MOST_EXTENDED} files; join some")
    if (path.parent / other).resolve() in chain:
        raise ConfigError(f"{path}: extends {other}, which extends it")


def merge_recipe(recipe: Any, changes: Any) -> Any:
    """Sections are merged key by key; what has a name (data, model, loss ...) is replaced by it.

    Options without a name change those of what the recipe names.

    Example:
        >>> merge_recipe({"train": {"epochs": 9}, "model": "vgg"}, {"train": {"batch_size": 8}})
        {'train': {'epochs': 9, 'batch_size': 8}, 'model': 'vgg'}
        >>> merge_recipe({"model": "vgg"}, {"model": {"smooth": True}})
        {'model': {'name': 'vgg', 'smooth': True}}
    """
    if not isinstance(recipe, Mapping) or not isinstance(changes, Mapping):
        return changes or recipe
    merged = {**recipe, **changes}
    for section in _SECTIONS:
        ours, theirs = recipe.get(section), changes.get(section)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            merged[section] = {**ours, **theirs}
    for kind in SPEC_KINDS:
        if kind in recipe:
            merged[kind] = _spec(recipe[kind], merged[kind])
    return merged


def _spec(ours: Any, theirs: Any) -> Any:
    named = {"name": ours} if isinstance(ours, str) else ours
    adds = isinstance(theirs, Mapping) and "name" not in theirs
    return {**named, **theirs} if adds and isinstance(named, Mapping) else theirs


class StudyConfig(Strict):
    """A comparison of methods: every method is trained with every seed, on the same recipe.

    `methods` maps a method's name to the keys of the recipe that it changes, for example
    `{loss: {name: acls, margin: 6.0}}`. The first method is the baseline.
    """

    name: str = Field(min_length=1)
    """Name of the study, and of the folder of its results."""
    title: str = ""
    """Title of the report."""
    recipe: dict[str, Any]
    """What all methods share."""
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    """What each method changes of the recipe, under its name; the first is the baseline."""
    seeds: list[int] = Field(default=[0], min_length=1)
    """Seeds that every method is trained with."""
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
            is_first = seed == study.seeds[0]
            for method, changes in study.methods.items():
                source = f"study {study.name}, method {method!r}"
                content = {**merge_recipe(study.recipe, changes), "seed": seed}
                predict = content.get("predict")
                if not isinstance(predict, Mapping) or predict.get("ensemble") is None:
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
    first = {run.method: run for run in reversed(runs)}
    for run in runs:
        if run is first[run.method]:
            groups.setdefault(fingerprint(run.config), []).append(run.method)
    return [names for names in groups.values() if len(names) > 1]


def select(study: StudyConfig, runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs of the methods named in `only`, or all where it is empty.

    With an ensemble come the runs that train its networks: those of the study, or, where no method
    is of single networks, runs that are in no table.
    """
    for name in only:
        if name not in study.methods:
            meant, choices = _meant(name, study.methods), ", ".join(map(repr, study.methods))
            hint = f"{meant} " if meant else ""
            raise ConfigError(f"--only {name}: no such method; {hint}the study has {choices}")
    chosen = [run for run in runs if not only or run.method in only]
    found = {training_name(run.config): run for run in chosen}
    every = {training_name(run.config): run for run in reversed(runs)}
    for run in chosen:
        for seed in members_of(run.config):
            config = member_config(run.config, seed)
            alone = config.model_copy(update={"evaluate": EvaluateConfig(resamples=0)})
            hidden = PlannedRun(f"member of {run.method}", seed, alone)
            name = training_name(config)
            found.setdefault(name, every.get(name, hidden))
    return [*(run for run in found.values() if run not in chosen), *chosen]


def members_of(config: RunConfig) -> list[int]:
    """The seeds of a run's ensemble, whose networks are trained in the same folder."""
    return [each for each in config.predict.ensemble or () if isinstance(each, int)]


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


MOST_SEEDS = 10_000


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a study file with keys replaced.

    `train.epochs=5` sets a key of the recipe, and of every method that sets the same key, so that
    the command line has the last word. `methods.ACLS.loss.margin=6` sets it for one method;
    `seeds=[0,1]` is a key of the study itself. Values are YAML.

    Args:
        content: the study file as plain data.
        overrides: `KEY=VALUE`, with dots between the parts of the key.

    Example:
        >>> study = {"name": "s", "recipe": {"train": {"epochs": 9}}, "methods": {"a": {}}}
        >>> apply_overrides(study, ["train.epochs=5", "seeds=[1, 2]"])["recipe"]
        {'train': {'epochs': 5}}
    """
    changed = copy.deepcopy(dict(content))
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise ConfigError(f"{override!r}: write KEY=VALUE, for example train.epochs=5")
        try:
            value = parse_yaml(text, by_hand=True)
        except ValueError as error:
            raise ConfigError(f"{override!r}: the value is not valid YAML: {error}") from None
        if parts[0] in StudyConfig.model_fields:
            _set(changed, _in_methods(parts, changed, override), value, override)
        elif parts[0] in RunConfig.model_fields:
            _set(changed.setdefault("recipe", {}), parts, value, override)
            for changes in _methods(changed).values():
                if _has(changes, parts):
                    _set(changes, parts, value, override)
        else:
            known = [*RunConfig.model_fields, *StudyConfig.model_fields]
            hint = _meant(parts[0], known) or f"known keys: {', '.join(sorted(known))}"
            raise ConfigError(f"{override!r}: unknown key {parts[0]!r}; {hint}")
    return changed


def parse_seeds(text: str) -> list[int]:
    """Seeds as a person writes them.

    Example:
        >>> parse_seeds("0-2,7")
        [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
        if found is None:
            raise ConfigError(f"--seeds {text}: write numbers and ranges, for example 0,1 or 0-4")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"--seeds {text}: a range counts up; write {last}-{first}")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ConfigError(
                f"--seeds {text}: more than {MOST_SEEDS:,} seeds; a study takes a few, as 0-4"
            )
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def _in_methods(parts: list[str], content: Mapping[str, Any], override: str) -> list[str]:
    """Join the parts of a method's name that holds dots itself; a new method is given whole."""
    if parts[0] != "methods":
        return parts
    known = _methods(content)
    for end in range(len(parts), 1, -1):
        name = ".".join(parts[1:end])
        if name in known:
            return ["methods", name, *parts[end:]]
    if len(parts) > 2:
        names = ", ".join(map(repr, known)) or "none"
        raise ConfigError(f"{override!r}: no such method; the study has {names}")
    return parts


def _methods(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The methods of a study file; none where it has something else there, which is said later."""
    found = content.get("methods")
    return found if isinstance(found, Mapping) else {}


def _set(content: Any, parts: Sequence[str], value: Any, override: str) -> None:
    for place, part in enumerate(parts[:-1]):
        inner = content.setdefault(part, {})
        if inner is None or isinstance(inner, str):  # a name alone stands for its defaults
            inner = {"name": inner} if inner else {}
            content[part] = inner
        if not isinstance(inner, dict):
            where = ".".join(parts[: place + 1])
            raise ConfigError(f"{override!r}: {where} is {inner!r}, which has no keys")
        content = inner
    content[parts[-1]] = value


def _has(content: Any, parts: Sequence[str]) -> bool:
    for part in parts:
        if not isinstance(content, Mapping) or part not in content:
            return False
        content = content[part]
    return True


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
