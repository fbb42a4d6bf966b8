"""A study file that says only what it changes of another: `extends: other.yaml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato._core.yaml_files import read_yaml
from sfumato.engine import ConfigError
from sfumato.engine.config.part_kinds import SPEC_KINDS

EXTENDS = "extends"
_SECTIONS = ("train", "predict", "evaluate", "classifier")


def read_extended(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """The content of a study file, with all that it takes from the file which it extends.

    Its `recipe` changes the other's as a method does; any other key stands instead of the other's.

    Args:
        path: the study file.
        above: the files that extend this one.

    Raises:
        ConfigError: no such file, no YAML, files that extend each other, or no name of its own.
    """
    if not path.is_file():
        what = "is a folder; pass a file in it" if path.is_dir() else "no such study file"
        raise ConfigError(f"{path}: {what}{f', though {above[-1]} extends it' if above else ''}")
    try:
        content = read_yaml(path, by_hand=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(content, Mapping) or EXTENDS not in content:
        _refuse_misspelt(path, content)
        return content
    own = dict(content)
    other = own.pop(EXTENDS)
    if not isinstance(other, str) or "name" not in own:
        raise ConfigError(
            f"{path}: extends needs the name of a study file, and the study a name of its own"
        )
    chain = (*above, path.resolve())
    target = (path.parent / other).resolve()
    if target in chain:
        raise ConfigError(f"{path}: extends {other}, which extends it")
    base = read_extended(path.parent / other, chain)
    if not isinstance(base, Mapping):
        return own  # what is wrong with it is said as of any file
    recipe = merge_recipe(base.get("recipe") or {}, own.get("recipe") or {})
    return {**base, **own, "recipe": recipe}


def _refuse_misspelt(path: Path, content: Any) -> None:
    """Say that `extends` is meant, before all that a file without it lacks."""
    for key in content if isinstance(content, Mapping) else ():
        if difflib.get_close_matches(str(key), [EXTENDS], cutoff=0.75):
            raise ConfigError(f"{path}: {key}: unknown key; did you mean {EXTENDS!r}?")


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
