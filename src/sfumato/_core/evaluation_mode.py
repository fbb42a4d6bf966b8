"""Evaluation mode for a while: what was in training is in training again, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn


def returns_probabilities(model: object) -> bool:
    """Tell whether a model says that it gives probabilities: `returns_probabilities = True`."""
    return getattr(model, "returns_probabilities", False) is True


@contextmanager
def _keeping(modules: Sequence[nn.Module], name: str) -> Iterator[None]:
    kept = [getattr(module, name) for module in modules]
    try:
        yield
    finally:
        for module, before in zip(modules, kept, strict=True):
            setattr(module, name, before)


def keeping_modes(model: nn.Module) -> AbstractContextManager[None]:
    """Afterwards each module has the mode that it had, also where something raises.

    Module by module, because a network may be trained with parts of it (a frozen batch norm) in
    evaluation mode.
    """
    return _keeping([*model.modules()], "training")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each module has its own mode again.

    Example:
        >>> model = nn.Dropout()
        >>> with evaluating(model):
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> model.training, torch.is_grad_enabled()
        (True, True)
    """
    with keeping_modes(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def with_attribute(modules: Sequence[nn.Module], name: str, value: Any) -> Iterator[None]:
    """Within, an attribute of some modules has this value; afterwards each has its own again."""
    with _keeping(modules, name):
        for module in modules:
            setattr(module, name, value)
        yield
