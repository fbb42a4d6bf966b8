"""What a task brings to the training loop: its step, and the batches that it steps on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

Totals = dict[str, tuple[Tensor, Tensor]]
"""For each name in the log a sum over samples and their number."""


class Step(Protocol):
    """What a task brings to the loop: how a batch becomes a loss.

    The state of `loss` is in checkpoints, and its modules are told where an epoch ends.
    """

    loss: nn.Module

    def prepare(self, number: int, batch: Any) -> Any:
        """Batch `number` of an epoch as the network sees it, mixed and mollified."""

    def __call__(self, model: nn.Module, number: int, batch: Any) -> tuple[Tensor, Totals]:
        """The loss of a prepared batch, to be differentiated, and what the log gets."""


class EpochLoader(Protocol):
    """Batches of a training set, the same ones for the same epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...
