"""Random numbers that do not depend on how the work is split, nor on how many samples follow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.seeds import fold_seed


def derive_seed(seed: int, name: str) -> int:
    """The seed of stream `name` of `seed`; streams of different names are independent.

    Example:
        >>> derive_seed(0, "train") == derive_seed(0, "test")
        False
    """
    return fold_seed("sfumato.scenes", seed, name, order="little")


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator at the start of stream `name` of `seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, name))


class Dice:
    """Draws one number per sample at a time, each draw from a stream of its own.

    Sample i gets the i-th number of every stream, however many samples there are. Uniform numbers
    are exact multiples of 2^-24; angles are computed in float64 and rounded, so that the last bit
    of a sine can't show.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._draws = 0

    def uniform(self, low: float = 0.0, high: float = 1.0, *, count: int = 0) -> Tensor:
        """Numbers in [low, high): (N,), or (N, count) where a count is given."""
        shape = (self._num_samples, count) if count else (self._num_samples,)
        return self._rand(shape) * (high - low) + low

    def chance(self, probability: Tensor | float) -> Tensor:
        """(N,) booleans, true with `probability`."""
        return self.uniform() < probability

    def another(self, classes: Tensor, num_classes: int) -> Tensor:
        """(N,) classes other than the given ones, all others equally likely."""
        step = (self.uniform() * (num_classes - 1)).long().clamp_max(num_classes - 2)
        return (classes + 1 + step) % num_classes

    def balanced_classes(self, num_classes: int) -> Tensor:
        """(N,) classes: every run of `num_classes` samples holds each once, in random order."""
        shape = (math.ceil(self._num_samples / num_classes), num_classes)
        order = self._rand(shape).argsort(dim=1, stable=True)
        return order.flatten()[: self._num_samples]

    def direction(self, turn: float = 1.0, *, count: int = 0) -> tuple[Tensor, Tensor]:
        """Cosine and sine of an angle within half of `turn` to either side of zero."""
        return cosine_sine(self.uniform(-0.5 * turn, 0.5 * turn, count=count))

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        self._draws += 1
        generator = generator_for(self._seed, f"draw {self._draws}")
        return torch.rand(shape, generator=generator, dtype=torch.float32)


def cosine_sine(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine (float32) of angles counted in full turns.

    Example:
        >>> cosine_sine(torch.tensor([0.0, 0.125]))
        (tensor([1.0000, 0.7071]), tensor([0.0000, 0.7071]))
    """
    angle = turns.double() * (2.0 * math.pi)
    return angle.cos().float(), angle.sin().float()
