"""Light and colour: brightness, contrast, saturation.

Images are levels, float32 in [0, 255]; what leaves that range is clipped by the caller.
"""

from __future__ import annotations

import torch
from torch import Tensor


def luma(levels: Tensor) -> Tensor:
    """(N, 1, H, W) grey value; a grey image is its own."""
    if levels.shape[1] == 1:
        return levels
    red, green, blue = levels.split(1, dim=1)
    return red * 0.299 + green * 0.587 + blue * 0.114


def brightness(levels: Tensor, *, shift: float) -> Tensor:
    """Add `shift` to the value V of hue, saturation, value: the pixel is scaled by V' / V."""
    value = levels.amax(dim=1, keepdim=True)
    raised = (value + 255.0 * shift).clamp_(0.0, 255.0)
    return torch.where(value > 0.0, levels * (raised / value), raised)


def contrast(levels: Tensor, *, factor: float) -> Tensor:
    """Pull every value towards its channel's mean."""
    mean = levels.mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, levels, factor)


def saturate(levels: Tensor, *, factor: float, shift: float) -> Tensor:
    """Saturation S becomes clip(factor * S + shift); a grey image is left as it is.

    A grey pixel of a colour image counts as red with S = 0, as published: a positive shift tints
    it.
    """
    if levels.shape[1] == 1:
        return levels
    value = levels.amax(dim=1, keepdim=True)
    spread = value - levels.amin(dim=1, keepdim=True)
    saturation = torch.where(value > 0.0, spread / value, 0.0)
    wanted = (saturation * factor + shift).clamp_(0.0, 1.0) * value
    coloured = value - (value - levels) * (wanted / spread)
    red = levels.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    return torch.where(spread > 0.0, coloured, value - wanted * red)
