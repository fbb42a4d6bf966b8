"""Keys of a study file set from the command line: `train.epochs=5`, checked like the file."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato._core.yaml_files import parse_yaml
from sfumato.engine import ConfigError, RunConfig
from sfumato.study.config import StudyConfig

_SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a study file with keys replaced.

    `train.epochs=5` sets a key of the recipe, and of every method that sets the same key, so that
    the command line has the last word. `methods.ACLS.loss.margin=6` sets it for one method;
    `seeds=[0,1]` is a key of the study itself. Values are YAML.

    Args:
        content: the study file as plain data.
        overrides: `KEY=VALUE`, with dots between the parts of the key.

    Raises:
        ConfigError: no `=`, an unknown first part, or a key inside something that has no keys.

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
        value = _value(text, override)
        if parts[0] in StudyConfig.model_fields:
            _set(changed, _in_methods(parts, changed), value, override)
        elif parts[0] in RunConfig.model_fields:
            _set(changed.setdefault("recipe", {}), parts, value, override)
            for changes in changed.get("methods", {}).values():
                if _has(changes, parts):
                    _set(changes, parts, value, override)
        else:
            raise ConfigError(f"{override!r}: unknown key {parts[0]!r}{_hint(parts[0])}")
    return changed


def parse_seeds(text: str) -> list[int]:
    """Seeds as a person writes them.

    Example:
        >>> parse_seeds("0-2,7")
        [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise ConfigError(f"--seeds {text}: write numbers and ranges, for example 0,1 or 0-4")
        first = int(found[1])
        seeds += range(first, int(found[2] or first) + 1)
    return list(dict.fromkeys(seeds))


def _value(text: str, override: str) -> Any:
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{override!r}: the value is not valid YAML: {error}") from None
    # YAML takes 1e-3, which everybody types, for a word.
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        return float(value)
    return value


def _in_methods(parts: list[str], content: Mapping[str, Any]) -> list[str]:
    """Join the parts of a method's name that holds dots itself."""
    if parts[0] != "methods":
        return parts
    for end in range(len(parts), 1, -1):
        name = ".".join(parts[1:end])
        if name in content.get("methods", {}):
            return ["methods", name, *parts[end:]]
    return parts


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


def _hint(word: str) -> str:
    known = [*RunConfig.model_fields, *StudyConfig.model_fields]
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(known))}"
