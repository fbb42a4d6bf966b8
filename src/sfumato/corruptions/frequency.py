"""Noise of one spatial frequency, and how accuracy depends on it.

Reference: Park and Kim, Blurs Behave Like Ensembles, ICML 2022, section 2.2 and figure 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_class_indices, check_floating, check_number
from sfumato.corruptions.random_numbers import Streams, draw_seeds, seeded_generator


def frequency_mask(
    height: int, width: int, *, frequency: float, band: float = 0.1 * math.pi
) -> Tensor:
    """The ring of frequencies within band / 2 of `frequency`, as a mask on `torch.fft.fft2`.

    The frequency of a coefficient is the larger of its two |omega|, in radians per pixel: the rings
    are square, from 0 (the mean) to pi (changing from pixel to pixel).

    Args:
        height, width: rows and columns.
        frequency: middle of the ring, 0 to pi.
        band: width w of the ring.

    Example:
        >>> frequency_mask(4, 4, frequency=math.pi, band=0.5).int()
        tensor([[0, 0, 1, 0],
                [0, 0, 1, 0],
                [1, 1, 1, 1],
                [0, 0, 1, 0]], dtype=torch.int32)

    Reference: M_f of figure 6a, with w = 0.1 pi.

    Differs: released is a ring 0.4 radians wide between two squares cut to whole coefficients.
    """
    check_number("frequency", frequency, low=0.0, high=math.pi)
    check_number("band", band, low=0.0, open_low=True)
    rows = torch.fft.fftfreq(height, dtype=torch.float64)[:, None].abs()
    columns = torch.fft.fftfreq(width, dtype=torch.float64).abs()
    omega = 2.0 * math.pi * torch.maximum(rows, columns)
    return (omega - frequency).abs() <= 0.5 * band + 1e-9


def keep_band(images: Tensor, mask: Tensor) -> Tensor:
    """Remove every frequency outside the mask: F^-1(F(x) * M)."""
    if images.numel() == 0:  # refused by the transforms of older PyTorch
        return images
    # Masks are even, so that the imaginary part is rounding alone.
    return torch.fft.ifft2(torch.fft.fft2(images) * mask.to(images.device)).real


@torch.no_grad()
def frequency_noise(
    images: Tensor,
    *,
    frequency: float,
    std: float = 0.1,
    band: float = 0.1 * math.pi,
    equal_energy: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Add Gaussian noise of one frequency only.

    x_noise = x + F^-1(F(delta) * M_f), delta ~ N(0, std^2) in every value. The result is clipped to
    [0, 1].

    Args:
        images: floating point in [0, 1].
        frequency: middle of the band, 0 to pi radians per pixel.
        std: standard deviation of delta, before the mask.
        band: width of the band.
        equal_energy: scale the masked noise to standard deviation `std`. Without it a higher band
            has more energy, for it holds more coefficients.
        generator: a CPU generator; each image draws one seed, so batching does not matter.

    Example:
        >>> images = torch.full((1, 3, 32, 32), 0.5)
        >>> generator = torch.Generator().manual_seed(0)
        >>> noisy = frequency_noise(images, frequency=1.0, std=0.1, generator=generator)
        >>> f"{noisy.std():.3f}"
        '0.021'

    Reference: section 2.2.
    """
    check_floating("images", images, hint="Divide uint8 images by 255")
    if images.ndim != 4:
        raise ValueError(f"images must be (N, C, H, W), got {tuple(images.shape)}")
    check_number("std", std, low=0.0)
    mask = frequency_mask(*images.shape[-2:], frequency=frequency, band=band)
    if not bool(mask.any()):
        raise ValueError(
            f"frequency {frequency:g} with band {band:g} holds no coefficient of a "
            f"{images.shape[2]} x {images.shape[3]} image. Use a wider band."
        )
    streams = Streams(draw_seeds(len(images), generator), device=images.device)
    delta = keep_band(streams.normal(*images.shape[1:], std=std), mask)
    if equal_energy:
        delta = delta / math.sqrt(float(mask.double().mean()))
    return (images + delta).clamp_(0.0, 1.0).to(images.dtype)


@torch.no_grad()
def accuracy_by_frequency(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    *,
    frequencies: Sequence[float],
    std: float = 0.1,
    band: float = 0.1 * math.pi,
    equal_energy: bool = False,
    batch_size: int = 256,
    seed: int = 0,
) -> Tensor:
    """Accuracy under noise of each frequency; the model is used in the mode in which it comes.

    Args:
        model: maps images in [0, 1] to logits or probabilities (N, K).
        images: (N, C, H, W), floating point in [0, 1].
        target: true classes, (N,).
        frequencies: middles of the bands, 0 to pi; the result has an entry for each.
        batch_size: images at once; does not change the noise.
        seed: of the noise, a separate stream for each frequency.
        std, band, equal_energy: as in `frequency_noise`.

    Example:
        >>> model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> images, target = torch.eye(3).view(3, 3, 1, 1).expand(3, 3, 16, 16), torch.arange(3)
        >>> accuracy_by_frequency(model, images, target, frequencies=[0.5, 3.0])
        tensor([1., 1.])
    """
    accuracies = []
    noisy = partial(frequency_noise, std=std, band=band, equal_energy=equal_energy)
    for frequency in frequencies:
        generator = seeded_generator(seed, "frequency", frequency)
        right = 0
        for batch, labels in zip(images.split(batch_size), target.split(batch_size), strict=False):
            outputs = model(noisy(batch, frequency=frequency, generator=generator))
            labels = labels.to(outputs.device)
            check_class_indices("target", labels, outputs.shape[1])
            right += int((outputs.argmax(dim=1) == labels).sum())
        accuracies.append(right / max(1, len(images)))
    return torch.tensor(accuracies)
