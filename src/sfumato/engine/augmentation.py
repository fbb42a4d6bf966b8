"""Augmentations by name, as the loader applies them: geometry first, then a pixel policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from sfumato.data import Augment, BatchAugment, RandomWindow, ResizedCrop, Sample
from sfumato.inputs import RECIPES, Recipe, cutmix, mixup, ricap
from sfumato.inputs.mixing import Mixing


@dataclass(frozen=True)
class RecipeAugment:
    """The uint8 stages of a recipe; its mixing comes later, on normalised batches."""

    recipe: Recipe
    crop: ResizedCrop | None = None

    @property
    def geometry(self) -> Augment | ResizedCrop:
        return Augment(**self.recipe.geometry) if self.crop is None else self.crop

    @property
    def rotates(self) -> bool:
        return self.geometry.rotates

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """Which part of its source each sample shows, as `Augment.corners`."""
        return self.geometry.corners(uniforms[:, : self.geometry.draws], height, width)

    @property
    def draws(self) -> int:
        return self.geometry.draws + self.recipe.draws

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch after flip, crop and rotation and the recipe's pixel policy."""
        first = self.geometry.draws
        moved = self.geometry.apply(sample, uniforms[:, :first], void=void)
        return {**moved, "image": self.recipe.pixel(moved["image"], uniforms[:, first:])}


def resized_crop(
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (0.75, 4 / 3),
    flip: bool = True,
    rotation: float = 0.0,
    mixing: Literal["none", "mixup", "cutmix", "ricap"] = "none",
) -> BatchAugment:
    """`ResizedCrop`, then, on normalised batches, mixing of images and labels.

    Soft labels are those of each image's own crop; a patch brings the label of the crop that it
    was cut from, weighted by the patch's area, wherever in that crop its object was.
    """
    crop = ResizedCrop(scale=scale, ratio=ratio, flip=flip, rotation=rotation)
    mix: dict[str, Mixing] = {"mixup": mixup, "cutmix": cutmix, "ricap": ricap}
    return crop if mixing == "none" else RecipeAugment(Recipe(mixing=mix[mixing]), crop)


def _recipe(name: str) -> RecipeAugment:
    return RecipeAugment(RECIPES[name])


AUGMENTATIONS: dict[str, Callable[..., BatchAugment]] = {
    "basic": Augment,
    "resized_crop": resized_crop,
    "window": RandomWindow,
    **{name: partial(_recipe, name) for name in RECIPES},
}
