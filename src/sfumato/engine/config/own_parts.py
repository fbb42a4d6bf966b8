"""What a study may name by import path, `package.module:Name`, and what each kind must offer.

docs/extending.md has the protocols with an example of each. A part is a callable that gets its
parameters and whatever it asks for of what the run supplies, and gives the thing itself; a loss,
an input smoothing, labels and an evaluation may also be the function itself, told by the names of
its parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from torch import nn

from sfumato._core.import_path import import_named
from sfumato._core.spec import parameters
from sfumato.data.map_style import as_splits
from sfumato.engine.config.part_kinds import Kind, Task
from sfumato.engine.config.weight_files import with_weights

Named = Kind | Literal["own"]
"""Kinds of parts, and `evaluate.own`, whose parts are all the user's."""

OWN_TASKS: Mapping[Named, tuple[Task, ...]] = {
    "data": ("classify", "segment"),
    "model": ("classify", "segment"),
    "loss": ("classify", "segment"),
    "augment": ("classify", "segment"),
    "inputs": ("classify",),
    "labels": ("classify",),
    "own": ("classify",),
}
# Handed to a part that asks for it; never set in a study.
OWN_SUPPLIED: Mapping[Named, tuple[str, ...]] = {
    "model": ("num_classes", "in_channels", "image_size", "vocabulary_size", "embeddings"),
    "loss": ("logits", "target", "index", "num_samples", "num_classes", "epochs", "class_weight"),
    "inputs": ("images", "target", "num_classes"),
    "labels": ("sample", "num_classes"),
    "own": ("logits", "probs", "target", "index", "data", "network"),
}
# A callable with these parameters is the part itself and not what makes it.
_OF_A_BATCH: Mapping[Named, tuple[str, ...]] = {
    "loss": ("logits", "target"),
    "inputs": ("images", "target"),
    "labels": ("sample",),
}
_SPLITTING = parameters(as_splits, supplied=("found",))


def import_part(kind: Named, name: str) -> tuple[Callable[..., Any], str | None]:
    """The callable behind an import path, ready to be checked and called; and its source's digest.

    Raises:
        ValueError: there is no such module or name, or it can't be imported.
        TypeError: it can't be called, or has no signature to check parameters against.
    """
    try:
        found, digest = import_named(name)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error
    if not callable(found):
        raise TypeError(
            f"{kind} {name!r} must be a function or a class, got {type(found).__name__} "
            f"{found!r}: name something that can be called"
        )
    try:
        inspect.signature(found)
    except ValueError:
        raise TypeError(
            f"{kind} {name!r} has no signature that Python can read: wrap it in a function"
        ) from None
    wrap = {"data": _data_source, "model": _network}.get(kind, lambda build: build)
    return wrap(found), digest


def is_of_a_batch(kind: Named, build: Callable[..., Any]) -> bool:
    """Whether a callable is the part itself, as a function of logits and target is a loss."""
    asked = inspect.signature(build).parameters
    return kind in _OF_A_BATCH and all(name in asked for name in _OF_A_BATCH[kind])


def hint_of_a_batch(kind: Named, build: Callable[..., Any]) -> str:
    """What to say where a function lacks a parameter: it may be meant as the part itself."""
    if kind not in _OF_A_BATCH or not inspect.isfunction(build):
        return ""
    names = _OF_A_BATCH[kind]
    called = "arguments" if len(names) > 1 else "argument"
    return f". If it works on batches itself, its {called} must be called {' and '.join(names)}"


def check_built(kind: Named, name: str, built: Any) -> None:
    """Raise unless what a part gave is what its kind must be."""
    wanted, fits = {
        "model": ("a torch.nn.Module", isinstance(built, nn.Module)),
        "loss": ("a torch.nn.Module or a function of (logits, target)", callable(built)),
        "inputs": ("a function of (images, target)", callable(built)),
        "labels": ("a function of (sample), a batch", callable(built)),
        "augment": (
            "an object with `draws` and `apply` (sfumato.augment.BatchAugment)",
            hasattr(built, "draws") and callable(getattr(built, "apply", None)),
        ),
    }.get(kind, ("", True))
    if not fits:
        raise TypeError(f"{kind} {name!r} must give {wanted}, got {type(built).__name__} {built!r}")


def _network(build: Callable[..., Any]) -> Callable[..., Any]:
    """With `weights`, a file to start from, as every network has, unless it has its own."""
    asked = parameters(build)
    if "weights" in asked:
        return build

    def make(**given: Any) -> Any:
        return build(**given)

    make.__signature__ = _by_name(asked.values())  # type: ignore[attr-defined]
    return with_weights(make)


def _data_source(build: Callable[..., Any]) -> Callable[..., Any]:
    """A loader of `DataSplits` around a user's data set, with our options of how it is divided."""
    asked = parameters(build)
    part = next((key for key in ("train", "split") if _selects_part(asked.get(key))), None)
    options = {key: each for key, each in _SPLITTING.items() if key not in asked}

    def load(**given: Any) -> Any:
        splitting = {key: given.pop(key) for key in options if key in given}
        make = partial(build, **given)
        if part is None:
            return as_splits(make(), **splitting)
        values = {"train": (True, False), "split": ("train", "test")}[part]
        return as_splits(tuple(make(**{part: value}) for value in values), **splitting)

    merged = [each for key, each in asked.items() if key != part] + list(options.values())
    load.__signature__ = _by_name(merged)  # type: ignore[attr-defined]
    return load


def _by_name(asked: Iterable[inspect.Parameter]) -> inspect.Signature:
    """A signature of these parameters, all given by their names."""
    return inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in asked])


def _selects_part(parameter: inspect.Parameter | None) -> bool:
    """Whether a parameter says which part of a set is wanted, as torchvision's sets have it."""
    if parameter is None:
        return False
    if parameter.name == "train":
        return parameter.annotation is bool or isinstance(parameter.default, bool)
    return parameter.default == "train"
