"""Perturbation sequences: the same image, frame by frame a little different.

A model should give all frames of a sequence the same class; `consistency` and its kin measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato._core.checks import check_choice
from sfumato.corruptions.camera import brightness, gaussian_noise, shot_noise
from sfumato.corruptions.catalogue import change_levels, check_corruptible
from sfumato.corruptions.filters import (
    homography_rotate,
    homography_scale,
    homography_tilt,
    line_blur,
    warp,
)
from sfumato.corruptions.random_numbers import Streams, draw_seeds
from sfumato.corruptions.weather import fallen_snow, snow_flakes

PERTURBATIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "motion_blur",
    "zoom_blur",
    "snow",
    "brightness",
    "translate",
    "rotate",
    "tilt",
    "scale",
)

_NOISE_STD = {"gaussian_noise": 0.02, "gaussian_noise_2": 0.04, "gaussian_noise_3": 0.06}
_PHOTONS = {"shot_noise": 700.0, "shot_noise_2": 400.0, "shot_noise_3": 200.0}
HARDER_PERTURBATIONS = tuple(n for n in (*_NOISE_STD, *_PHOTONS) if n not in PERTURBATIONS)


@torch.no_grad()
def perturb(images: Tensor, name: str, *, generator: torch.Generator | None = None) -> Tensor:
    """A sequence of slightly changed frames for each image, with the published CIFAR-P numbers.

    Noise sequences are a clean frame and 30 independent draws; the others move step by step: from
    left to right, from dark to bright, through the angles. There are 31 frames (16 of `translate`,
    21 of `motion_blur`).

    Args:
        images: (N, C, H, W) as `corrupt` takes them; the result is (N, frames, C, H, W).
        name: one of `PERTURBATIONS` or `HARDER_PERTURBATIONS`.
        generator: a CPU generator; each image draws one seed from it for noise and snow.

    Example:
        >>> images = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
        >>> frames = perturb(images, "brightness")
        >>> frames.shape, frames[0, ::10, 0, 0, 0]
        (torch.Size([1, 31, 3, 32, 32]), tensor([ 42,  80, 119, 157], dtype=torch.uint8))

    Reference: Hendrycks and Dietterich, ICLR 2019.

    Differs: geometric frames blend with the black border where the released ones cut hard.
    """
    check_corruptible(images)
    check_choice("name", name, (*PERTURBATIONS, *HARDER_PERTURBATIONS))
    if name in _NOISE_STD or name in _PHOTONS or name == "snow":
        seeds = draw_seeds(len(images), generator)
        frames = change_levels(images, lambda x, streams: _random(x, streams, name), seeds)
    else:
        frames = change_levels(images, lambda x: _stack(_MOVES[name](x)))
    return frames if len(images) else images.new_empty(0, frame_count(name), *images.shape[1:])


def frame_count(name: str) -> int:
    """Number of frames in a sequence."""
    check_choice("name", name, (*PERTURBATIONS, *HARDER_PERTURBATIONS))
    return {"translate": 16, "motion_blur": 21}.get(name, 31)


def is_ordered(name: str) -> bool:
    """True if a frame follows from the one before; noise frames compare with the first instead.

    Example:
        >>> is_ordered("rotate"), is_ordered("shot_noise")
        (True, False)
    """
    check_choice("name", name, (*PERTURBATIONS, *HARDER_PERTURBATIONS))
    return "noise" not in name


def _stack(frames: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(frames), dim=1)


def _random(levels: Tensor, streams: Streams, name: str) -> Tensor:
    if name == "snow":
        return _stack(_snow(levels, streams))
    noise = partial(shot_noise, photons=_PHOTONS.get(name, 0.0))
    if name in _NOISE_STD:
        noise = partial(gaussian_noise, std=_NOISE_STD[name])
    return _stack((levels, *(noise(levels, streams) for _ in range(30))))


def _snow(levels: Tensor, streams: Streams) -> Iterable[Tensor]:
    flakes = snow_flakes(levels, streams, loc=0.05, scale=0.3, zoom=2.0, threshold=0.5)
    for i in range(31):
        degrees = torch.full((len(levels),), i * 4.0 - 150.0, device=levels.device)
        yield fallen_snow(levels, flakes, radius=10, sigma=2, degrees=degrees, blend=0.85)


def _motion_blur(levels: Tensor) -> Iterable[Tensor]:
    for i in range(21):
        degrees = torch.full((len(levels),), (i - 20) * 9.0, device=levels.device)
        yield line_blur(levels, radius=6, sigma=1.8, degrees=degrees)


def _zoom_blur(levels: Tensor) -> Iterable[Tensor]:
    total = levels.clone()
    yield levels
    for i in range(1, 31):
        zoomed = warp(levels, homography_scale(levels, 1.0 + 0.004 * i))
        total += zoomed.floor_()
        yield total / (i + 1)


def _translate(levels: Tensor) -> Iterable[Tensor]:
    width = levels.shape[-1]
    padded = F.pad(levels, (8, 7))
    return (padded[..., 8 - dx : 8 - dx + width] for dx in range(-7, 9))


def _warped(
    homography: Callable[[Tensor, float], Tensor], first: float, step: float
) -> Callable[[Tensor], Iterable[Tensor]]:
    return lambda x: (warp(x, homography(x, first + step * i)) for i in range(31))


_MOVES: dict[str, Callable[[Tensor], Iterable[Tensor]]] = {
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "brightness": lambda x: (brightness(x, shift=(i - 15) * 0.015) for i in range(31)),
    "translate": _translate,
    "rotate": _warped(homography_rotate, -15.0, 1.0),
    "tilt": _warped(homography_tilt, -11.25, 0.75),
    # Divided and not multiplied by 0.02, which would round to other factors.
    "scale": lambda x: (warp(x, homography_scale(x, (2 * i + 70) / 100)) for i in range(31)),
}
