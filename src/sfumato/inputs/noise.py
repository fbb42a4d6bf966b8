"""Drowning images in Gaussian noise.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.images import check_images, working_dtype
from sfumato.inputs._arguments import per_image


def diffuse(
    images: Tensor,
    t: Tensor | float,
    *,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mix each image with Gaussian noise, from the image itself (t = 0) to noise alone (t = 1).

    The cosine schedule keeps the variance: standardised images stay standardised. A network
    that sees such images learns to look past noise.

        x_t = cos(pi t / 2) x + sin(pi t / 2) eps,   eps ~ N(0, 1)                      (Eq. 4)

    Args:
        images: (N, C, H, W), standardised to mean 0 and variance 1, floating point.
        t: temperature in [0, 1], one number or one per image (N,).
        noise: eps, shaped like `images`; drawn where it is None.
        generator: where to draw the noise from; on any device.

    Returns:
        The noisy images in the precision of `images`. Gradients reach `images`, `t` and `noise`.

    Raises:
        TypeError: integer images.
        ValueError: t outside [0, 1], or shapes that don't fit.

    Example:
        >>> image = torch.ones(1, 1, 1, 2)
        >>> diffuse(image, 1 / 3, noise=-image).flatten()
        tensor([0.3660, 0.3660])

    Reference: mollification paper, Eq. (4).
    """
    check_images(images)
    angle = per_image("t", t, images, high=1.0)[:, None, None, None] * (math.pi / 2)
    noise = _noise_like(images, noise, generator)
    # Eq. (4)
    return torch.addcmul(torch.cos(angle) * images, torch.sin(angle), noise).to(images.dtype)


def _noise_like(images: Tensor, noise: Tensor | None, generator: torch.Generator | None) -> Tensor:
    dtype = working_dtype(images)
    if noise is None:
        device = images.device if generator is None else generator.device
        drawn = torch.randn(images.shape, generator=generator, device=device, dtype=dtype)
        return drawn.to(images.device)
    if generator is not None:
        raise ValueError("noise is given, so there is nothing to draw: leave generator out")
    if noise.shape != images.shape:
        raise ValueError(
            f"noise must have the shape of images {tuple(images.shape)}, got {tuple(noise.shape)}"
        )
    return noise.to(dtype)
