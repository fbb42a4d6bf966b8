"""The numbers behind the severities, as published for 32, 64 and 224 pixels.

Lengths and sigmas are in pixels; noise, brightness, contrast, snow, spatter and saturation act on
values in [0, 1]. A field holds one entry for each severity, or one number for all five. The fields
are the keyword arguments of the function that applies the corruption.

Reference: Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions
and Perturbations, ICLR 2019.
"""

from __future__ import annotations

from typing import Any, Literal

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
        "unit": 1.0,
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
    "zoom_blur": {"count": (7, 12, 16, 21, 26), "step": 0.01},
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
        "unit": 1.0,
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

_SEVERITIES: dict[Constants, dict[str, dict[str, Any]]] = {
    "cifar": _CIFAR,
    "tiny-imagenet": _TINY_IMAGENET,
    "imagenet": _IMAGENET,
}


def constants_for_size(height: int, width: int) -> Constants:
    """The published constants whose image size is nearest, in ratio, to the shorter side.

    Example:
        >>> [constants_for_size(side, side) for side in (32, 45, 46, 119, 120)]
        ['cifar', 'cifar', 'tiny-imagenet', 'tiny-imagenet', 'imagenet']
    """
    side = min(height, width)

    def distance(constants: Constants) -> float:
        nominal = NOMINAL_SIZE[constants]
        return max(side / nominal, nominal / side)

    return min(NOMINAL_SIZE, key=distance)


def severity_parameters(constants: Constants, name: str, severity: int) -> dict[str, Any]:
    """The keyword arguments of corruption `name` at `severity`.

    Example:
        >>> severity_parameters("cifar", "motion_blur", 5)
        {'radius': 9, 'sigma': 2.5}
    """
    fields = _SEVERITIES[constants][name]
    return {
        field: value[severity - 1] if isinstance(value, tuple) else value
        for field, value in fields.items()
    }
