"""One number for each image: what mollification is told about a batch, checked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.images import working_dtype
from sfumato._core.tracing import is_watched


def per_image(
    name: str, value: Tensor | float, images: Tensor, *, high: float = math.inf
) -> Tensor:
    """`value` as one number per image, (N,), each checked to be in [0, high].

    Args:
        name: of the argument, for messages.
        value: a number or a tensor of shape () or (N,).
        images: (N, ...), gives count, device and precision.
        high: the largest value allowed.
    """
    if isinstance(value, bool) or not isinstance(value, Tensor | int | float):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    numbers = torch.as_tensor(value, dtype=working_dtype(images), device=images.device)
    if numbers.ndim > 1 or numbers.numel() not in (1, len(images)):
        raise ValueError(
            f"{name} must be a number or hold one per image, shape ({len(images)},), "
            f"got {tuple(numbers.shape)}"
        )
    if not is_watched():
        check_range(name, numbers, high)
    return numbers.expand(len(images))


def check_range(name: str, numbers: Tensor, high: float) -> None:
    """Raise unless every number is in [0, high]; NaN is not."""
    fits = (numbers >= 0) & (numbers <= high) & (numbers < math.inf)
    if not bool(fits.all()):
        interval = f"[0, {high:g}]" if high < math.inf else "[0, inf)"
        worst = numbers.detach()[~fits].flatten()[0].item()
        raise ValueError(f"{name} must be in {interval}, got {worst:g}")
