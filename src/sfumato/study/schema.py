"""The JSON schema of study files, and what `sfumato list` shows."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from sfumato.engine import RunConfig
from sfumato.engine.config.components import (
    Component,
    components,
    find_component,
    resolve_component,
)
from sfumato.engine.config.kinds import NAME_KINDS, PLURALS, SPEC_KINDS, Kind, Named
from sfumato.engine.config.sections import EvaluateConfig, PredictConfig, TrainConfig
from sfumato.study.config import EXTENDS, StudyConfig


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
        properties[kind] = _about(properties[kind], _forms(kind), is_optional=is_optional)
    evaluations = definitions["EvaluateConfig"]["properties"]
    for kind in NAME_KINDS:
        names = {"items": {"enum": sorted(components(kind))}, "type": "array"}
        evaluations[kind] |= {"anyOf": [{"const": "all"}, names]}
    evaluations["own"] |= {"type": "object", "additionalProperties": {"anyOf": _own("own")}}
    # What a detector's classifier is trained by is a recipe of its own, or a run's directory.
    changed = {"$ref": "#/$defs/Changes"}
    forms = [changed, {"type": "string"}]
    properties["classifier"] = _about(properties["classifier"], forms, is_optional=True)
    # A method gives part of a run, and the recipe may leave the rest to the methods.
    changes = {"type": "object", "properties": properties, "additionalProperties": False}
    study = StudyConfig.model_json_schema()
    whole = study["properties"]["recipe"]
    study["properties"]["recipe"] = {**_about(whole), **changed}
    study["properties"]["methods"] |= {"additionalProperties": changed}
    # A study that extends another takes from there what it does not say.
    study["properties"][EXTENDS] = {
        "type": "string",
        "title": "Extends",
        "description": "Another study file, of which this one says only what it changes.",
    }
    study["required"] = ["name"]
    study["anyOf"] = [{"required": [EXTENDS]}, {"required": ["recipe", "methods"]}]
    study["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    study["title"] = "Sfumato study"
    _hoist(properties, definitions)
    return {**study, "$defs": {**definitions, "Changes": changes}}


def _about(
    content: dict[str, Any], forms: Sequence[dict[str, Any]] = (), *, is_optional: bool = False
) -> dict[str, Any]:
    """Keep the description and the default of a key, and write its forms anew."""
    kept: dict[str, Any] = {
        key: content[key] for key in ("description", "default") if key in content
    }
    allowed = [*forms, *([{"type": "null"}] if is_optional else [])]
    return {**kept, "anyOf": allowed} if allowed else kept


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(study_schema(), indent=1, sort_keys=True) + "\n"


def _forms(kind: Kind) -> list[dict[str, Any]]:
    """A name alone, an object with that name and its parameters, or parameters to change."""
    found = components(kind)
    forms: list[dict[str, Any]] = [
        {"enum": sorted(name for name, part in found.items() if not part.is_family)}
    ]
    for name, part in found.items():
        said: dict[str, Any] = {"const": name}
        if part.is_family:
            said = {"type": "string", "pattern": f"^{part.prefix}"}
            forms.append(said)
        required = [k for k, o in part.options.items() if o.default is inspect.Parameter.empty]
        forms.append(
            {
                "type": "object",
                "properties": {"name": said, **{k: _value(o) for k, o in part.options.items()}},
                "required": ["name", *required],
                "additionalProperties": False,
            }
        )
    # Options alone, of what the recipe names; that may be a user's own, which has any.
    options = sorted({key for part in found.values() for key in part.options})
    known: dict[str, Any] = {key: {} for key in options}
    changed = {"type": "object", "properties": known, "not": {"required": ["name"]}}
    return [*forms, *_own(kind), changed]


def _own(kind: Named) -> list[dict[str, Any]]:
    """A user's own component, whose parameters only its signature knows."""
    families = "|".join(part.prefix for part in components(kind).values() if part.is_family)
    name = {
        "type": "string",
        "pattern": (f"^(?!{families})" if families else "^") + r"[\w.]+:[\w.]+$",
    }
    return [name, {"type": "object", "properties": {"name": name}, "required": ["name"]}]


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


def catalogue() -> dict[str, dict[str, str]]:
    """Kind of thing, in the plural -> name -> its parameters with defaults, as text."""
    return {
        plural: {name: _signature(part) for name, part in components(kind).items()}
        for kind, plural in PLURALS.items()
    }


def _signature(part: Component) -> str:
    return ", ".join(
        name if option.default is inspect.Parameter.empty else f"{name}={option.default!r}"
        for name, option in _shown(part).items()
    )


def _shown(part: Component) -> dict[str, inspect.Parameter]:
    """Options that a person sets; digests are filled in by the run."""
    return {key: each for key, each in part.options.items() if not key.endswith("_digest")}


def summaries(kind: Kind) -> dict[str, str]:
    """Name of each component of a kind -> one line of what it is."""
    return {name: _summary(part) for name, part in components(kind).items()}


def component_options(kind: Kind, name: str) -> list[tuple[str, str, str]]:
    """Return option, default and meaning of each option of a component."""
    try:
        part = components(kind).get(name) or find_component(kind, name)
    except KeyError:
        resolve_component(kind, name)  # says what may be meant
        raise
    meanings = _arguments(part)
    return [
        (key, _plain(option.default), meanings.get(key, "")) for key, option in _shown(part).items()
    ]


Section = Literal["train", "evaluate", "predict"]

