"""The pixel operations of RandAugment and its kin, each image of a batch with its own amount.

torchvision's kernels take one amount for a whole batch, so that a different draw for every image
means one call per image. Here the amount is a vector. Every operation gives the pixels that
`torchvision.transforms.v2.functional` gives for one image and one amount (now and then a grey
level off, where rounding decides); kernels that have no amount are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Interpolation = Literal["nearest", "bilinear"]

_GREY = (0.2989, 0.587, 0.114)  # ITU-R 601 luma, as torchvision has it
_GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_AT_A_TIME = 1 << 19  # pixels: what is made of so many on the way stays in the processor's cache


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
    geometric = torch.tensor([name in _GEOMETRIC for name in names])
    moves = (choice >= 0) & geometric[choice]
    group = choice.masked_fill(moves, len(names))
    order = group.argsort()
    matrix = _inverse_motion(names, choice[order], amount[order], *images.shape[-2:])
    matrix = matrix.to(images.device)
    amounts = amount[order].to(images.device, torch.float32)[:, None, None, None]
    # Sorted, so that a group is a slice: images picked from all over are copied pixel by pixel.
    changed = images.index_select(0, order.to(images.device))
    at_a_time = max(1, _AT_A_TIME // max(1, images[:1].numel()))
    for position, part in _slices(group[order], at_a_time):
        if position == len(names):
            changed[part] = _resample(changed[part], matrix[part], interpolation)
        elif position >= 0:
            changed[part] = OPERATIONS[names[position]](changed[part], amounts[part])
    return changed.index_select(0, order.argsort().to(images.device))


def _slices(group: Tensor, at_most: int) -> Iterator[tuple[int, slice]]:
    """Each value of a sorted vector and where it is, in pieces of at most so many."""
    values, counts = group.unique_consecutive(return_counts=True)
    start = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        for first in range(start, start + count, at_most):
            yield value, slice(first, min(first + at_most, start + count))
        start += count


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
    across, down, shift = matrix[..., None, None].unbind(2)  # (N, 2, 1, 1)
    grid = across * x + down * y[:, None] + shift  # (N, 2, H, W), from -1 to 1
    grid = grid.movedim(1, -1)
    moved = F.grid_sample(images.float(), grid, interpolation, "zeros", align_corners=False)
    return _bytes(moved.round_())


def _bytes(values: Tensor) -> Tensor:
    """Values from 0 to 255 without what is behind the point, as uint8."""
    # By way of int16, because PyTorch converts float32 to bytes one by one.
    return values.to(torch.int16).to(torch.uint8)


def _blend(images: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """Away from `other` (amount above 0) or towards it (below), cut off at black and white."""
    ratio = 1 + amount
    return _bytes((images * ratio + other * (1 - ratio)).clamp_(0, 255))


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.unbind(1)
    grey = (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])
    return grey.floor_().unsqueeze(1)


def _brightness(images: Tensor, amount: Tensor) -> Tensor:
    return _bytes((images * (1 + amount)).clamp_(0, 255))


def _color(images: Tensor, amount: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else _blend(images, _grey(images), amount)


def _contrast(images: Tensor, amount: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), amount)


def _sharpness(images: Tensor, amount: Tensor) -> Tensor:
    if min(images.shape[-2:]) <= 2:
        return images
    whole = images.to(torch.int16)
    three = whole[:, :, :-2] + whole[:, :, 1:-1] + whole[:, :, 2:]
    nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
    inside = whole[:, :, 1:-1, 1:-1].float()
    # Thirteenths are never halves, so that whole numbers round as the weighted mean does.
    smooth = ((nine + 4 * whole[:, :, 1:-1, 1:-1]) / 13).round_()
    inside -= (smooth - inside) * amount
    sharp = images.clone()  # the border has no full neighbourhood and stays
    sharp[:, :, 1:-1, 1:-1] = _bytes(inside.clamp_(0, 255))
    return sharp


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    dropped = (8 - bits).to(torch.uint8)
    # Two shifts: a single shift by 8 bits is undefined for bytes.
    half = dropped // 2
    kept = (images >> half) >> (dropped - half)
    return (kept << half) << (dropped - half)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    # In bytes alone, a tenth of the time of a comparison: what lies below the threshold has an
    # inverse beyond the limit, and is turned back by 255, which is -1.
    inverse = ~images
    limit = 255 - (255 * threshold).ceil().to(torch.uint8)
    is_below = (inverse - torch.minimum(inverse, limit)).clamp_(max=1)
    return inverse ^ -is_below


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
