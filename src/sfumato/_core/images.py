"""Checks of image batches, shared by what smooths images (`inputs`) and what augments them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sfumato._core.checks import check_class_indices, check_floating, check_integer
from sfumato._core.tracing import is_watched


def check_images(images: Tensor) -> None:
    """Raise unless `images` is a floating-point batch (N, C, H, W)."""
    check_floating("images", images, hint="Convert uint8 images with images / 255")
    check_batch(images)


def check_pixels(images: Tensor) -> None:
    """Raise unless `images` is a uint8 batch (N, C, H, W)."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(
            f"images must be uint8, got {found}. Pixel augmentations come before the conversion "
            "to floating point: uint8, float, normalise, mix, mollify."
        )
    check_batch(images)


def check_batch(images: Tensor) -> None:
    """Raise unless `images` has the four dimensions (N, C, H, W), none of the last three empty."""
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(
            f"images must have shape (N, C, H, W), got {tuple(images.shape)}. "
            "For one image use images[None]."
        )


def working_dtype(images: Tensor) -> torch.dtype:
    """float64 for float64 images; float32 for all others, half precision included."""
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def soft_labels(target: Tensor, images: Tensor, num_classes: int) -> Tensor:
    """`target` as one row of class shares per image, (N, num_classes), checked.

    Class indices become one-hot rows in the working precision of the images; soft labels come
    back as they are.
    """
    check_integer("num_classes", num_classes, low=2)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    expected = (len(images), num_classes) if target.is_floating_point() else (len(images),)
    if target.shape != expected:
        raise ValueError(
            f"target must hold class indices ({len(images)},) or soft labels, floating point, "
            f"({len(images)}, {num_classes}), got {target.dtype} {tuple(target.shape)}"
        )
    if target.is_floating_point():
        return target
    if not is_watched():
        check_class_indices("target", target, num_classes)
    return one_hot(target.long(), num_classes).to(working_dtype(images))
