"""The augmentation recipes that mollification is compared and combined with, by name.

A recipe has three stages, in the order of the paper's code:

    uint8:  geometry (flip, crop, rotation), then a pixel policy     `apply`
    float:  normalise, then mix the batch                            `mix`
    last:   mollify                                                  `sfumato.inputs.Mollify`

The first stage is the loader's, which holds boxes and masks: `TensorLoader(..., augment=recipe)`.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from sfumato._core.images import check_pixels
from sfumato.augment.flip_crop import Augment
from sfumato.augment.mixing import Mixing, cutmix, mixup, ricap
from sfumato.augment.policies import AugMix, AutoAugment, PixelPolicy, RandAugment, TrivialAugment
from sfumato.augment.protocol import Sample, check_uniforms
from sfumato.augment.resized_crop import ResizedCrop


class Geometry(TypedDict):
    """Parameters of the geometric augmentation, as `Augment` takes them."""

    flip: bool
    crop: int
    rotation: float


@dataclass(frozen=True)
class Recipe:
    """What happens to a training batch between the data and mollification.

    A loader takes it as its augmentation and does the stages on uint8 images, boxes and masks
    (`apply`); whoever has the normalised batch mixes it (`mix`).

    Args:
        flip: mirror images at random.
        crop: padding in pixels of the random crop; 0 is off.
        rotation: largest random angle in degrees; 0 is off.
        policy: augmentation of the uint8 images, each by its own draws; None is off.
        mixing: mixes the normalised images with each other; None is off.
        resized_crop: takes the place of flip, crop and rotation; None is off.

    Example:
        >>> recipe = RECIPES["fcr+mixup"]
        >>> recipe.geometry
        {'flip': True, 'crop': 4, 'rotation': 15.0}
        >>> sample = {"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8)}
        >>> floats = recipe.apply(sample, torch.rand(4, recipe.draws))["image"] / 255
        >>> recipe.mix(floats, torch.arange(4), num_classes=10)[1].shape
        torch.Size([4, 10])
    """

    flip: bool = False
    crop: int = 0
    rotation: float = 0.0
    policy: PixelPolicy | None = None
    mixing: Mixing | None = None
    resized_crop: ResizedCrop | None = None

    def __post_init__(self) -> None:
        if self.resized_crop is not None and (self.flip or self.crop or self.rotation):
            raise ValueError(
                "resized_crop takes the place of flip, crop and rotation: give it its own flip "
                f"and rotation, got {self.geometry}"
            )

    @property
    def geometry(self) -> Geometry:
        """Flip, crop and rotation, as `Augment` takes them; all off where parts are resized."""
        return {"flip": self.flip, "crop": self.crop, "rotation": self.rotation}

    @property
    def draws(self) -> int:
        """Uniform numbers that `apply` uses for each sample: geometry first, then the policy."""
        return self._motion.draws + (0 if self.policy is None else self.policy.draws)

    @property
    def cuts_originals(self) -> bool:
        """Whether it shows parts at full size, which are best cut from files."""
        return self.resized_crop is not None

    @property
    def rotates(self) -> bool:
        """Whether images are turned, so that moved boxes are only bounds."""
        return self._motion.rotates

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """Which part of its source each sample shows, as `Augment.corners`."""
        return self._motion.corners(uniforms[:, : self._motion.draws], height, width)

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The uint8 batch after geometry, with boxes, masks and label maps, and pixel policy.

        Args:
            sample: a batch as `ArrayDataset.batch` gives it.
            uniforms: (N, draws) numbers in [0, 1) on the CPU.
            void: label of pixels from outside the image, where the labels are maps.
        """
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        motion, first = self._motion, self._motion.draws
        moved = motion.apply(sample, uniforms[:, :first], void=void)
        return {**moved, "image": self.pixel(moved["image"], uniforms[:, first:])}

    def pixel(
        self,
        images: Tensor,
        uniforms: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The policy alone: uint8 images (N, C, H, W), each augmented by its own draws.

        Args:
            images: uint8, (N, C, H, W).
            uniforms: (N, policy.draws) numbers in [0, 1) on the CPU; drawn where they are None.
            generator: where to draw them from.
        """
        check_pixels(images)
        if self.policy is None:
            return images
        if uniforms is None:
            device = None if generator is None else generator.device
            shape = (len(images), self.policy.draws)
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

    @property
    def _motion(self) -> Augment | ResizedCrop:
        return Augment(**self.geometry) if self.resized_crop is None else self.resized_crop


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
