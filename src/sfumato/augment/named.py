"""Augmentations by the names that study files have for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from sfumato.augment.flip_crop import Augment
from sfumato.augment.mixing import Mixing, cutmix, mixup, ricap
from sfumato.augment.protocol import BatchAugment
from sfumato.augment.recipes import RECIPES, Recipe
from sfumato.augment.resized_crop import ResizedCrop
from sfumato.augment.window import RandomWindow


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
    return crop if mixing == "none" else Recipe(mixing=mix[mixing], resized_crop=crop)


def _recipe(name: str) -> Recipe:
    return RECIPES[name]


AUGMENTATIONS: dict[str, Callable[..., BatchAugment]] = {
    "basic": Augment,
    "resized_crop": resized_crop,
    "window": RandomWindow,
    **{name: partial(_recipe, name) for name in RECIPES},
}


def mixes(spec: Any) -> bool:
    """Whether an augmentation, as a study names it, mixes the images of a batch.

    Example:
        >>> mixes("fcr+mixup"), mixes({"name": "resized_crop"})
        (True, False)
    """
    name, mixing = spec, None
    if isinstance(spec, dict):
        name, mixing = spec.get("name"), spec.get("mixing")
    recipe = RECIPES.get(name) if isinstance(name, str) else None
    return mixing not in (None, "none") or (recipe is not None and recipe.mixing is not None)
