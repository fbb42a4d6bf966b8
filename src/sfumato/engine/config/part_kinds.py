"""The kinds of parts that a study file can name, without what the parts themselves import."""

from __future__ import annotations

from typing import Literal, get_args

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
Task = Literal["classify", "segment", "detect"]

PLURALS: dict[Kind, Plural] = dict(zip(get_args(Kind), get_args(Plural), strict=True))
# Keys of a run whose value is a name, or a mapping with `name` and parameters.
SPEC_KINDS: tuple[Kind, ...] = ("data", "model", "loss", "augment", "inputs", "labels")
# Keys of `evaluate` whose value is a list of names.
NAME_KINDS: tuple[Kind, ...] = ("corruptions", "perturbations")
