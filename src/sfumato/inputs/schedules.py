"""How much a label loses, and how wide a blur is, at each temperature t.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato._core.tracing import is_watched
from sfumato.inputs._arguments import check_range


def noise_label_decay(t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that noise of temperature t destroys.

    The label decays with the signal-to-noise ratio of the image, SNR = cos^2 / sin^2 (pi t / 2):

        gamma = (1 / (1 + SNR))^k = sin(pi t / 2)^(2k)                                 (Eq. 12)

    Args:
        t: temperatures in [0, 1], any shape.
        k: slope; below 1 the label decays faster, above 1 slower. The paper uses 1.

    Returns:
        gamma in [0, 1], shaped like `t`: 0 leaves a label as it is, 1 makes it uniform.

    Example:
        >>> noise_label_decay(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.5000, 1.0000])

    Reference: mollification paper, Eq. (12).
    """
    t = _temperatures(t, k)
    return torch.sin(t * (math.pi / 2)).pow(2 * k)  # Eq. (12)


def blur_label_decay(t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that blur of temperature t destroys: gamma = t^k.

    Blur adds no noise, so that its signal-to-noise ratio is undefined; the label decays with the
    bits that are lost instead, which fall linearly in t. `information_label_decay` measures them.

    Args:
        t: temperatures in [0, 1], any shape.
        k: slope; below 1 the label decays faster, above 1 slower. The paper uses 1.

    Returns:
        gamma in [0, 1], shaped like `t`: 0 leaves a label as it is, 1 makes it uniform.

    Example:
        >>> blur_label_decay(torch.tensor([0.0, 0.5, 1.0]), k=2.0)
        tensor([0.0000, 0.2500, 1.0000])

    Reference: mollification paper, Eq. (13), right-hand side.
    """
    return _temperatures(t, k).pow(k)  # Eq. (13)


def blur_scale(t: Tensor | float, *, sigma_max: float, sigma_min: float = 0.3) -> Tensor:
    """Standard deviation of the blur in pixels, logarithmic in t.

        sigma_B = exp((1 - t) log sigma_min + t log sigma_max)                          (Eq. 6)

    Args:
        t: temperatures in [0, 1], any shape.
        sigma_max: scale at t = 1; the paper uses the image width.
        sigma_min: scale at t = 0; the paper uses 0.3, which is hardly visible.

    Example:
        >>> blur_scale(torch.tensor([0.0, 0.5, 1.0]), sigma_max=30.0)
        tensor([ 0.3000,  3.0000, 30.0000])

    Reference: mollification paper, Eq. (6).
    """
    check_number("sigma_min", sigma_min, low=0.0, open_low=True)
    check_number("sigma_max", sigma_max, low=sigma_min)
    t = _temperatures(t)
    return torch.exp((1 - t) * math.log(sigma_min) + t * math.log(sigma_max))  # Eq. (6)


def _temperatures(t: Tensor | float, k: float = 1.0) -> Tensor:
    check_number("k", k, low=0.0, open_low=True)
    t = torch.as_tensor(t)
    t = t if t.is_floating_point() else t.to(torch.get_default_dtype())
    if not is_watched():
        check_range("t", t, 1.0)
    return t
