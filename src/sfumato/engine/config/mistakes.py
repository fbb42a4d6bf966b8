"""What pydantic finds wrong with a configuration, said in one plain line a mistake."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel

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


def explain(kind: type[BaseModel], item: Mapping[str, Any]) -> str:
    """One mistake: where it is, what is wrong, and what came.

    Args:
        kind: the model that was validated.
        item: of `ValidationError.errors()`.
    """
    location = [str(part) for part in item["loc"]]
    return ": ".join(part for part in (".".join(location), _wrong(kind, location, item)) if part)


def _wrong(kind: type[BaseModel], location: list[str], item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        allowed = sorted(_model_at(kind, location[:-1]).model_fields)
        near = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key; {hint}allowed keys: {', '.join(allowed)}"
    if item["type"] == "missing":
        return "this key is required"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return message
    if item["type"] in _PLAIN:
        message = _PLAIN[item["type"]](item.get("ctx", {}))
    return f"{message}, got {item['input']!r} ({type(item['input']).__name__})"


def _model_at(kind: type[BaseModel], location: list[str]) -> type[BaseModel]:
    for name in location:
        field = kind.model_fields.get(name)
        annotation = field.annotation if field else None
        for inner in (annotation, *get_args(annotation)):  # the second for `Section | None`
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                kind = inner
    return kind
