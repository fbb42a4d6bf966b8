"""What happens to a normalised training batch before the network sees it: mix, then mollify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sfumato.augment import BatchAugment, Recipe
from sfumato.inputs import Mollify

TransformBatch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From images and targets to images and targets."""


def mollify(
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    modes: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    alpha: float = 1.0,
    beta: float = 2.0,
    noise_k: float = 1.0,
    blur_k: float = 1.0,
    labels: Literal["smooth", "temper", "keep"] = "smooth",
    blur_decay: Literal["power", "png"] | None = None,
) -> Mollify:
    """`Mollify` for standardised batches, as the engine's loaders give them."""
    return Mollify(
        num_classes,
        modes=modes,
        alpha=alpha,
        beta=beta,
        noise_k=noise_k,
        blur_k=blur_k,
        labels=labels,
        blur_decay=blur_decay or "power",
        mean=mean,
        std=std,
        standardised=True,
    )


@dataclass(frozen=True)
class BatchTransform:
    """Mixing and mollification in the papers' order, from the global random state."""

    num_classes: int
    recipe: Recipe | None = None
    mollify: TransformBatch | None = None

    def __call__(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.recipe is not None:
            images, target = self.recipe.mix(images, target, num_classes=self.num_classes)
        if self.mollify is not None:
            images, target = self.mollify(images, target)
        return images, target


def batch_transform(
    num_classes: int, augment: BatchAugment | None, mollification: TransformBatch | None
) -> BatchTransform | None:
    """The transform that a run needs, or None where its batches stay as they are."""
    recipe = augment if isinstance(augment, Recipe) and augment.mixing is not None else None
    if recipe is None and mollification is None:
        return None
    return BatchTransform(num_classes, recipe, mollification)
