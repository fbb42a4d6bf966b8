"""The JSON schema of study files, made from the same signatures that check them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from sfumato._spec import parameters
from sfumato.data import DETECTION_SOURCES, SOURCES
from sfumato.engine import RunConfig
from sfumato.engine.augmentation import AUGMENTATIONS
from sfumato.engine.components import (
    DETECTORS,
    FROM_CLASSIFIER,
    INPUTS,
    LOSSES,
    MODELS,
    SUPPLIED,
)
from sfumato.study.config import StudyConfig

Table = Mapping[str, Callable[..., Any]]


def study_schema() -> dict[str, Any]:
    """The schema as plain data: sections from their models, specs from the callables' signatures.

    Example:
        >>> sorted(study_schema()["properties"])
        ['methods', 'name', 'recipe', 'seeds', 'title']
    """
    run = RunConfig.model_json_schema()
    definitions = run.pop("$defs", {})
    properties = run["properties"]
    del properties["seed"]  # the study's `seeds` set it
    properties["data"] = _spec({**SOURCES, **DETECTION_SOURCES})
    properties["model"] = _model_spec()
    properties["loss"] = _spec(LOSSES, SUPPLIED)
    properties["augment"] = _optional(_spec(AUGMENTATIONS))
    properties["inputs"] = _optional(_spec(INPUTS, SUPPLIED))
    # What a detector's classifier is trained by is a recipe of its own, or a run's directory.
    recipe = {"anyOf": [{"$ref": "#/$defs/Changes"}, {"type": "string"}]}
    properties["classifier"] = _optional(recipe)
    # A method gives part of a run, and the recipe may leave the rest to the methods.
    changes = {"type": "object", "properties": properties, "additionalProperties": False}
    study = StudyConfig.model_json_schema()
    study["properties"]["recipe"] = {"$ref": "#/$defs/Changes"}
    study["properties"]["methods"] |= {"additionalProperties": {"$ref": "#/$defs/Changes"}}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sfumato study",
    }
    _hoist(properties, definitions)
    return {**study, **head, "$defs": {**definitions, "Changes": changes}}


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(study_schema(), indent=1, sort_keys=True) + "\n"


def _model_spec() -> dict[str, Any]:
    found = _spec({**MODELS, **DETECTORS}, (*SUPPLIED, *FROM_CLASSIFIER))
    name = {"type": "string", "pattern": "^torchvision:"}
    own = {
        "name": name,
        "weights": {"type": ["string", "null"]},
        "smooth": {"type": "boolean"},
        "dropout": {"type": "number"},
    }
    found["anyOf"] += [name, _object(own, ["name"])]
    return found


def _spec(table: Table, supplied: Collection[str] = ()) -> dict[str, Any]:
    """A name alone, or one of the objects that have that name and its parameters."""
    forms: list[dict[str, Any]] = [{"enum": sorted(table)}]
    for name, build in table.items():
        properties: dict[str, Any] = {"name": {"const": name}}
        required = ["name"]
        for key, parameter in parameters(build, supplied=supplied).items():
            properties[key] = _value(parameter)
            if parameter.default is inspect.Parameter.empty:
                required.append(key)
        forms.append(_object(properties, required))
    return {"anyOf": forms}


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
