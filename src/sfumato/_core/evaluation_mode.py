"""Evaluation mode for a while: what was in training is in training again, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Afterwards each module has the mode that it had, also where something raises.

    Module by module, because a network may be trained with parts of it (a frozen batch norm) in
    evaluation mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
