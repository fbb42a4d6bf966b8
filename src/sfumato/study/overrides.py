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


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a study file with keys replaced.

    `train.epochs=5` sets a key of the recipe, and of every method that sets the same key, so that
    the command line has the last word. `methods.ACLS.loss.margin=6` sets it for one method;
    `seeds=[0,1]` is a key of the study itself. Values are YAML.

    Args:
        content: the study file as plain data.
        overrides: `KEY=VALUE`, with dots between the parts of the key.

    Raises:
        ConfigError: no `=`, an unknown first part or method, or a key inside something that has no
            keys.

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
            _set(changed, _in_methods(parts, changed, override), value, override)
        elif parts[0] in RunConfig.model_fields:
            _set(changed.setdefault("recipe", {}), parts, value, override)
            for changes in _methods(changed).values():
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
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"--seeds {text}: a range counts up; write {last}-{first}")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def _value(text: str, override: str) -> Any:
    try:
        return parse_yaml(text, by_hand=True)
    except ValueError as error:
        raise ConfigError(f"{override!r}: the value is not valid YAML: {error}") from None


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
        names = ", ".join(repr(name) for name in known)
        raise ConfigError(f"{override!r}: no such method; the study has {names or 'none'}")
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


def _hint(word: str) -> str:
    known = [*RunConfig.model_fields, *StudyConfig.model_fields]
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(known))}"
