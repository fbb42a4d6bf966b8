"""Kinds of components that a study file can name, without what they import."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal, get_args

from sfumato._core.metric_descriptions import OWN_SPLITS

# Each is called like the key of a study file under which its parts are named.
Kind = Literal[
    "data",
    "model",
    "loss",
    "augment",
    "inputs",
    "labels",
    "predict",
    "corruptions",
    "perturbations",
]

# What `sfumato list` calls all of a kind.
Plural = Literal[
    "data",
    "models",
    "losses",
    "augmentations",
    "inputs",
    "labels",
    "predict",
    "corruptions",
    "perturbations",
]

# Kinds of components, and `evaluate.own`, whose components are all the user's.
Named = Kind | Literal["own"]

Task = Literal["classify", "segment", "detect"]
PLURALS: dict[Kind, Plural] = dict(zip(get_args(Kind), get_args(Plural), strict=True))

# Keys of a run whose value is a name, or a mapping with `name` and parameters.
SPEC_KINDS: tuple[Kind, ...] = ("data", "model", "loss", "augment", "inputs", "labels")

# Keys of `evaluate` whose value is a list of names.
NAME_KINDS: tuple[Kind, ...] = ("corruptions", "perturbations")


def check_set_names(names: Collection[Any]) -> None:
    """Raise unless each name of `evaluate.also` is a plain one that is free."""
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise ValueError(
                "the name of a test set must begin with a letter and have letters, digits, _ "
                f"and - only, got {name!r}"
            )
        if name.lower() in OWN_SPLITS or name.lower().startswith("class_"):
            raise ValueError(
                f"{name!r} is the name of a part of every run's metrics; choose another name "
                "for the test set"
            )
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"names must differ in more than their case, got {list(names)}")
