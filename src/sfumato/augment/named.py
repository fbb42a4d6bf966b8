"""Augmentations by the names that study files have for them.

What an option of a recipe leaves open (None) is as in `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from sfumato._core.checks import check_number
from sfumato.augment.colour import ColourJitter
from sfumato.augment.flip_crop import Augment
from sfumato.augment.mixing import Mixing, cutmix, mixup, ricap
from sfumato.augment.policies import AugMix, PixelPolicy, RandAugment
from sfumato.augment.protocol import BatchAugment
from sfumato.augment.recipes import RECIPES, Recipe
from sfumato.augment.resized_crop import ResizedCrop
from sfumato.augment.window import RandomWindow

MixingName = Literal["mixup", "cutmix", "ricap"]


def resized_crop(
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (0.75, 4 / 3),
    flip: bool = True,
    rotation: float = 0.0,
    mixing: Literal["none", "mixup", "cutmix", "ricap"] = "none",
    alpha: float | None = None,
    jitter: float | None = None,
) -> BatchAugment:
    """`ResizedCrop`, colour jitter, then, on normalised batches, mixing of images and labels.

    Soft labels are those of each image's own crop; a patch brings the label of the crop that it
    was cut from, weighted by the patch's area, wherever in that crop its object was.
    """
    crop = ResizedCrop(scale=scale, ratio=ratio, flip=flip, rotation=rotation)
    if mixing == "none":
        if alpha is not None:
            raise ValueError(f"alpha ({alpha:g}) is of the mixing: say mixing: mixup or another")
        return crop if jitter is None else Recipe(policy=_jitter(jitter), resized_crop=crop)
    return Recipe(policy=_jitter(jitter), mixing=_mixing(mixing, alpha), resized_crop=crop)


def _plain(
    name: str,
    *,
    flip: bool | None = None,
    crop: int | None = None,
    rotation: float | None = None,
) -> Recipe:
    return _moved(RECIPES[name], flip, crop, rotation)


def _jittered(
    *,
    flip: bool | None = None,
    crop: int | None = None,
    rotation: float | None = None,
    jitter: float | None = None,
) -> Recipe:
    return replace(_moved(RECIPES["fcr"], flip, crop, rotation), policy=_jitter(jitter))


def _randaugment(
    *,
    flip: bool | None = None,
    crop: int | None = None,
    rotation: float | None = None,
    num_ops: int | None = None,
    magnitude: int | None = None,
) -> Recipe:
    policy = RandAugment(**_given(num_ops=num_ops, magnitude=magnitude))
    return replace(_moved(RECIPES["fcr+randaug"], flip, crop, rotation), policy=policy)


def _augmix(
    *,
    flip: bool | None = None,
    crop: int | None = None,
    rotation: float | None = None,
    severity: int | None = None,
    width: int | None = None,
) -> Recipe:
    policy = AugMix(**_given(severity=severity, width=width))
    return replace(_moved(RECIPES["fcr+augmix"], flip, crop, rotation), policy=policy)


def _mixed(
    mixing: MixingName,
    *,
    flip: bool | None = None,
    crop: int | None = None,
    rotation: float | None = None,
    alpha: float | None = None,
    jitter: float | None = None,
) -> Recipe:
    recipe = _moved(RECIPES[f"fcr+{mixing}"], flip, crop, rotation)
    return replace(recipe, policy=_jitter(jitter), mixing=_mixing(mixing, alpha))


AUGMENTATIONS: dict[str, Callable[..., BatchAugment]] = {
    "basic": Augment,
    "resized_crop": resized_crop,
    "window": RandomWindow,
    "none": lambda: RECIPES["none"],
    "fcr": _jittered,
    "fcr+randaug": _randaugment,
    "fcr+autoaug": partial(_plain, "fcr+autoaug"),
    "fcr+augmix": _augmix,
    "fcr+trivaug": partial(_plain, "fcr+trivaug"),
    "fcr+mixup": partial(_mixed, "mixup"),
    "fcr+cutmix": partial(_mixed, "cutmix"),
    "fcr+ricap": partial(_mixed, "ricap"),
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


def _moved(recipe: Recipe, flip: bool | None, crop: int | None, rotation: float | None) -> Recipe:
    return replace(recipe, **_given(flip=flip, crop=crop, rotation=rotation))


def _mixing(name: MixingName, alpha: float | None) -> Mixing:
    """The function of a batch; `alpha` is of its Beta distribution, which RICAP calls beta."""
    if alpha is not None:
        check_number("alpha", alpha, low=0.0, open_low=True)
    if name == "ricap":
        return partial(ricap, **_given(beta=alpha))
    return partial(mixup if name == "mixup" else cutmix, **_given(alpha=alpha))


def _jitter(strength: float | None) -> PixelPolicy | None:
    return None if strength is None else ColourJitter(strength)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
