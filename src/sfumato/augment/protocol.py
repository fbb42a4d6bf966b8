"""What passes between a loader and its augmentation: a batch, and the numbers that change it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

Sample = dict[str, Tensor]


class BatchAugment(Protocol):
    """What `TensorLoader` asks of an augmentation.

    The randomness of a sample is `draws` uniform numbers, handed in: whoever holds the numbers
    decides which samples share an epoch, a batch or a process, and the result can't depend on it.
    """

    @property
    def draws(self) -> int: ...

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample: ...


class LocatedAugment(BatchAugment, Protocol):
    """An augmentation that can say which part of its source a sample shows."""

    @property
    def rotates(self) -> bool: ...

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor: ...


def check_uniforms(uniforms: Tensor, count: int, draws: int) -> None:
    """Raise unless there is a row of `draws` numbers for each of `count` samples."""
    if tuple(uniforms.shape) != (count, draws):
        raise ValueError(f"uniforms must have shape {(count, draws)}, got {tuple(uniforms.shape)}")
