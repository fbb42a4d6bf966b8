"""How many bits a blurred image still holds, measured by its compressed size.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, Eq. (13) and Fig. 3.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato._core.images import check_images
from sfumato.inputs.heat import dissipate


def png_sizes(images: Tensor) -> Tensor:
    """Number of bytes of each image as a PNG file (Lempel-Ziv and Huffman coding).

    Args:
        images: (N, C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point. They are
            rounded to 256 levels; what lies outside [0, 1] is cut off.

    Returns:
        int64, (N,).

    Example:
        >>> flat, noisy = torch.zeros(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
        >>> png_sizes(flat) < png_sizes(noisy)
        tensor([True])

    Differs: the paper counts with `torchvision.io.encode_png`, which torchvision 0.29 deprecates;
        the files that Pillow writes have the same sizes within 1 %.
    """
    check_images(images)
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels for PNG, got {tuple(images.shape)}")
    levels = (images.detach().float() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    pixels = levels.permute(0, 2, 3, 1).squeeze(-1).numpy()  # (N, H, W, 3) or (N, H, W)
    return torch.tensor([_png_size(image) for image in pixels], dtype=torch.int64)


def information_ratio(images: Tensor, t: Tensor | float) -> Tensor:
    """Share of each image's bits that is left after blurring to temperature t.

        size(x_t.png) / size(x_0.png),   x_t = dissipate(x, t)

    Args:
        images: (N, C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point.
        t: temperature in [0, 1], one number or one per image (N,).

    Returns:
        float32, (N,): 1 at t = 0. It may rise a little above 1 for drawings, where blurring turns
        flat areas into gradients.

    Example:
        >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> information_ratio(image, 1.0) < 0.05
        tensor([True])

    Reference: mollification paper, Fig. 3.
    """
    sharp = png_sizes(dissipate(images, 0.0))
    return png_sizes(dissipate(images, t)) / sharp


def information_label_decay(images: Tensor, t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that blur destroys, by the bits that each image really loses.

        gamma = (1 - size(x_t.png) / size(x_0.png))^k                                  (Eq. 13)

    `blur_label_decay` is its approximation t^k, which costs nothing and needs no pixels.

    Args:
        images: (N, C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point.
        t: temperature in [0, 1], one number or one per image (N,).
        k: slope; below 1 the label decays faster, above 1 slower.

    Returns:
        float32, (N,), gamma in [0, 1]; just below 1 at t = 1, where a PNG header is left.

    Example:
        >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> information_label_decay(image, torch.tensor([0.0]))
        tensor([0.])

    Reference: mollification paper, Eq. (13), left-hand side.
    Differs: the equation is printed without "1 -", but the ratio falls from 1 to 0 as t rises,
        while both its approximation t^k and the text ask for a decay that rises from 0 to 1.
    """
    check_number("k", k, low=0.0, open_low=True)
    return (1 - information_ratio(images, t)).clamp(0, 1).pow(k)  # Eq. (13)


def _png_size(pixels: np.ndarray) -> int:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.tell()
