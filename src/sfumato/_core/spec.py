"""Named components with parameters, `{name: scenes, size: 64}`, and the folder of data sets."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

Spec = str | Mapping[str, Any]

DIGEST = "source_digest"


@dataclass(frozen=True)
class Resolved:
    """A checked spec: call it as `resolved.build(**supplied, **resolved.params)`."""

    name: str
    build: Callable[..., Any]
    params: dict[str, Any]  # all that the user may set, with checked values or defaults
    source_digest: str | None = None  # of the code of a part that is named by its import path

    @property
    def config(self) -> dict[str, Any]:
        """The full spec in plain values (as JSON and YAML hold them), defaults included.

        Parameters that are None and would be by default are left out: one that a later version
        adds then leaves this configuration, and the names of runs made from it, as they are.
        So are the defaults of users' components that no configuration can hold, as a class: the
        digest of their code stands for them.
        """
        known, said = parameters(self.build), {"name": self.name}
        for key, value in self.params.items():
            default = known[key].default
            if value is None and default is None:
                continue
            try:
                said[key] = _plain(value)
            except TypeError:
                if self.source_digest is None or value is not default:
                    raise
        return said if self.source_digest is None else {**said, DIGEST: self.source_digest}


def resolve(
    spec: Spec,
    table: Mapping[str, Callable[..., Any]],
    what: str,
    *,
    supplied: Collection[str] = (),
    hint: str = "",
    hint_missing: str = "",
    meant: str | None = None,
) -> Resolved:
    """Check a spec against a table of callables, without calling anything.

    Values are read strictly, as from a JSON file: an integer may stand for a float, a list for a
    tuple and a string for a path; nothing else is converted. Defaults pass through the same
    check, so that leaving a parameter out and writing its default give the same configuration.

    Args:
        spec: a name, or a mapping with `name` and parameters.
        table: the callables by name.
        what: the kind of thing, for messages ("data", "model", "loss").
        supplied: parameters that the caller passes itself; the user may not set them.
        hint: what else could be written, for the message of an unknown name.
        hint_missing: what may be meant, for the message of a missing parameter.
        meant: what an unknown name stands for; None proposes the name that looks most like it.

    Example:
        >>> def disc(*, radius: float = 1.0, filled: bool = True) -> float: ...
        >>> resolve({"name": "disc", "radius": 2}, {"disc": disc}, "shape").config
        {'name': 'disc', 'radius': 2.0, 'filled': True}
    """
    name, given = _split_spec(spec, what)
    if name not in table:
        near = nearest(name, table)
        if meant is not None:
            near = f" (did you mean {repr(meant) if meant.isidentifier() else meant}?)"
        raise ValueError(f"unknown {what} {name!r}{near}. Choose from {sorted(table)}{hint}")
    thing = f"{what} {name!r}"
    allowed = parameters(table[name], supplied=supplied)
    _check_keys(given, allowed, thing, supplied, hint_missing)
    params = {}
    for key, parameter in allowed.items():
        value = given.get(key, parameter.default)
        try:
            params[key] = _checked(value, parameter.annotation, f"{key} of {thing}")
        except TypeError:
            if key in given:
                raise
            params[key] = value  # as `size: int = None`: the author's business, not the user's
    return Resolved(name, table[name], params)


def parameters(
    build: Callable[..., Any], *, supplied: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """The parameters of `build` that a user may set, with evaluated annotations.

    Without annotations where they name what only a type checker knows.
    """
    try:
        found = [*inspect.signature(build, eval_str=True).parameters.values()]
    except (NameError, AttributeError, SyntaxError):
        plain = inspect.signature(build).parameters.values()
        found = [each.replace(annotation=each.empty) for each in plain]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: each for each in found if each.kind in by_name and each.name not in supplied}


def _split_spec(spec: Any, what: str) -> tuple[str, dict[str, Any]]:
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{what} must be a name or a mapping with 'name' and parameters, "
            f"got {type(spec).__name__} {spec!r}"
        )
    options = {key: value for key, value in given.items() if key != "name"}
    name = given.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{what} needs a 'name' that is a string, got {dict(given)!r}")
    return name, options


def _check_keys(
    given: Mapping[str, Any],
    allowed: Mapping[str, inspect.Parameter],
    thing: str,
    supplied: Collection[str],
    hint_missing: str,
) -> None:
    for key in given:
        if key in supplied:
            raise ValueError(f"{key} of {thing} is set from the data or the run: remove it")
        if key not in allowed:
            raise ValueError(
                f"{thing} has no parameter {key!r}{nearest(key, allowed)}. "
                f"It takes {sorted(allowed)}"
            )
    for key, parameter in allowed.items():
        if key not in given and parameter.default is inspect.Parameter.empty:
            kind = _describe(parameter.annotation)
            raise ValueError(f"{thing} needs {key!r} ({kind}){hint_missing}")


def _checked(value: Any, annotation: Any, label: str) -> Any:
    """`value` as `annotation` wants it; first as a Python value, then as JSON would give it."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    if annotation is inspect.Parameter.empty:
        return value
    settings = ConfigDict(strict=True, arbitrary_types_allowed=True)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=settings)
    except PydanticUserError:  # an annotation that says nothing which can be checked
        return value
    with contextlib.suppress(ValidationError):
        return adapter.validate_python(value)
    try:
        return adapter.validate_json(json.dumps(value))
    except (ValidationError, TypeError, ValueError):
        error = ValueError if get_origin(annotation) is Literal else TypeError
        raise error(
            f"{label} must be {_describe(annotation)}, got {type(value).__name__} {value!r}"
        ) from None


def _describe(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "any value"
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(annotation))
    if get_origin(annotation) is None and isinstance(annotation, type):
        return annotation.__name__
    # Without modules; from Python 3.13 on Path says that it is of pathlib._local.
    return re.sub(r"\b(pathlib|typing|_local)\.", "", str(annotation))


def nearest(word: Any, choices: Iterable[str]) -> str:
    """Say which of the choices an unknown word resembles, if any."""
    if word == "from_logits":
        return " (every component takes logits: remove it)"
    close = difflib.get_close_matches(str(word), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} {value!r} can't be written to a configuration")


# Processes that a study starts, on this machine or another, share the environment and nothing else.
DATA_ROOT = "SFUMATO_DATA"


def in_data_root(path: str | Path) -> Path:
    """A path of a data spec as it is on this machine.

    Relative ones are inside of the folder that the environment variable SFUMATO_DATA names (the
    command line sets it: `--data ROOT`), or of the working directory where it is not set.

    Example:
        >>> in_data_root("/sets/cifar10").as_posix()
        '/sets/cifar10'
    """
    found, root = Path(path).expanduser(), os.environ.get(DATA_ROOT)
    if found.is_absolute() or not root:
        return found
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{root}: no such folder; --data or {DATA_ROOT} says where data sets lie"
        )
    return folder / found


def params_in_data_root(source: Resolved) -> dict[str, Any]:
    """The parameters of a checked data spec, its paths as they are on this machine.

    A path is what the loader's signature says may be a `Path`.
    """

    def is_path(annotation: Any) -> bool:
        return Path in (get_args(annotation) or (annotation,))

    signature = parameters(source.build)
    return {
        key: in_data_root(value)
        if isinstance(value, str | Path) and is_path(signature[key].annotation)
        else value
        for key, value in source.params.items()
    }


def content_hash(content: Mapping[str, Any]) -> str:
    """A short hash of plain data, whatever the order of its keys.

    Example:
        >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
