"""Losses that learn from the validation set are handed its predictions after every epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Note = Callable[[Tensor, Tensor], None]


def validation_notes(loss: nn.Module) -> Note | None:
    """What is called with logits and labels of each validated batch; None where nobody listens.

    A loss, or a submodule of it, listens by having a method `note_validation(logits, target)`. It
    is called before `end_epoch`, with all samples at once or batch after batch; with several
    processes each of them is handed what it has, and the loss brings them together.
    """
    listeners: list[Any] = [each for each in loss.modules() if hasattr(each, "note_validation")]
    if not listeners:
        return None

    def note(logits: Tensor, target: Tensor) -> None:
        for each in listeners:
            each.note_validation(logits, target)

    return note
