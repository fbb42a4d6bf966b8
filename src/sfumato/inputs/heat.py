"""Melting images by the heat equation.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025; Rissanen et al., "Generative Modelling with Inverse Heat Dissipation", 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.images import check_images, working_dtype
from sfumato._core.tracing import is_watched
from sfumato.inputs._arguments import per_image
from sfumato.inputs.schedules import blur_scale

# Without gradients a batch goes through in parts of this many numbers: intermediate results stay
# in the cache, and the memory of one part serves the next. Fresh memory would cost as much as the
# products themselves.
_PART = 2**18


def dissipate(
    images: Tensor, t: Tensor | float, *, sigma_min: float = 0.3, sigma_max: float | None = None
) -> Tensor:
    """Blur each image by the heat equation, from hardly (t = 0) to its mean colour (t = 1).

    Blur takes the fine detail away first, so that a network that sees such images learns to
    rely on coarse structure. The scale grows logarithmically, which removes bits linearly.

        x_t = V exp(-tau Lambda) V^T x,   tau = sigma_B(t)^2 / 2                        (Eq. 5)
        sigma_B(t) = exp((1 - t) log sigma_min + t log sigma_max)                       (Eq. 6)

    Args:
        images: (N, C, H, W), floating point, any height and width.
        t: temperature in [0, 1], one number or one per image (N,).
        sigma_min: blur scale in pixels at t = 0; even there the image is blurred a little.
        sigma_max: blur scale in pixels at t = 1; None is the width of the images.

    Returns:
        The blurred images in the precision of `images`. Gradients reach `images` and `t`.

    Raises:
        TypeError: integer images.
        ValueError: t outside [0, 1], or shapes that don't fit.

    Example:
        >>> image = torch.tensor([0.0, 0.0, 4.0, 0.0]).reshape(1, 1, 1, 4)
        >>> dissipate(image, 0.5).flatten()
        tensor([0.3094, 0.9642, 1.4909, 1.2355])

    Reference: mollification paper, Eq. (5) and (6).
    Differs: the released code takes the DCT size from the last dimension and so needs square
        images, and lets autocast round the transform to half precision.
    """
    check_images(images)
    t = per_image("t", t, images, high=1.0)
    scale = float(images.shape[-1]) if sigma_max is None else sigma_max
    return _blur(images, blur_scale(t, sigma_min=sigma_min, sigma_max=scale))


def heat_blur(images: Tensor, sigma: Tensor | float) -> Tensor:
    """Blur each image by a Gaussian of its own width, mirrored at the borders.

    The heat equation after time sigma^2 / 2, with no flow through the borders: means stay,
    variances never grow, and squared scales add. It is solved in the cosine transform, so that a
    scale below one pixel rings a little at edges. Both axes separate: with the heat kernels K of
    height and width

        x_sigma = V exp(-sigma^2 / 2 Lambda) V^T x = K_H x K_W                          (Eq. 5)

    Args:
        images: (N, C, H, W), floating point.
        sigma: standard deviation in pixels, at least 0, one number or one per image (N,).

    Example:
        >>> image = torch.tensor([0.0, 0.0, 4.0, 0.0]).reshape(1, 1, 1, 4)
        >>> heat_blur(image, 0.5).flatten()
        tensor([-0.0360,  0.6106,  2.8586,  0.5668])

    Reference: mollification paper, Eq. (5).
    """
    check_images(images)
    return _blur(images, per_image("sigma", sigma, images))


def heat_kernel(size: int, sigma: Tensor) -> Tensor:
    """Matrices that blur a line of `size` pixels, one for each scale.

        K = V exp(-sigma^2 / 2 Lambda) V^T,   Lambda_f = (pi f / size)^2                (Eq. 5)

    With the cosine sum g(m) = 1/n sum_f c_f exp(-sigma^2 / 2 Lambda_f) cos(pi f m / n), where
    c_0 = 1 and all other c_f = 2, the product of cosines makes every entry a sum of two values,
    K_ij = (g(i - j) + g(i + j + 1)) / 2: the Gaussian and its mirror image at the border. That
    takes n^2 instead of n^3 operations.

    Args:
        size: n, the number of pixels.
        sigma: (N,), floating point, in pixels.

    Returns:
        (N, size, size), symmetric, rows sum to 1.

    Example:
        >>> heat_kernel(2, torch.tensor([0.0, 1.0]))[1]
        tensor([[0.6456, 0.3544],
                [0.3544, 0.6456]])

    Reference: mollification paper, Eq. (5).
    """
    check_integer("size", size, low=1)
    return _matrices(_cosine_sums(size, sigma))


def _cosine_sums(size: int, sigma: Tensor) -> Tensor:
    """g(m) / 2 for m from 1 - n to 2n - 1, (N, 3n - 1)."""
    frequency = torch.arange(size, device="cpu")
    offset = torch.arange(1 - size, 2 * size, device="cpu")
    # Whole periods are taken off as integers, so that the cosines are exact for every size.
    angle = (frequency[:, None] * offset) % (2 * size)
    cosines = torch.cos(angle.double() * (math.pi / size)) / size
    cosines[0] /= 2
    radians = frequency.to(sigma) * (math.pi / size)  # per pixel
    # exp(-80) is nothing in float64 too, but still a normal number: denormal ones are slow.
    exponent = (0.5 * (sigma[:, None] * radians).square()).clamp(max=80)
    return torch.exp(-exponent) @ cosines.to(sigma)


def _matrices(sums: Tensor) -> Tensor:
    """K_ij = g(i - j) / 2 + g(i + j + 1) / 2 from the sums: two views, one of them mirrored."""
    size = (sums.shape[1] + 1) // 3
    lines = sums.unfold(1, size, 1)  # (N, 2n, n), line i begins at m = 1 - n + i
    return lines[:, :size].flip(2).add_(lines[:, size:])


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    with torch.autocast(device_type=images.device.type, enabled=False):
        pixels = images.to(working_dtype(images))
        across = _cosine_sums(width, sigma)
        down = across if height == width else _cosine_sums(height, sigma)
        wants_gradient = torch.is_grad_enabled() and (images.requires_grad or sigma.requires_grad)
        if wants_gradient or is_watched() or not images.is_cpu:
            rows, columns = _matrices(down)[:, None], _matrices(across)[:, None]
            return (rows @ (pixels @ columns)).to(images.dtype)  # Eq. (5)
        return _blur_in_parts(pixels, down, across).to(images.dtype)


def _blur_in_parts(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    total, channels, height, width = images.shape
    count = max(1, min(total, max(8, _PART // (channels * height * width))))
    blurred = torch.empty(images.shape, dtype=images.dtype, device=images.device)
    lines = blurred.new_empty(count, channels * height, width)
    spread = blurred.new_empty(count, channels, height, height)
    parts = (tensor.split(count) for tensor in (images, down, across, blurred))
    for part, part_down, part_across, out in zip(*parts, strict=True):
        columns = _matrices(part_across)
        rows = columns if down is across else _matrices(part_down)
        used, each = lines[: len(part)], spread[: len(part)]
        torch.bmm(part.reshape(used.shape), columns, out=used)
        each.copy_(rows[:, None])
        maps = (tensor.view(-1, height, width) for tensor in (used, out))
        torch.bmm(each.view(-1, height, height), next(maps), out=next(maps))  # Eq. (5)
    return blurred
