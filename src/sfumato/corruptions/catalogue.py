"""The 15 corruptions and the 4 extra ones, behind one function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato.corruptions.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from sfumato.corruptions.colour import brightness, contrast, saturate
from sfumato.corruptions.constants import (
    NOMINAL_SIZE,
    Constants,
    constants_for_size,
    severity_parameters,
)
from sfumato.corruptions.digital import elastic_transform, jpeg_compression, pixelate
from sfumato.corruptions.filters import whole_levels
from sfumato.corruptions.frost import frost
from sfumato.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from sfumato.corruptions.random_numbers import Streams, draw_seeds
from sfumato.corruptions.spatter import spatter
from sfumato.corruptions.weather import fog, snow

_EXTRA = "extra"
# One that is random takes, after the images, the random numbers of each of them.
_TABLE: dict[str, dict[str, Callable[..., Tensor]]] = {
    "noise": {
        "gaussian_noise": gaussian_noise,
        "shot_noise": shot_noise,
        "impulse_noise": impulse_noise,
    },
    "blur": {
        "defocus_blur": defocus_blur,
        "glass_blur": glass_blur,
        "motion_blur": motion_blur,
        "zoom_blur": zoom_blur,
    },
    "weather": {"snow": snow, "frost": frost, "fog": fog, "brightness": brightness},
    "digital": {
        "contrast": contrast,
        "elastic_transform": elastic_transform,
        "pixelate": pixelate,
        "jpeg_compression": jpeg_compression,
    },
    _EXTRA: {
        "speckle_noise": speckle_noise,
        "gaussian_blur": gaussian_blur,
        "spatter": spatter,
        "saturate": saturate,
    },
}
_FUNCTIONS = {name: function for each in _TABLE.values() for name, function in each.items()}
CATEGORIES: dict[str, tuple[str, ...]] = {key: tuple(each) for key, each in _TABLE.items()}
EXTRA_CORRUPTIONS: tuple[str, ...] = CATEGORIES[_EXTRA]
CORRUPTIONS: tuple[str, ...] = tuple(n for n in _FUNCTIONS if n not in EXTRA_CORRUPTIONS)
SEVERITIES = (1, 2, 3, 4, 5)

_SMALLEST, _LARGEST = 16, 1024
_VALUES_AT_ONCE = 2**26
_CPU_VALUES_AT_ONCE = 2**18  # the temporaries of one piece stay in the processor's cache


@torch.no_grad()
def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    constants: Constants | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Damage a batch of images as the common-corruptions benchmark does.

    Each image draws one seed from the generator and everything random about it follows from that
    seed, so the result does not depend on how the images are batched: 128 images in one call, or 64
    and 64 in two calls with the same generator, come out the same.

    Args:
        images: uint8, or floating point in [0, 1]; sides from 16 to 1024 pixels.
        name: one of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 (mild) to 5.
        constants: whose severities, "cifar" (made for 32 pixels), "tiny-imagenet" (64) or
            "imagenet" (224); None takes those whose size is nearest to the images' shorter side.
        generator: a CPU generator, also for images on another device; None is the default one. The
            eight corruptions without randomness draw nothing from it.

    Shape:
        images (N, C, H, W) with 1 or 3 channels; the result is like the images in shape, type and
        device. uint8 results are rounded down, as published.

    Raises:
        TypeError, ValueError: an argument is not of the form above.

    Example:
        >>> images = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
        >>> corrupt(images, "brightness", 3)[0, :, 0, 0]
        tensor([138, 138, 138], dtype=torch.uint8)
        >>> noisy = corrupt(images, "gaussian_noise", 3, generator=torch.Generator().manual_seed(0))
        >>> f"{noisy.float().std():.1f}"
        '20.5'

    Reference: Hendrycks and Dietterich, ICLR 2019. Constants and quirks are those of the released
    generators.

    Differs: frost is procedural. A result within a thousandth below a whole level counts as that
    level, so that the last bit of a sum does not decide; released values are there one level lower.
    """
    check_corruptible(images)
    check_choice("name", name, (*CORRUPTIONS, *EXTRA_CORRUPTIONS))
    check_integer("severity", severity, low=1, high=5)
    if constants is None:
        constants = constants_for_size(*images.shape[-2:])
    check_choice("constants", constants, NOMINAL_SIZE)
    parameters = severity_parameters(constants, name, severity)
    function = partial(_FUNCTIONS[name], **parameters)
    is_random = "streams" in inspect.signature(function).parameters
    return change_levels(
        images, function, draw_seeds(len(images), generator) if is_random else None
    )


def change_levels(
    images: Tensor, change: Callable[..., Tensor], seeds: Tensor | None = None
) -> Tensor:
    """Apply `change(levels)` or `change(levels, streams)` piece by piece, in the images' own type.

    Levels are float32 in [0, 255]. The result is clipped to that range; uint8 is rounded down.
    """
    whole = images.dtype == torch.uint8
    at_once = _CPU_VALUES_AT_ONCE if images.device.type == "cpu" else _VALUES_AT_ONCE
    step = max(1, at_once // max(1, images[:1].numel()))
    output = []
    # Filters are made on the CPU, whatever device is torch's default, and kept for the next call.
    made_on_cpu = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with torch.autocast(images.device.type, enabled=False), made_on_cpu:
        for start in range(0, len(images), step):
            piece = images[start : start + step].float().contiguous()
            arguments: list[Any] = [piece if whole else piece * 255.0]
            if seeds is not None:
                arguments.append(Streams(seeds[start : start + step], device=images.device))
            changed = change(*arguments).clamp(0.0, 255.0)
            changed = whole_levels(changed) if whole else changed / 255.0
            output.append(changed.to(images.dtype))
    return torch.cat(output) if output else images.clone()


def check_corruptible(images: Any) -> None:
    """Raise unless `images` are (N, 1 or 3, H, W), uint8 or in [0, 1], of a size that is served."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, got {type(images).__name__}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be (N, C, H, W) with 1 or 3 channels, got {tuple(images.shape)}. "
            "Use unsqueeze(0) for one image and permute(0, 3, 1, 2) for channels last."
        )
    if not all(_SMALLEST <= side <= _LARGEST for side in images.shape[2:]):
        raise ValueError(
            f"images must have sides from {_SMALLEST} to {_LARGEST} pixels, "
            f"got {images.shape[2]} x {images.shape[3]}. Resize them first."
        )
    if images.is_floating_point() and images.numel():
        low, high = (float(bound) for bound in images.aminmax())
        if not (low >= 0.0 and high <= 1.0):
            raise ValueError(
                f"images must lie in [0, 1] if floating point, got {low:g} to {high:g}. "
                "Corrupt before normalising; divide 0-255 images by 255."
            )
