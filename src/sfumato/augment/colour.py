"""Colour jitter of a uint8 batch: brightness, contrast and saturation drawn for each image."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato._core.images import check_pixels
from sfumato.augment.operations import apply_operations
from sfumato.augment.protocol import check_uniforms

_OPERATIONS = ("brightness", "contrast", "color")
_ORDERS = tuple(permutations(range(len(_OPERATIONS))))


@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast and saturation times random factors, in random order.

    Args:
        strength: s of the factors, which are drawn evenly from [max(0, 1 - s), 1 + s]; 0.4 is
            usual on ImageNet.

    Example:
        >>> images = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
        >>> brighter = ColourJitter(0.4).apply(images, torch.tensor([[0.0, 0.75, 0.5, 0.5]]))
        >>> brighter.unique().tolist()
        [120]

    Reference: named among the augmentations of adaptive label smoothing, appendix A; factors and
        order are those of torchvision's `ColorJitter`, whose hue stays as it is here.
    """

    strength: float = 0.4

    draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_number("strength", self.strength, low=0.0, open_low=True)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, 4) in [0, 1)."""
        check_pixels(images)
        if images.shape[1] not in (1, 3):
            raise ValueError(
                f"images must have 1 (grey) or 3 (colour) channels here, got {tuple(images.shape)}"
            )
        check_uniforms(uniforms, len(images), self.draws)
        which = (uniforms[:, 0] * len(_ORDERS)).long().clamp(max=len(_ORDERS) - 1)
        order = torch.tensor(_ORDERS)[which]  # (N, 3)
        low = max(-1.0, -self.strength)
        amounts = low + uniforms[:, 1:].double() * (self.strength - low)
        for choice in order.unbind(1):
            amount = amounts.gather(1, choice[:, None])[:, 0]
            images = apply_operations(images, _OPERATIONS, choice, amount)
        return images
