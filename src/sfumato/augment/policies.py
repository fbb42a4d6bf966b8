"""RandAugment, AutoAugment, TrivialAugment and AugMix of a uint8 batch, drawn for each image.

Operations, ranges and defaults are torchvision's (`transforms.v2`), which are the ones that the
mollification paper ran. The randomness of an image is a row of `draws` uniform numbers, handed
in, so that the result can't depend on the batch or the process that an image falls into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.images import check_pixels
from sfumato.augment.operations import Interpolation, apply_operations
from sfumato.augment.protocol import check_uniforms
from sfumato.augment.spaces import (
    AUGMIX_SPACE,
    AUTOAUGMENT_POLICIES,
    AUTOAUGMENT_SPACE,
    RANDAUGMENT_SPACE,
    TRIVIALAUGMENT_SPACE,
    Space,
)


class PixelPolicy(Protocol):
    """What a recipe asks of an augmentation of uint8 images."""

    @property
    def draws(self) -> int: ...

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class RandAugment:
    """Two operations, drawn with equal probability, at one fixed level.

    Args:
        num_ops: operations for each image, one after the other.
        magnitude: level from 0 to 30.

    Example:
        >>> images = torch.full((1, 1, 1, 4), 200, dtype=torch.uint8)
        >>> RandAugment(num_ops=1).apply(images, torch.tensor([[0.45, 0.7]])).flatten().tolist()
        [254, 254, 254, 254]

    Reference: Cubuk et al., "RandAugment", 2020.
    """

    num_ops: int = 2
    magnitude: int = 9

    def __post_init__(self) -> None:
        check_integer("num_ops", self.num_ops, low=0)
        check_integer("magnitude", self.magnitude, low=0, high=30)

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        level = torch.full((len(images),), self.magnitude / 30, dtype=torch.float64)
        for which, sign in _columns(uniforms, 2):
            choice = _pick(which, len(RANDAUGMENT_SPACE))
            images = _step(images, RANDAUGMENT_SPACE, choice, level, sign)
        return images


@dataclass(frozen=True)
class TrivialAugment:
    """One operation at one of 31 levels, both drawn with equal probability ("wide" ranges).

    Example:
        >>> images = torch.full((1, 1, 1, 4), 200, dtype=torch.uint8)
        >>> TrivialAugment().apply(images, torch.tensor([[0.95, 0.5, 0.7]])).shape
        torch.Size([1, 1, 1, 4])

    Reference: Müller and Hutter, "TrivialAugment", 2021.
    """

    @property
    def draws(self) -> int:
        return 3

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        which, strength, sign = uniforms.unbind(1)
        choice = _pick(which, len(TRIVIALAUGMENT_SPACE))
        return _step(images, TRIVIALAUGMENT_SPACE, choice, _pick(strength, 31).double() / 30, sign)


@dataclass(frozen=True)
class AutoAugment:
    """One of 25 pairs of operations that were found on ImageNet, each with its own probability.

    Reference: Cubuk et al., "AutoAugment", 2019.
    """

    @property
    def draws(self) -> int:
        return 5

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        names = list(AUTOAUGMENT_SPACE)
        table = torch.tensor(
            [
                [(names.index(name), probability, level / 9) for name, probability, level in steps]
                for steps in AUTOAUGMENT_POLICIES
            ],
            dtype=torch.float64,
        )
        policy = table[_pick(uniforms[:, 0], len(table))]  # (N, 2, 3)
        for step, (chance, sign) in enumerate(_columns(uniforms[:, 1:], 2)):
            choice, probability, level = policy[:, step].unbind(1)
            choice = torch.where(chance < probability, choice, -1).long()
            images = _step(images, AUTOAUGMENT_SPACE, choice, level, sign)
        return images


@dataclass(frozen=True)
class AugMix:
    """A random mixture of the image and of chains of one to three operations on it.

    Args:
        severity: operations get one of the lowest `severity` levels out of 10.
        width: number of chains.

    Reference: Hendrycks et al., "AugMix", 2020.
    Differs: torchvision cuts the mixture off to whole numbers, which darkens every image by half
        a grey level on average; here it is rounded.
    """

    severity: int = 3
    width: int = 3

    def __post_init__(self) -> None:
        check_integer("severity", self.severity, low=1, high=10)
        check_integer("width", self.width, low=1)

    @property
    def draws(self) -> int:
        return 1 + self.width * (2 + 3 * 3)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        share, exponents, depths, steps = uniforms.split(
            [1, self.width, self.width, 9 * self.width], dim=1
        )
        # Exponential variables over their sum are Dirichlet(1, ..., 1).
        weights = -torch.log1p(-exponents).clamp(max=-1e-12)
        weights = share * weights / weights.sum(1, keepdim=True)
        chains = images.repeat(self.width, 1, 1, 1)  # chain by chain, (width * N, ...)
        depth = 1 + _pick(_stacked(depths), 3)
        draws = _stacked(steps.unflatten(1, (self.width, 9)))
        for number, (which, strength, sign) in enumerate(_columns(draws, 3)):
            choice = torch.where(number < depth, _pick(which, len(AUGMIX_SPACE)), -1)
            level = _pick(strength, self.severity).double() / 9
            chains = _step(chains, AUGMIX_SPACE, choice, level, sign, interpolation="bilinear")
        mixture = (1 - share).to(images.device)[:, :, None, None] * images
        parts = chains.reshape(self.width, *images.shape)
        for weight, part in zip(weights.T.to(images.device), parts, strict=True):
            mixture += weight[:, None, None, None] * part
        return mixture.round_().clamp_(0, 255).to(torch.uint8)


def _step(
    images: Tensor,
    space: Space,
    choice: Tensor,
    level: Tensor,
    sign: Tensor,
    *,
    interpolation: Interpolation = "nearest",
) -> Tensor:
    """One operation on each image, or none where `choice` is -1."""
    height, width = images.shape[-2:]
    size = {"translate_x": width, "translate_y": height}
    limits = [
        (span.start, span.stop, span.signed, size[name] if span.relative else 1)
        for name, span in space.items()
    ]
    start, stop, signed, scale = torch.tensor(limits, dtype=torch.float64)[choice].unbind(1)
    amount = (start + (stop - start) * level) * scale
    amount = torch.where((signed > 0) & (sign < 0.5), -amount, amount)
    names = list(space)
    amount = torch.where(choice == names.index("posterize"), amount.round(), amount)
    return apply_operations(images, names, choice, amount, interpolation=interpolation)


def _pick(uniform: Tensor, count: int) -> Tensor:
    """Whole numbers below `count`, each equally probable."""
    # A product just below `count` may round up to it, hence the clamp.
    return (uniform * count).long().clamp(max=count - 1)


def _columns(uniforms: Tensor, count: int) -> list[tuple[Tensor, ...]]:
    """The columns in groups of `count`, one group for each operation."""
    return [part.unbind(1) for part in uniforms.split(count, dim=1)]


def _stacked(values: Tensor) -> Tensor:
    """(N, chains, ...) as (chains * N, ...), chain by chain."""
    return values.transpose(0, 1).flatten(0, 1)


def _check(images: Tensor, uniforms: Tensor, draws: int) -> None:
    check_pixels(images)
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must have 1 (grey) or 3 (colour) channels here, got {tuple(images.shape)}"
        )
    check_uniforms(uniforms, len(images), draws)
