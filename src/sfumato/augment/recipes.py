"""Augmentation recipes, the names that study files have for them, and what wraps a recipe.

A likelihood averaged over K augmentations of an image needs all K in one batch: `CopiedSamples`
makes them, and `split_copies` takes what the network says of them apart.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, appendix D.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_pixels,
    check_uniforms,
)
from sfumato.augment.geometry import Augment, RandomWindow, ResizedCrop
from sfumato.augment.mixing import Mixing, cutmix, mixup, ricap
from sfumato.augment.policies import (
    AugMix,
    AutoAugment,
    ColourJitter,
    PixelPolicy,
    RandAugment,
    TrivialAugment,
)
from sfumato.augment.protocol import Annotated, BatchAugment, LocatedAugment, Sample
from sfumato.labels.objectness import box_objectness, mask_objectness, window_objectness
from sfumato.labels.targets import objectness_labels


@dataclass(frozen=True)
class Recipe:
    """The augmentation of a training batch between the data and mollification.

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
    def geometry(self) -> dict[str, Any]:
        """Flip, crop and rotation, as `Augment` takes them; all off where parts are resized."""
        return {"flip": self.flip, "crop": self.crop, "rotation": self.rotation}

    @property
    def draws(self) -> int:
        """Uniform numbers that `apply` uses for each sample: geometry first, then the policy."""
        return self._motion.draws + (0 if self.policy is None else self.policy.draws)

    @property
    def cuts_originals(self) -> bool:
        """True if it shows parts at full size, which are best cut from files."""
        return self.resized_crop is not None

    @property
    def rotates(self) -> bool:
        return self._motion.rotates

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        return self._motion.corners(uniforms[:, : self._motion.draws], height, width)

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The uint8 batch after geometry, with boxes and masks, and pixel policy."""
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
        """The policy alone, on uint8 images (N, C, H, W); draws `uniforms` where they are None."""
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
        """Mix normalised images and their labels; both stay as they are if there is no mixing."""
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

    Soft labels are of each image's crop; a patch brings that label, weighted by its area.
    """
    crop = ResizedCrop(scale=scale, ratio=ratio, flip=flip, rotation=rotation)
    recipe = Recipe(policy=None if jitter is None else ColourJitter(jitter), resized_crop=crop)
    if mixing != "none":
        return replace(recipe, mixing=_mixing(mixing, alpha))
    if alpha is not None:
        raise ValueError(f"alpha ({alpha:g}) is of the mixing: say mixing: mixup or another")
    return crop if jitter is None else recipe


# What a study may say of a recipe, beside its name; None keeps the recipe's own.
_OPTIONS: dict[str, Any] = {
    "flip": bool,
    **dict.fromkeys(("crop", "num_ops", "magnitude", "severity", "width"), int),
    **dict.fromkeys(("rotation", "alpha", "jitter"), float),
}


def _named(name: str, *options: str) -> Callable[..., Recipe]:
    """A function that makes one of `RECIPES` with other numbers: geometry's and these options."""
    geometry = ("flip", "crop", "rotation")

    def build(**options: Any) -> Recipe:
        given = _given(**options)
        jitter, alpha = given.pop("jitter", None), given.pop("alpha", None)
        own = {each: given.pop(each) for each in geometry if each in given}
        recipe = replace(RECIPES[name], **own)
        if given:  # is of the policy
            recipe = replace(recipe, policy=replace(cast(Any, recipe.policy), **given))
        if jitter is not None:
            recipe = replace(recipe, policy=ColourJitter(jitter))
        if alpha is None:
            return recipe
        return replace(recipe, mixing=_mixing(cast(MixingName, name.removeprefix("fcr+")), alpha))

    # What a study may say is read from the signature.
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    names = (*geometry, *options)
    said = [parameter(each, annotation=_OPTIONS[each] | None) for each in names]
    build.__signature__ = inspect.Signature(said)  # type: ignore[attr-defined]
    return build