_SECTIONS: dict[Section, type[BaseModel]] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
}


def section_keys(section: Section) -> list[tuple[str, str, str]]:
    """Return key, default and meaning of each key of a section of a study file."""
    return [
        (key, _plain(field.get_default(call_default_factory=True)), _line(field.description or ""))
        for key, field in _SECTIONS[section].model_fields.items()
    ]


# One line for components whose code is shared or wrapped, so that its docstring is about more.
_SUMMARIES = {
    "data scenes": "Built-in drawn scenes with ten classes; no download.",
    "data cifar10": "CIFAR-10: 10 classes, 32 x 32, 50,000 training images.",
    "data cifar100": "CIFAR-100: 100 classes, 32 x 32, 50,000 training images.",
    "data fashion_mnist": "Fashion-MNIST: 10 kinds of clothes, 28 x 28, grey.",
    "data kmnist": "Kuzushiji-MNIST: 10 Japanese characters, 28 x 28, grey.",
    "data mnist": "MNIST: 10 digits, 28 x 28, grey.",
    "data stl10": "STL-10: 10 classes, 96 x 96, 5,000 training images.",
    "data svhn": "SVHN: digits of house numbers, 32 x 32.",
    "data scene_objects": "Built-in drawn scenes with boxes, for detection; no download.",
    "loss crl": "Correctness ranking loss: orders samples by how often they were right.",
    "loss cape": "Cross entropy plus calibration to the accuracy of bins of samples.",
    "loss maxsup": "Max suppression with a weight that rises from the first epoch to the last.",
    "loss adafocal": "Focal loss whose exponents follow the validation set's calibration.",
    "loss cals": "Class-adaptive label smoothing with multipliers learnt on validation data.",
    "loss online_label_smoothing": "Soft labels gathered from the network's own predictions.",
    "loss combined": "Any loss plus penalties, each with its weight.",
    "augment resized_crop": "Random resized crop, colour jitter, and mixing of images and labels.",
    "augment none": "No augmentation.",
    "augment fcr": "Flip, crop with padding, and rotation.",
    "augment fcr+randaug": "fcr, then RandAugment.",
    "augment fcr+autoaug": "fcr, then AutoAugment.",
    "augment fcr+augmix": "fcr, then AugMix.",
    "augment fcr+trivaug": "fcr, then TrivialAugment.",
    "augment fcr+mixup": "fcr, then MixUp.",
    "augment fcr+cutmix": "fcr, then CutMix.",
    "augment fcr+ricap": "fcr, then RICAP.",
    "inputs mollify": "Data mollification: noise or blur, with labels smoothed to match.",
    "labels objectness": "Labels smoothed by the share of the object in the crop.",
}


# Options that many components of a kind share; a docstring's own words go before these.
_SHARED_OPTIONS = {
    "loss": {"ignore_index": "Label of entries to leave out."},
    "model": {
        "weights": "File of trained weights to start from.",
        "norm": "`batch`, or `group` where batches are small or split between processes.",
        "head": "The classifier; see `sfumato.models.layers`.",
        "activation": "`relu` or `relu6`.",
        "blur_pool": 'Whether to blur before each subsampling, "adaptive" with kernels made '
        "from the map; see `sfumato.features.add_blur_pool`.",
        "embedding_width": "Numbers of a learnt vector (100 by default); given ones have their "
        "own.",
        "fine_tune": "Whether given vectors are trained too.",
    },
    "augment": {
        "flip": "Mirror images at random.",
        "crop": "Padding of the random crop, in pixels; 0 is off.",
        "rotation": "Largest random angle, in degrees; 0 is off.",
        "jitter": "Strength of the colour jitter.",
        "num_ops": "Operations that RandAugment applies to an image.",
        "magnitude": "Strength of RandAugment's operations.",
        "severity": "Strength of AugMix's operations.",
        "width": "Chains of operations that AugMix averages.",
        "alpha": "Parameter of the Beta distribution that mixing weights are drawn from.",
        "mixing": "Mixing of images and labels after the crop.",
        "scale": "Smallest and largest area of the crop, as shares of the image.",
        "ratio": "Smallest and largest aspect ratio of the crop.",
    },
}


def _summary(part: Component) -> str:
    said = _SUMMARIES.get(f"{part.kind} {part.name}")
    first = _docstring(part).partition("\n\n")[0].partition("; see `")[0]
    return said or _line(first.removesuffix(" as a module"))


def _docstring(part: Component) -> str:
    build: Callable[..., Any] = part.build
    return inspect.getdoc(build.func if isinstance(build, functools.partial) else build) or ""


def _arguments(part: Component) -> dict[str, str]:
    """Parameter -> its text in the docstring's `Args:` section."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", _docstring(part), re.MULTILINE)
    found = dict(_SHARED_OPTIONS.get(part.kind, {}))
    entries = re.split(r"^    (?=\w+:)", section.group(1), flags=re.MULTILINE) if section else []
    for entry in filter(None, entries):
        name, _, text = entry.partition(":")
        found[name] = _line(text)
    return found


def _line(text: str) -> str:
    """Join lines, begin with a capital letter and end with a full stop."""
    joined = " ".join(text.split())
    whole = joined[:1].upper() + joined[1:]
    return whole if not whole or whole.endswith((".", "!", "?")) else f"{whole}."


def _plain(value: Any) -> str:
    """Write a default as a study file does."""
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or isinstance(value, BaseModel):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)
