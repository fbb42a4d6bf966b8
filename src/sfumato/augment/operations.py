"""The pixel operations of RandAugment and its kin, each image of a batch with its own amount.

torchvision's kernels take one amount for a whole batch, so that a different draw for every image
means one call per image. Here the amount is a vector. Every operation gives the pixels that
`torchvision.transforms.v2.functional` gives for one image and one amount (now and then a grey
level off, where rounding decides); kernels that have no amount are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Interpolation = Literal["nearest", "bilinear"]

_GREY = (0.2989, 0.587, 0.114)  # ITU-R 601 luma, as torchvision has it
_GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


def apply_operations(
    images: Tensor,
    names: Sequence[str],
    choice: Tensor,
    amount: Tensor,
    *,
    interpolation: Interpolation = "nearest",
) -> Tensor:
    """Apply to each image the operation that was chosen for it.

    Images with the same operation go through together, all geometric ones as one resampling.

    Args:
        images: uint8, (N, C, H, W).
        names: the operations to choose from, keys of `OPERATIONS` or geometric ones.
        choice: int64, (N,), positions in `names`; -1 leaves an image as it is.
        amount: float64, (N,), pixels, degrees, bits, ... as the operation has it.
        interpolation: of the geometric operations.

    Example:
        >>> images = torch.tensor([100, 100], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> names, choice = ("invert", "brightness"), torch.tensor([0, 1])
        >>> apply_operations(images, names, choice, torch.tensor([0.0, 0.5])).flatten().tolist()
        [155, 150]
    """
    changed = images.clone()
    geometric = torch.tensor([name in _GEOMETRIC for name in names])
    moves = (choice >= 0) & geometric[choice]
    if bool(moves.any()):
        rows = moves.nonzero().flatten()
        matrix = _inverse_motion(names, choice[rows], amount[rows], *images.shape[-2:])
        where = rows.to(images.device)
        changed[where] = _resample(images[where], matrix.to(images.device), interpolation)
    for position, name in enumerate(names):
        rows = (choice == position).nonzero().flatten()
        if len(rows) and name in OPERATIONS:
            where = rows.to(images.device)
            amounts = amount[rows].to(images.device, torch.float32)[:, None, None, None]
            changed[where] = OPERATIONS[name](images[where], amounts)
    return changed


def _inverse_motion(
    names: Sequence[str], choice: Tensor, amount: Tensor, height: int, width: int
) -> Tensor:
    """Where output pixels come from, in pixels from the centre: (N, 2, 3) in float64."""
    kind = {name: choice == names.index(name) for name in _GEOMETRIC if name in names}
    none = torch.zeros_like(choice, dtype=torch.bool)

    def only(name: str) -> Tensor:
        return torch.where(kind.get(name, none), amount, 0.0)

    angle = torch.deg2rad(only("rotate"))
    shear_x, shear_y = only("shear_x"), only("shear_y")
    cos, sin = torch.cos(angle), torch.sin(angle)
    # Shears keep the corner where they are, not the centre; shifts are whole pixels.
    right = shear_x * (height / 2) - only("translate_x").trunc()
    down = shear_y * (width / 2) - only("translate_y").trunc()
    rows = (torch.stack((cos, shear_x - sin, right), 1), torch.stack((shear_y + sin, cos, down), 1))
    return torch.stack(rows, 1)


def _resample(images: Tensor, matrix: Tensor, interpolation: Interpolation) -> Tensor:
    """The images moved by one matrix each; what comes from outside is black."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + (0.5 - width / 2)
    y = torch.arange(height, device=images.device) + (0.5 - height / 2)
    matrix = matrix.to(torch.float32) / torch.tensor([[width / 2], [height / 2]]).to(images.device)
    across, down, shift = matrix[:, None, None].unbind(-1)  # (N, 1, 1, 2)
    grid = across * x[:, None] + down * y[:, None, None] + shift  # (N, H, W, 2)
    moved = F.grid_sample(images.float(), grid, interpolation, "zeros", align_corners=False)
    return moved.round_().to(torch.uint8)


def _blend(images: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """Away from `other` (amount above 0) or towards it (below), cut off at black and white."""
    ratio = 1 + amount
    return (images * ratio + other * (1 - ratio)).clamp_(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.unbind(1)
    grey = (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])
    return grey.floor_().unsqueeze(1)


def _brightness(images: Tensor, amount: Tensor) -> Tensor:
    return (images * (1 + amount)).clamp_(0, 255).to(torch.uint8)


def _color(images: Tensor, amount: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else _blend(images, _grey(images), amount)


def _contrast(images: Tensor, amount: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), amount)


def _sharpness(images: Tensor, amount: Tensor) -> Tensor:
    if min(images.shape[-2:]) <= 2:
        return images
    channels = images.shape[1]
    kernel = torch.ones(channels, 1, 3, 3, device=images.device)
    kernel[:, :, 1, 1] = 5
    sharp = images.float()
    inside = sharp[:, :, 1:-1, 1:-1]
    smooth = F.conv2d(sharp, kernel / 13, groups=channels).round_()
    inside -= (smooth - inside) * amount  # the border has no full neighbourhood and stays
    return sharp.clamp_(0, 255).to(torch.uint8)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    dropped = (8 - bits).to(torch.uint8)
    # Two shifts: a single shift by 8 bits is undefined for bytes.
    half = dropped // 2
    kept = (images >> half) >> (dropped - half)
    return (kept << half) << (dropped - half)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images >= 255 * threshold, ~images, images)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    from torchvision.transforms.v2 import functional as kernels

    stretched: Tensor = kernels.autocontrast(images)
    return stretched


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    from torchvision.transforms.v2 import functional as kernels

    levelled: Tensor = kernels.equalize(images)
    return levelled


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda images, _: images,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda images, _: ~images,
}