AUGMENTATIONS: dict[str, Callable[..., BatchAugment]] = {
    "basic": Augment,
    "resized_crop": resized_crop,
    "window": RandomWindow,
    "none": lambda: RECIPES["none"],
    "fcr": _named("fcr", "jitter"),
    "fcr+randaug": _named("fcr+randaug", "num_ops", "magnitude"),
    "fcr+autoaug": _named("fcr+autoaug"),
    "fcr+augmix": _named("fcr+augmix", "severity", "width"),
    "fcr+trivaug": _named("fcr+trivaug"),
    "fcr+mixup": _named("fcr+mixup", "alpha", "jitter"),
    "fcr+cutmix": _named("fcr+cutmix", "alpha", "jitter"),
    "fcr+ricap": _named("fcr+ricap", "alpha", "jitter"),
}


def mixes(spec: Any) -> bool:
    """True if an augmentation, as a study names it, mixes the images of a batch.

    Example:
        >>> mixes("fcr+mixup"), mixes({"name": "resized_crop"})
        (True, False)
    """
    given = spec if isinstance(spec, dict) else {"name": spec}
    name, mixing = given.get("name"), given.get("mixing")
    recipe = RECIPES.get(name) if isinstance(name, str) else None
    return mixing not in (None, "none") or (recipe is not None and recipe.mixing is not None)


