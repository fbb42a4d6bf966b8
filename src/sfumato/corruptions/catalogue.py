"""The 15 corruptions and the 4 extra ones behind one function, with their severities.

The numbers are as published for 32, 64 and 224 pixels. Lengths and sigmas are in pixels; noise,
brightness, contrast, snow, spatter and saturation act on values in [0, 1]. A field holds one entry
for each severity, or one number for all five. The fields are the keyword arguments of the function
that applies the corruption.

Reference: Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions
and Perturbations, ICLR 2019.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer, check_unit_images
from sfumato.corruptions.camera import (
    brightness,
    contrast,
    defocus_blur,
    elastic_transform,
    gaussian_blur,
    gaussian_noise,
    glass_blur,
    impulse_noise,
    jpeg_compression,
    motion_blur,
    pixelate,
    saturate,
    shot_noise,
    speckle_noise,
    zoom_blur,
)
from sfumato.corruptions.filters import whole_levels
from sfumato.corruptions.random_numbers import Streams, draw_seeds
from sfumato.corruptions.weather import fog, frost, snow, spatter

Constants = Literal["cifar", "tiny-imagenet", "imagenet"]
NOMINAL_SIZE: dict[Constants, int] = {"cifar": 32, "tiny-imagenet": 64, "imagenet": 224}
_WATER_THEN_MUD = ("water", "water", "water", "mud", "mud")

_CIFAR: dict[str, dict[str, Any]] = {
    "gaussian_noise": {"std": (0.04, 0.06, 0.08, 0.09, 0.1)},
    "shot_noise": {"photons": (500, 250, 100, 75, 50)},
    "impulse_noise": {"amount": (0.01, 0.02, 0.03, 0.05, 0.07)},
    "defocus_blur": {"radius": (0.3, 0.4, 0.5, 1, 1.5), "alias_blur": (0.4, 0.5, 0.6, 0.2, 0.1)},
    "glass_blur": {
        "sigma": (0.05, 0.25, 0.4, 0.25, 0.4),
        "max_delta": 1,
        "iterations": (1, 1, 1, 2, 2),
    },
    "motion_blur": {"radius": (6, 6, 6, 8, 9), "sigma": (1, 1.5, 2, 2, 2.5)},
    "zoom_blur": {"count": (7, 12, 16, 21, 26), "step": 0.01},
    "snow": {
        "loc": (0.1, 0.1, 0.15, 0.25, 0.3),
        "scale": (0.2, 0.2, 0.3, 0.3, 0.3),
        "zoom": (1, 1, 1.75, 2.25, 1.25),
        "threshold": (0.6, 0.5, 0.55, 0.6, 0.65),
        "radius": (8, 10, 10, 12, 14),
        "sigma": (3, 4, 4, 6, 12),
        "blend": (0.95, 0.9, 0.9, 0.85, 0.8),
    },
    "frost": {
        "image_weight": (1, 1, 0.9, 0.85, 0.75),
        "frost_weight": (0.2, 0.3, 0.4, 0.4, 0.45),
        "detail": 32,
    },
    "fog": {"strength": (0.2, 0.5, 0.75, 1, 1.5), "decay": (3, 3, 2.5, 2, 1.75)},
    "brightness": {"shift": (0.05, 0.1, 0.15, 0.2, 0.3)},
    "contrast": {"factor": (0.75, 0.5, 0.4, 0.3, 0.15)},
    "elastic_transform": {
        "alpha": (0.0, 0.05, 0.08, 0.1, 0.1),
        "sigma": (0.0, 0.2, 0.06, 0.04, 0.03),
        "affine": (0.08, 0.07, 0.06, 0.05, 0.03),
    },
    "pixelate": {"scale": (0.95, 0.9, 0.85, 0.75, 0.65)},
    "jpeg_compression": {"quality": (80, 65, 58, 50, 40)},
    "speckle_noise": {"std": (0.06, 0.1, 0.12, 0.16, 0.2)},
    "gaussian_blur": {"sigma": (0.4, 0.6, 0.7, 0.8, 1)},
    "spatter": {
        "loc": (0.62, 0.65, 0.65, 0.65, 0.65),
        "scale": (0.1, 0.1, 0.3, 0.1, 0.1),
        "sigma": (0.7, 0.8, 1, 0.7, 0.5),
        "threshold": (0.7, 0.7, 0.69, 0.69, 0.68),
        "strength": (0.5, 0.5, 0.5, 0.6, 0.6),
        "kind": _WATER_THEN_MUD,
    },
    "saturate": {"factor": (0.3, 0.1, 1.5, 2, 2.5), "shift": (0, 0, 0, 0.1, 0.2)},
}

_TINY_IMAGENET: dict[str, dict[str, Any]] = {
    "gaussian_noise": {"std": (0.04, 0.08, 0.12, 0.15, 0.18)},
    "shot_noise": {"photons": (250, 100, 50, 30, 15)},
    "impulse_noise": {"amount": (0.01, 0.02, 0.05, 0.08, 0.14)},
    "defocus_blur": {"radius": (0.5, 1, 1.5, 2.5, 3), "alias_blur": (0.6, 0.1, 0.1, 0.01, 0.1)},
    "glass_blur": {
        "sigma": (0.1, 0.5, 0.6, 0.7, 0.9),
        "max_delta": (1, 1, 1, 2, 2),
        "iterations": (1, 1, 2, 1, 2),
    },
    "motion_blur": {"radius": (10, 10, 10, 10, 12), "sigma": (1, 1.5, 2, 2.5, 3)},
    "zoom_blur": _CIFAR["zoom_blur"],
    "snow": _CIFAR["snow"] | {"blend": (0.8, 0.8, 0.7, 0.65, 0.6)},
    "frost": {
        "image_weight": (1, 0.9, 0.8, 0.75, 0.7),
        "frost_weight": (0.3, 0.4, 0.45, 0.5, 0.55),
        "detail": 64,
    },
    "fog": {"strength": (0.4, 0.7, 1, 1.5, 2), "decay": (3, 3, 2.5, 2, 1.75)},
    "brightness": {"shift": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    "elastic_transform": {
        "alpha": (0.0, 0.05, 0.1, 0.1, 0.16),
        "sigma": (0.0, 0.3, 0.08, 0.03, 0.03),
        "affine": (0.08, 0.06, 0.06, 0.03, 0.02),
    },
    "pixelate": {"scale": (0.9, 0.8, 0.7, 0.6, 0.5)},
    "jpeg_compression": {"quality": (65, 58, 50, 40, 25)},
    "speckle_noise": {"std": (0.15, 0.2, 0.25, 0.3, 0.35)},
    "gaussian_blur": {"sigma": (0.5, 0.75, 1, 1.25, 1.5)},
    "spatter": _CIFAR["spatter"] | {"threshold": (0.7, 0.7, 0.69, 0.68, 0.67), "strength": 0.6},
    "saturate": {"factor": (0.3, 0.1, 2, 5, 30), "shift": (0, 0, 0, 0.1, 0.2)},
}

_IMAGENET: dict[str, dict[str, Any]] = {
    "gaussian_noise": {"std": (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {"photons": (60, 25, 12, 5, 3)},
    "impulse_noise": {"amount": (0.03, 0.06, 0.09, 0.17, 0.27)},
    "defocus_blur": {"radius": (3, 4, 6, 8, 10), "alias_blur": (0.1, 0.5, 0.5, 0.5, 0.5)},
    "glass_blur": {
        "sigma": (0.7, 0.9, 1, 1.1, 1.5),
        "max_delta": (1, 2, 2, 3, 4),
        "iterations": (2, 1, 3, 2, 2),
    },
    "motion_blur": {"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    "zoom_blur": {"count": (12, 16, 11, 13, 11), "step": (0.01, 0.01, 0.02, 0.02, 0.03)},
    "snow": {
        "loc": (0.1, 0.2, 0.55, 0.55, 0.55),
        "scale": 0.3,
        "zoom": (3, 2, 4, 4.5, 2.5),
        "threshold": (0.5, 0.5, 0.9, 0.85, 0.85),
        "radius": (10, 12, 12, 12, 12),
        "sigma": (4, 4, 8, 8, 12),
        "blend": (0.8, 0.7, 0.7, 0.65, 0.55),
    },
    "frost": {
        "image_weight": (1, 0.8, 0.7, 0.65, 0.6),
        "frost_weight": (0.4, 0.6, 0.7, 0.7, 0.75),
        "detail": 224,
    },
    "fog": {"strength": (1.5, 2, 2.5, 2.5, 3), "decay": (2, 2, 1.7, 1.5, 1.4)},
    "brightness": {"shift": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    "elastic_transform": {
        "alpha": (2.0, 2.0, 0.05, 0.07, 0.12),
        "sigma": (0.7, 0.08, 0.01, 0.01, 0.01),
        "affine": (0.1, 0.2, 0.02, 0.02, 0.02),
        "unit": 244 / 224,  # the published set was made with this slip; kept, so that ours agrees
    },
    "pixelate": {"scale": (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {"quality": (25, 18, 15, 10, 7)},
    "speckle_noise": {"std": (0.15, 0.2, 0.35, 0.45, 0.6)},
    "gaussian_blur": {"sigma": (1, 2, 3, 4, 6)},
    "spatter": {
        "loc": (0.65, 0.65, 0.65, 0.65, 0.67),
        "scale": (0.3, 0.3, 0.3, 0.3, 0.4),
        "sigma": (4, 3, 2, 1, 1),
        "threshold": (0.69, 0.68, 0.68, 0.65, 0.65),
        "strength": (0.6, 0.6, 0.5, 1.5, 1.5),
        "kind": _WATER_THEN_MUD,
    },
    "saturate": {"factor": (0.3, 0.1, 2, 5, 20), "shift": (0, 0, 0, 0.1, 0.2)},
}

_SEVERITIES = {"cifar": _CIFAR, "tiny-imagenet": _TINY_IMAGENET, "imagenet": _IMAGENET}


def constants_for_size(height: int, width: int) -> Constants:
    """The published constants whose image size is nearest, in ratio, to the shorter side."""
    ratios = {key: min(height, width) / nominal for key, nominal in NOMINAL_SIZE.items()}
    return min(NOMINAL_SIZE, key=lambda key: max(ratios[key], 1 / ratios[key]))


def severity_parameters(constants: Constants, name: str, severity: int) -> dict[str, Any]:
    """The keyword arguments of corruption `name` at `severity`."""
    return {
        field: value[severity - 1] if isinstance(value, tuple) else value
        for field, value in _SEVERITIES[constants][name].items()
    }


_EXTRA = "extra"
# One that is random takes, after the images, the random numbers of each of them.
_TABLE: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "noise": (gaussian_noise, shot_noise, impulse_noise),
    "blur": (defocus_blur, glass_blur, motion_blur, zoom_blur),
    "weather": (snow, frost, fog, brightness),
    "digital": (contrast, elastic_transform, pixelate, jpeg_compression),
    _EXTRA: (speckle_noise, gaussian_blur, spatter, saturate),
}
_FUNCTIONS = {each.__name__: each for several in _TABLE.values() for each in several}
CATEGORIES: dict[str, tuple[str, ...]] = {
    key: tuple(each.__name__ for each in several) for key, several in _TABLE.items()
}
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
    """Corrupt a batch of images as the common-corruptions benchmark does.

    Each image draws one seed from the generator and everything random about it follows from that
    seed: 128 images in one call, or 64 and 64 in two calls with the same generator, come out the
    same.

    Args:
        images: (N, C, H, W) with 1 or 3 channels, uint8 or floating point in [0, 1]; sides from 16
            to 1024 pixels. The result is like them; in uint8 it is rounded down, as published.
        name: one of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 (mild) to 5.
        constants: whose severities, "cifar" (made for 32 pixels), "tiny-imagenet" (64) or
            "imagenet" (224); None takes those whose size is nearest to the images' shorter side.
        generator: a CPU generator, also for images on another device; None is the default one. The
            eight corruptions without randomness draw nothing from it.

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
    function = partial(_FUNCTIONS[name], **severity_parameters(constants, name, severity))
    is_random = "streams" in inspect.signature(function).parameters
    seeds = draw_seeds(len(images), generator) if is_random else None
    return change_levels(images, function, seeds)


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
    check_unit_images(images)
    if not all(_SMALLEST <= side <= _LARGEST for side in images.shape[2:]):
        raise ValueError(
            f"images must have sides from {_SMALLEST} to {_LARGEST} pixels, "
            f"got {images.shape[2]} x {images.shape[3]}. Resize them first."
        )
