"""The JSON schema of study files, made from the same signatures that check them."""

from __future__ import annotations

import inspect
import json
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from sfumato.engine import RunConfig
from sfumato.engine.config.own_parts import Named
from sfumato.engine.config.part_kinds import NAME_KINDS, SPEC_KINDS, Kind
from sfumato.engine.config.parts import parts
from sfumato.study.config import StudyConfig
from sfumato.study.extended import EXTENDS


def study_schema() -> dict[str, Any]:
    """The schema as plain data: sections from their models, specs from the callables' signatures.

    Example:
        >>> sorted(study_schema()["properties"])
        ['extends', 'methods', 'name', 'recipe', 'seeds', 'title']
    """
    run = RunConfig.model_json_schema()
    definitions = run.pop("$defs", {})
    properties = run["properties"]
    del properties["seed"]  # the study's `seeds` set it
    del properties["streams"]  # sets itself
    for kind in SPEC_KINDS:
        is_optional = RunConfig.model_fields[kind].default is None
        properties[kind] = _optional(_spec(kind)) if is_optional else _spec(kind)
    for kind in NAME_KINDS:
        definitions["EvaluateConfig"]["properties"][kind] |= _names(kind)
    evaluations = {"type": "object", "additionalProperties": {"anyOf": _own("own")}}
    definitions["EvaluateConfig"]["properties"]["own"] |= evaluations
    # What a detector's classifier is trained by is a recipe of its own, or a run's directory.
    recipe = {"anyOf": [{"$ref": "#/$defs/Changes"}, {"type": "string"}]}
    properties["classifier"] = _optional(recipe)
    # A method gives part of a run, and the recipe may leave the rest to the methods.
    changes = {"type": "object", "properties": properties, "additionalProperties": False}
    study = StudyConfig.model_json_schema()
    study["properties"]["recipe"] = {"$ref": "#/$defs/Changes"}
    study["properties"]["methods"] |= {"additionalProperties": {"$ref": "#/$defs/Changes"}}
    # A study that extends another takes from there what it does not say.
    study["properties"][EXTENDS] = {"type": "string", "title": "Extends"}
    study["required"] = ["name"]
    study["anyOf"] = [{"required": [EXTENDS]}, {"required": ["recipe", "methods"]}]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sfumato study",
    }
    _hoist(properties, definitions)
    return {**study, **head, "$defs": {**definitions, "Changes": changes}}


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(study_schema(), indent=1, sort_keys=True) + "\n"


def _spec(kind: Kind) -> dict[str, Any]:
    """A name alone, an object with that name and its parameters, or parameters to change."""
    found = parts(kind)
    forms: list[dict[str, Any]] = [
        {"enum": sorted(name for name, part in found.items() if not part.is_family)}
    ]
    for name, part in found.items():
        said: dict[str, Any] = {"const": name}
        if part.is_family:
            said = {"type": "string", "pattern": f"^{part.prefix}"}
            forms.append(said)
        properties = {key: _value(option) for key, option in part.options.items()}
        required = [k for k, o in part.options.items() if o.default is inspect.Parameter.empty]
        forms.append(_object({"name": said, **properties}, ["name", *required]))
    return {"anyOf": [*forms, *_own(kind), _changed(kind)]}


def _changed(kind: Kind) -> dict[str, Any]:
    """Options alone, of what the recipe names; that may be a user's own, which has any."""
    options = {key for part in parts(kind).values() for key in part.options}
    known: dict[str, Any] = {key: {} for key in sorted(options)}
    return {"type": "object", "properties": known, "not": {"required": ["name"]}}


def _own(kind: Named) -> list[dict[str, Any]]:
    """A user's own part, whose parameters only its signature knows."""
    families = "|".join(part.prefix for part in parts(kind).values() if part.is_family)
    name = {
        "type": "string",
        "pattern": (f"^(?!{families})" if families else "^") + r"[\w.]+:[\w.]+$",
    }
    return [name, {"type": "object", "properties": {"name": name}, "required": ["name"]}]


def _names(kind: Kind) -> dict[str, Any]:
    """All of them, or a list of names."""
    names = {"items": {"enum": sorted(parts(kind))}, "type": "array"}
    return {"anyOf": [{"const": "all"}, names]}


def _value(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.annotation is inspect.Parameter.empty:
        return {}
    try:
        settings = ConfigDict(arbitrary_types_allowed=True)
        found: dict[str, Any] = TypeAdapter(parameter.annotation, config=settings).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, TypeError):
        return {}
    if isinstance(parameter.default, bool | int | float | str):
        found["default"] = parameter.default
    return found


def _hoist(schema: Any, definitions: dict[str, Any]) -> None:
    """Move definitions of parameters to the top, where their references look for them."""
    if isinstance(schema, dict):
        definitions |= schema.pop("$defs", {})
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            _hoist(inner, definitions)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