def _mixing(name: MixingName, alpha: float | None) -> Mixing:
    """The function of a batch; `alpha` is of its Beta distribution, which RICAP calls beta."""
    if alpha is not None:
        check_number("alpha", alpha, low=0.0, open_low=True)
    if name == "ricap":
        return partial(ricap, **_given(beta=alpha))
    return partial(mixup if name == "mixup" else cutmix, **_given(alpha=alpha))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class CopiedSamples:
    """Several copies of each sample in place of one, each augmented by numbers of its own.

    Args:
        augment: what is done to each copy; None leaves the copies alike.
        copies: K, how many of each. Row k N + n of a batch is copy k of sample n.
    """

    augment: BatchAugment | None
    copies: int

    def __post_init__(self) -> None:
        check_integer("copies", self.copies, low=1)

    @property
    def draws(self) -> int:
        return 0 if self.augment is None else self.copies * self.augment.draws

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with K rows for each of the given ones, the whole batch K times in a row."""
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        made = [
            sample if self.augment is None else self.augment.apply(sample, numbers, void=void)
            for numbers in uniforms.tensor_split(self.copies, dim=1)
        ]
        return {name: torch.cat([copy[name] for copy in made]) for name in made[0]}


def repeat_samples(images: Tensor, target: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """The whole batch `copies` times in a row: row k N + n is copy k of sample n.

    Args:
        images: (N, ...).
        target: (N, ...), class indices or soft targets.
        copies: K, how many of each.

    Example:
        >>> import torch
        >>> images, target = torch.zeros(2, 3, 8, 8), torch.tensor([4, 7])
        >>> repeat_samples(images, target, 3)[1]
        tensor([4, 7, 4, 7, 4, 7])

    Reference: mollification paper, Eq. (19) and (22).
    """
    check_integer("copies", copies, low=1)
    if len(images) != len(target):
        raise ValueError(f"target must hold {len(images)} entries, got {len(target)}")
    return torch.cat([images] * copies), torch.cat([target] * copies)


def split_copies(values: Tensor, copies: int) -> Tensor:
    """Values of a batch of `repeat_samples` with the copies apart: (K N, ...) as (K, N, ...).

    Example:
        >>> import torch
        >>> split_copies(torch.tensor([0, 1, 10, 11, 20, 21]), 3)
        tensor([[ 0,  1],
                [10, 11],
                [20, 21]])
    """
    check_integer("copies", copies, low=1)
    if values.ndim == 0 or len(values) % copies:
        raise ValueError(
            f"values must have a multiple of {copies} rows (copies), got {tuple(values.shape)}"
        )
    return values.reshape(copies, len(values) // copies, *values.shape[1:])


# From a batch after its crops to the probabilities (N, num_classes) that it is trained on.
LabelSample = Callable[[Sample], Tensor]


@dataclass(frozen=True)
class ObjectnessLabels:
    """Labels that follow the objectness of the crop, as a study's `labels` section says.

    Args:
        beta: 1 full adaptive smoothing, 0 hard labels (Eq. 6). Below (C - 1) / C the true class
            keeps the largest share.
        by: measure the object by its "box" (the paper's) or by its "mask".
        absent: label where nothing is left of the object, as in `objectness_labels`.
    """

    beta: float = 1.0
    by: Literal["box", "mask"] = "box"
    absent: Literal["uniform", "others"] = "uniform"

    def __post_init__(self) -> None:
        check_number("beta", self.beta, low=0.0, high=1.0)
        check_choice("by", self.by, ("box", "mask"))
        check_choice("absent", self.absent, ("uniform", "others"))


@dataclass(frozen=True)
class LabelledAugment:
    """An augmentation whose samples carry a `soft_label` (N, num_classes) beside their `label`.

    Boxes are measured after the crop, or, where it is turned, before it, inside the turned window.
    Samples marked as `context` get uniform labels whatever the rest.
    """

    num_classes: int
    labels: ObjectnessLabels | LabelSample | None = None
    inner: LocatedAugment | None = None

    @property
    def draws(self) -> int:
        return 0 if self.inner is None else self.inner.draws

    @property
    def cuts_originals(self) -> bool:
        return bool(getattr(self.inner, "cuts_originals", False))

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The augmented batch with `soft_label`, and `objectness` where it decides the label."""
        source = {key: value for key, value in sample.items() if key not in self._unused()}
        moved = source
        if self.inner is not None:
            moved = self.inner.apply(source, uniforms, void=void)
        soft_label = torch.nn.functional.one_hot(moved["label"], self.num_classes).float()
        if isinstance(self.labels, ObjectnessLabels):
            share, how = self._objectness(source, moved, uniforms), self.labels
            moved = {**moved, "objectness": share}
            soft_label = objectness_labels(soft_label, share, beta=how.beta, absent=how.absent)
        elif self.labels is not None:
            soft_label = self._labelled(moved, self.labels)
        if "context" in moved:
            soft_label[moved["context"]] = 1 / self.num_classes
        return {**moved, "soft_label": soft_label}

    def _unused(self) -> tuple[str, ...]:
        """Annotations that need not move: masks are for functions and for objectness by mask."""
        how = ObjectnessLabels() if self.labels is None else self.labels
        by_box = isinstance(how, ObjectnessLabels) and how.by == "box"
        return ("objectness", "masks") if by_box else ("objectness",)

    def _labelled(self, sample: Sample, label: LabelSample) -> Tensor:
        found, expected = label(sample), (len(sample["label"]), self.num_classes)
        if not isinstance(found, Tensor) or found.shape != expected:
            shape = tuple(found.shape) if isinstance(found, Tensor) else ""
            raise ValueError(
                f"labels must give probabilities {expected}, one for each class of each image, "
                f"got {type(found).__name__} {shape}"
            )
        return found.clone()  # context-only images are written into it

    def _objectness(self, source: Sample, moved: Sample, uniforms: Tensor) -> Tensor:
        if "masks" in moved:
            return mask_objectness(moved["masks"])
        height, width = source["image"].shape[-2:]
        if self.inner is None or not self.inner.rotates:
            return box_objectness(moved["boxes"], (height, width))
        corners = self.inner.corners(uniforms, height, width).to(source["boxes"].device)
        return window_objectness(source["boxes"], corners)


def label_samples(
    labels: ObjectnessLabels | LabelSample | None, train: Annotated, augment: BatchAugment | None
) -> BatchAugment | None:
    """The augmentation that a training set needs for its labels; as it is where they are hard."""
    if labels is None and train.context is None:
        return augment
    if isinstance(labels, ObjectnessLabels):
        needed = "boxes" if labels.by == "box" else "masks"
        if getattr(train, needed) is None:
            raise ValueError(
                f"labels: objectness by {labels.by} needs data with {needed}, which this has not: "
                "use scenes, tiny_imagenet, annotated, or an npz with them"
            )
    return LabelledAugment(train.num_classes, labels, cast(LocatedAugment | None, augment))
