"""A value for whatever an option or a key may be, mostly one that can be used, sometimes not."""

from __future__ import annotations

import types
from collections.abc import Mapping
from random import Random
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_NUMBERS = (0.0, 0.1, 0.5, 1.0, 2.0)
_WHOLE = (1, 2, 3, 5)


def draw_value(rng: Random, annotation: Any, default: Any) -> Any:
    """A value as YAML would hold it, of the annotated type; now and then one out of range.

    Args:
        rng: draws it.
        annotation: of the parameter or field.
        default: kept where nothing can be drawn for the annotation.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return draw_value(rng, rng.choice(inner), default)
    if annotation is type(None):
        return None
    if origin is Literal:
        return rng.choice(inner)
    if origin in (tuple, list):
        return _several(rng, inner, default)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return draw_section(rng, annotation)
    return _plain(rng, annotation, default)


def draw_section(
    rng: Random, section: type[BaseModel], known: Mapping[str, Any] | None = None, most: int = 2
) -> dict[str, Any]:
    """Some keys of a section, besides all that it requires.

    Args:
        rng: draws them.
        section: whose fields they are.
        known: values to draw from, by key, instead of any of the field's type.
        most: keys at most, besides the required ones.
    """
    given = known or {}
    fields = section.model_fields
    required = [key for key, field in fields.items() if field.is_required()]
    others = [key for key in fields if key not in required and given.get(key) != ()]
    chosen = required + rng.sample(others, rng.randint(min(1, len(others)), min(most, len(others))))
    return {
        key: rng.choice(given[key])
        if key in given
        else draw_value(rng, fields[key].annotation, fields[key].get_default())
        for key in chosen
    }


def _several(rng: Random, inner: tuple[Any, ...], default: Any) -> list[Any]:
    kind = inner[0] if inner else float
    usual = default if isinstance(default, list | tuple) else ()
    count = max(0, len(usual) + rng.choice((0, 0, 0, 1, -1))) if usual else rng.randint(1, 3)
    return [draw_value(rng, kind, None) for _ in range(count)]


def _plain(rng: Random, annotation: Any, default: Any) -> Any:
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        return -1 if rng.random() < 0.1 else rng.choice(_WHOLE)
    if annotation is float:
        return -1.0 if rng.random() < 0.1 else rng.choice(_NUMBERS)
    return default
