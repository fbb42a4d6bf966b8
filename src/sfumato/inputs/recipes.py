"""The augmentation recipes that mollification is compared and combined with, by name.

A recipe has three stages, in the order of the paper's code:

    uint8:  geometry (flip, crop, rotation), then a pixel policy     `geometry`, `pixel`
    float:  normalise, then mix the batch                            `mix`
    last:   mollify                                                  `Mollify`

Geometry belongs to whoever holds boxes and masks, so that a recipe only says what it wants; the
loader does it. Everything else is a call.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from sfumato.inputs._arguments import check_pixels
from sfumato.inputs.mixing import Mixing, cutmix, mixup, ricap
from sfumato.inputs.policies import AugMix, AutoAugment, PixelPolicy, RandAugment, TrivialAugment


class Geometry(TypedDict):
    """Parameters of the geometric augmentation, as `sfumato.data.Augment` takes them."""

    flip: bool
    crop: int
    rotation: float


@dataclass(frozen=True)
class Recipe:
    """What happens to a training batch between the data and mollification.

    Args:
        flip: mirror images at random.
        crop: padding in pixels of the random crop; 0 is off.
        rotation: largest random angle in degrees; 0 is off.
        policy: augmentation of the uint8 images, each by its own draws; None is off.
        mixing: mixes the normalised images with each other; None is off.

    Example:
        >>> recipe = RECIPES["fcr+mixup"]
        >>> recipe.geometry
        {'flip': True, 'crop': 4, 'rotation': 15.0}
        >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> floats = recipe.pixel(images) / 255
        >>> recipe.mix(floats, torch.arange(4), num_classes=10)[1].shape
        torch.Size([4, 10])
    """

    flip: bool = False
    crop: int = 0
    rotation: float = 0.0
    policy: PixelPolicy | None = None
    mixing: Mixing | None = None

    @property
    def geometry(self) -> Geometry:
        """What the loader should do to images, boxes and masks before `pixel`."""
        return {"flip": self.flip, "crop": self.crop, "rotation": self.rotation}

    @property
    def draws(self) -> int:
        """Uniform numbers that `pixel` uses for each image."""
        return 0 if self.policy is None else self.policy.draws

    def pixel(
        self,
        images: Tensor,
        uniforms: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Augment uint8 images (N, C, H, W), each by its own draws.

        Args:
            images: uint8, (N, C, H, W).
            uniforms: (N, draws) numbers in [0, 1) on the CPU; drawn where they are None.
            generator: where to draw them from.
        """
        check_pixels(images)
        if self.policy is None:
            return images
        if uniforms is None:
            device = None if generator is None else generator.device
            shape = (len(images), self.draws)
            uniforms = torch.rand(shape, generator=generator, device=device).cpu()
        return self.policy.apply(images, uniforms)

    def mix(
        self,
        images: Tensor,
        target: Tensor,
        *,
        num_classes: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix normalised images and their labels; returns both as they are if there is no mixing.

        Args:
            images: floating point, (N, C, H, W).
            target: class indices (N,) or soft labels (N, num_classes).
            num_classes: number of classes.
            generator: where to draw from.
        """
        if self.mixing is None:
            return images, target
        return self.mixing(images, target, num_classes=num_classes, generator=generator)


RECIPES: dict[str, Recipe] = {
    "none": Recipe(),
    "fcr": Recipe(True, 4, 15.0),
    "fcr+randaug": Recipe(True, 4, 15.0, policy=RandAugment()),
    "fcr+autoaug": Recipe(True, 4, 15.0, policy=AutoAugment()),
    "fcr+augmix": Recipe(True, 4, 15.0, policy=AugMix()),
    "fcr+trivaug": Recipe(True, 4, 15.0, policy=TrivialAugment()),
    "fcr+mixup": Recipe(True, 4, 15.0, mixing=mixup),
    "fcr+cutmix": Recipe(True, 4, 15.0, mixing=cutmix),
    "fcr+ricap": Recipe(True, 4, 15.0, mixing=ricap),
}
