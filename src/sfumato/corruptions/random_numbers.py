"""Randomness that belongs to the image: the same image gets the same noise in any batch.

A generator gives each image one 64-bit seed, in order. Every random number is then a hash of (seed,
draw, position), computed for the whole batch at once: integers only, so that the numbers are equal
on every machine and device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.seeds import fold_seed

# Below, the expansion of the Poisson quantile is wrong for more than 1 in 2,000.
_POISSON_NORMAL_FROM = 10.0
_POISSON_TERMS = 36  # P(X > 36) < 1e-9 at rate 10


def draw_seeds(count: int, generator: torch.Generator | None = None) -> Tensor:
    """One 64-bit seed for each image; two calls give what one call for both would give."""
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(
            f"generator must be on the CPU, got one on {generator.device}. Use torch.Generator(); "
            "its seeds serve images on any device."
        )
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator, device="cpu")


def seeded_generator(seed: int, *labels: str | float) -> torch.Generator:
    """A CPU generator for one named part of an experiment, independent of all other parts."""
    own = fold_seed("sfumato.corruptions", seed, *labels, order="little")
    return torch.Generator().manual_seed(own)


class Streams:
    """One stream of random numbers for each image of a batch."""

    def __init__(self, seeds: Tensor, *, device: torch.device | str) -> None:
        self._keys = seeds.view(torch.int32).view(-1, 2, 1).to(device)
        self._draws = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(N, *shape) numbers in [low, high), 24 bits each."""
        numbers = self._bits(math.prod(shape)).mul_((high - low) * 2.0**-24).add_(low)
        return numbers.view(-1, *shape)

    def normal(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """(N, *shape) normal numbers by Box and Muller; none lies beyond 5.8 std."""
        count = math.prod(shape)
        half = (count + 1) // 2
        numbers = self._bits(2 * half)
        radius = numbers[:, :half].add(1.0).mul_(2.0**-24).log_().mul_(-2.0 * std * std).sqrt_()
        angle = numbers[:, half:].mul(2.0 * math.pi * 2.0**-24)
        torch.mul(radius, angle.cos(), out=numbers[:, :half])
        torch.mul(radius, angle.sin_(), out=numbers[:, half:])
        return numbers[:, :count].add_(mean).view(-1, *shape)

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """(N, *shape) int64 numbers in [low, high)."""
        return (self._bits(math.prod(shape)).mul_((high - low) * 2.0**-24).long() + low).view(
            -1, *shape
        )

    def _bits(self, count: int) -> Tensor:
        """(N, count) whole numbers in [0, 2^24), as float32."""
        counter = torch.arange(count, dtype=torch.int32, device=self._keys.device)
        # Positions take 24 bits, the number of the draw those above: no counter comes twice.
        counter += self._draws << 24
        self._draws += 1
        numbers = _mix(counter) ^ self._keys[:, 0]
        numbers = _mix(numbers.add_(self._keys[:, 1]))
        return numbers.bitwise_right_shift_(8).bitwise_and_(0xFFFFFF).float()


def _mix(numbers: Tensor) -> Tensor:
    """Scramble int32 numbers in place, one to one; every bit depends on every bit."""
    numbers ^= (numbers >> 16).bitwise_and_(0xFFFF)
    numbers *= 0x21F0AAAD
    numbers ^= (numbers >> 15).bitwise_and_(0x1FFFF)
    numbers *= 0x735A2D97
    numbers ^= (numbers >> 15).bitwise_and_(0x1FFFF)
    return numbers


def poisson(rate: Tensor, normal: Tensor) -> Tensor:
    """Poisson counts with the given rates, by inversion: the quantile at Phi(normal).

    From rate 10 on, the quantile's expansion in 1 / sqrt(rate) is rounded down (it differs from the
    true quantile for one number in 2,000 or fewer, by one count); below, the distribution function
    is summed until it passes Phi(normal).
    """
    root = rate.clamp_min(_POISSON_NORMAL_FROM).sqrt()
    square = normal * normal
    counts = root * (root + normal) + square / 6.0 + 1.0 / 3.0
    counts -= normal * (2.0 + square) / (72.0 * root)
    counts += (square * (square * 3.0 + 7.0) - 16.0) / (810.0 * root * root)
    counts.floor_().clamp_min_(0.0)
    few = (rate.flatten() < _POISSON_NORMAL_FROM).nonzero().squeeze(1)
    exact = _poisson_by_sum(rate.flatten()[few], normal.flatten()[few])
    return counts.flatten().index_copy_(0, few, exact).view_as(rate)


def _poisson_by_sum(rate: Tensor, normal: Tensor) -> Tensor:
    level = torch.special.ndtr(normal)
    term = (-rate).exp()
    total = term.clone()
    counts = torch.zeros_like(rate)
    passed = torch.empty_like(rate)
    for k in range(1, _POISSON_TERMS + 1):
        counts += torch.gt(level, total, out=passed)
        term.mul_(rate / k).clamp_min_(1e-30)  # denormal numbers would be ten times slower
        total += term
    return counts
