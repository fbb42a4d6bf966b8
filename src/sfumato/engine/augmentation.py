"""Augmentations by name, as the loader applies them: geometry first, then a pixel policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from sfumato.data import Augment, BatchAugment, RandomWindow, Sample
from sfumato.inputs import RECIPES, Recipe


@dataclass(frozen=True)
class RecipeAugment:
    """The uint8 stages of a recipe; its mixing comes later, on normalised batches."""

    recipe: Recipe

    @property
    def geometry(self) -> Augment:
        return Augment(**self.recipe.geometry)

    @property
    def draws(self) -> int:
        return self.geometry.draws + self.recipe.draws

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch after flip, crop and rotation and the recipe's pixel policy."""
        first = self.geometry.draws
        moved = self.geometry.apply(sample, uniforms[:, :first], void=void)
        return {**moved, "image": self.recipe.pixel(moved["image"], uniforms[:, first:])}


def _recipe(name: str) -> RecipeAugment:
    return RecipeAugment(RECIPES[name])


AUGMENTATIONS: dict[str, Callable[..., BatchAugment]] = {
    "basic": Augment,
    "window": RandomWindow,
    **{name: partial(_recipe, name) for name in RECIPES},
}
