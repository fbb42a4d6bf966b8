"""End epochs of losses, and check their arguments, in training loops that are not ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn


def end_epoch(module: nn.Module) -> None:
    """Tell every loss in a module that keeps a history or a schedule that an epoch has ended."""
    for each in module.modules():
        end: Any = getattr(each, "end_epoch", None)
        if callable(end):
            end()


def check_takes_logits_and_target(loss: Callable[..., Any]) -> None:
    """Raise where a loss needs more than logits and labels."""
    if isinstance(loss, type) or not callable(loss):
        raise TypeError(
            f"loss must be a loss made, such as ACLSLoss(margin=6.0), or a function, got {loss!r}"
        )
    # `__call__` of a module takes anything; its `forward` says what.
    called = loss.forward if isinstance(loss, nn.Module) else loss
    required = [
        name
        for name, each in inspect.signature(called).parameters.items()
        if each.default is inspect.Parameter.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if len(required) > 2:
        raise TypeError(
            f"{type(loss).__name__} needs {required[2:]} beside logits and labels, which the "
            "Trainer has not: override Trainer.compute_loss for it, or train it in a study"
        )
