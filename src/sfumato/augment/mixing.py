"""Mixing the images of a batch with one another, and their labels in the same shares.

Each function draws once for the whole batch, as torchvision's `v2.MixUp` and `v2.CutMix` do, and
takes float images after normalisation; the result may be mollified afterwards.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from sfumato._core.checks import check_images, soft_labels
from sfumato._core.seeds import sample_beta


class Mixing(Protocol):
    """A function that mixes the images of a batch, as a recipe calls it."""

    def __call__(
        self,
        images: Tensor,
        target: Tensor,
        *,
        num_classes: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]: ...


def mixup(
    images: Tensor,
    target: Tensor,
    *,
    num_classes: int,
    alpha: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Blend each image and its label with the previous ones of the batch.

        x' = share x + (1 - share) x_prev,   share ~ Beta(alpha, alpha)

    Args:
        images: (N, C, H, W), floating point.
        target: class indices (N,) or soft labels (N, num_classes).
        num_classes: number of classes.
        alpha: of the Beta distribution; 1 is uniform.
        generator: where to draw from.

    Example:
        >>> images, target = torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])
        >>> mixup(images, target, num_classes=2)[1].sum(1)
        tensor([1., 1.])

    Reference: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018.
    """
    check_images(images)
    soft_target = soft_labels(target, images, num_classes)
    share = float(sample_beta(1, alpha, alpha, generator=generator))
    return _blend(images, share), _blend(soft_target, share)


def cutmix(
    images: Tensor,
    target: Tensor,
    *,
    num_classes: int,
    alpha: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Paste a box of the previous image of the batch into each image; labels share by area.

    Args:
        alpha: of the Beta distribution of the box's share before it is cut at the border.
        images, target, num_classes, generator: as in `mixup`.

    Example:
        >>> images, target = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8), [0, 1]
        >>> mixed, labels = cutmix(images, torch.tensor(target), num_classes=2)
        >>> bool(torch.isclose(mixed[0].mean(), labels[0, 1]))
        True

    Reference: Yun et al., "CutMix", 2019.
    """
    check_images(images)
    soft_target = soft_labels(target, images, num_classes)
    height, width = images.shape[-2:]
    share = float(sample_beta(1, alpha, alpha, generator=generator))
    half = 0.5 * math.sqrt(1 - share)
    top, bottom = _interval(height, int(half * height), generator)
    left, right = _interval(width, int(half * width), generator)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    # The border may have cut the box, so labels share by what was pasted, not by what was drawn.
    area = (bottom - top) * (right - left) / (height * width)
    return mixed, _blend(soft_target, 1 - area)


def ricap(
    images: Tensor,
    target: Tensor,
    *,
    num_classes: int,
    beta: float = 0.3,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Patch crops of four images of the batch together; labels share by area.

    The border point is (W, H) times two numbers from Beta(beta, beta). Each corner shows a random
    part of a randomly chosen image at its own scale.

    Args:
        beta: of the Beta distribution; small values make one image dominate.
        images, target, num_classes, generator: as in `mixup`.

    Example:
        >>> images, target = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8), [0, 1]
        >>> patched, labels = ricap(images, torch.tensor(target), num_classes=2)
        >>> bool(torch.isclose(patched[0].mean(), labels[0, 1]))
        True

    Reference: Takahashi et al., "RICAP: Random Image Cropping and Patching", 2018.
    """
    check_images(images)
    soft_target = soft_labels(target, images, num_classes)
    height, width = images.shape[-2:]
    device = None if generator is None else generator.device
    across, down = sample_beta(2, beta, beta, generator=generator).tolist()
    column, row = round(across * width), round(down * height)
    patched, labels = torch.empty_like(images), torch.zeros_like(soft_target)
    corners = product(((0, row), (row, height)), ((0, column), (column, width)))
    for rows, columns in corners:
        tall, wide = rows[1] - rows[0], columns[1] - columns[0]
        who = torch.randperm(len(images), generator=generator, device=device).to(images.device)
        top, left = _below(height - tall + 1, generator), _below(width - wide + 1, generator)
        crop = images[who, :, top : top + tall, left : left + wide]
        patched[:, :, slice(*rows), slice(*columns)] = crop
        labels += soft_target[who] * (tall * wide / (height * width))
    return patched, labels


def _blend(values: Tensor, share: float) -> Tensor:
    # The neighbour in a shuffled batch is as random as a drawn partner.
    return values.roll(1, 0).mul_(1 - share).add_(values, alpha=share)


def _interval(size: int, half: int, generator: torch.Generator | None) -> tuple[int, int]:
    """An interval of twice `half` about a random point, cut to [0, size)."""
    centre = _below(size, generator)
    return max(centre - half, 0), min(centre + half, size)


def _below(count: int, generator: torch.Generator | None) -> int:
    device = None if generator is None else generator.device
    return int(torch.randint(count, (), generator=generator, device=device))
