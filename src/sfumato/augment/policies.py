"""RandAugment, AutoAugment, TrivialAugment, AugMix and colour jitter, drawn for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_pixels,
    check_uniforms,
)

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
    """
    geometric = torch.tensor([name in _GEOMETRIC for name in names])
    moves = (choice >= 0) & geometric[choice]
    group = choice.masked_fill(moves, len(names))
    order = group.argsort()
    matrix = _inverse_motion(names, choice[order], amount[order], *images.shape[-2:])
    matrix = matrix.to(images.device, torch.float32)
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
    ends = counts.cumsum(0).tolist()
    for value, count, end in zip(values.tolist(), counts.tolist(), ends, strict=True):
        for first in range(end - count, end, at_most):
            yield value, slice(first, min(first + at_most, end))


def _inverse_motion(
    names: Sequence[str], choice: Tensor, amount: Tensor, height: int, width: int
) -> Tensor:
    """Map output pixels to their source, in pixels from the centre: (N, 2, 3) in float64."""
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
    matrix = matrix / torch.tensor([[width / 2], [height / 2]]).to(images.device)
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


def _of_torchvision(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    def operation(images: Tensor, _: Tensor) -> Tensor:
        # Here and not on top: importing this package costs torch only.
        from torchvision.transforms.v2 import functional

        return getattr(functional, name)(images)

    return operation


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda images, _: images,
    "brightness": lambda x, amount: _bytes((x * (1 + amount)).clamp_(0, 255)),
    "color": lambda x, amount: x if x.shape[1] == 1 else _blend(x, _grey(x), amount),
    "contrast": lambda x, amount: _blend(x, _grey(x).mean((1, 2, 3), keepdim=True), amount),
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _of_torchvision("autocontrast"),
    "equalize": _of_torchvision("equalize"),
    "invert": lambda images, _: ~images,
}


class Range(NamedTuple):
    """Amounts of an operation from level 0 to level 1."""

    start: float = 0.0
    stop: float = 0.0
    signed: bool = False  # half of the draws get a minus
    relative: bool = False  # in image widths or heights instead of pixels


Space = dict[str, Range]


def _space(
    *, shear: float, shift: Range, degrees: float, enhance: float, bits: tuple[float, float]
) -> Space:
    enhanced = ("brightness", "color", "contrast", "sharpness")
    return {
        "shear_x": Range(0, shear, signed=True),
        "shear_y": Range(0, shear, signed=True),
        "translate_x": shift,
        "translate_y": shift,
        "rotate": Range(0, degrees, signed=True),
        **{name: Range(0, enhance, signed=True) for name in enhanced},
        "posterize": Range(*bits),
        "solarize": Range(1, 0),
        "autocontrast": Range(),
        "equalize": Range(),
    }


_SHIFT = Range(0, 150 / 331, signed=True, relative=True)
_THIRD = Range(0, 1 / 3, signed=True, relative=True)
_PIXELS = Range(0, 32, signed=True)
_STANDARD = _space(shear=0.3, shift=_SHIFT, degrees=30, enhance=0.9, bits=(8, 4))
RANDAUGMENT_SPACE: Space = {"identity": Range(), **_STANDARD}
AUTOAUGMENT_SPACE: Space = {"invert": Range(), **_STANDARD}

TRIVIALAUGMENT_SPACE: Space = {
    "identity": Range(),
    **_space(shear=0.99, shift=_PIXELS, degrees=135, enhance=0.99, bits=(8, 2)),
}

AUGMIX_SPACE: Space = _space(shear=0.3, shift=_THIRD, degrees=30, enhance=0.9, bits=(4, 0))

# The 25 ImageNet policies: two steps of operation, probability and level out of 9.
AUTOAUGMENT_POLICIES: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
    (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("equalize", 0.4, 0), ("rotate", 0.8, 8)),
    (("solarize", 0.6, 3), ("equalize", 0.6, 0)),
    (("posterize", 0.8, 5), ("equalize", 1.0, 0)),
    (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
    (("equalize", 0.6, 0), ("posterize", 0.4, 6)),
    (("rotate", 0.8, 8), ("color", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalize", 0.6, 0)),
    (("equalize", 0.0, 0), ("equalize", 0.8, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("color", 1.0, 2)),
    (("color", 0.8, 8), ("solarize", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
    (("shear_x", 0.6, 5), ("equalize", 1.0, 0)),
    (("color", 0.4, 0), ("equalize", 0.6, 0)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
)

_OPERATIONS = ("brightness", "contrast", "color")


@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast and saturation times random factors, in random order.

    Args:
        strength: s of the factors, drawn evenly from [max(0, 1 - s), 1 + s]; 0.4 is usual on
            ImageNet.
        saturation: False leaves the saturation as it is.

    Example:
        >>> images = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
        >>> brighter = ColourJitter(0.4).apply(images, torch.tensor([[0.0, 0.75, 0.5, 0.5]]))
        >>> brighter.unique().tolist()
        [120]

    Reference: named in adaptive label smoothing, appendix A; as torchvision's `ColorJitter`, whose
        hue stays as it is here.
    """

    strength: float = 0.4
    saturation: bool = True

    def __post_init__(self) -> None:
        check_number("strength", self.strength, low=0.0, open_low=True)
        check_choice("saturation", self.saturation, (True, False))

    @property
    def draws(self) -> int:
        """Uniform numbers of each image: one for the order, one for each factor."""
        return 4 if self.saturation else 3

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        orders = torch.tensor(list(permutations(range(self.draws - 1))))
        order = orders[_pick(uniforms[:, 0], len(orders))]  # (N, steps)
        low = max(-1.0, -self.strength)
        amounts = low + uniforms[:, 1:].double() * (self.strength - low)
        for choice in order.unbind(1):
            amount = amounts.gather(1, choice[:, None])[:, 0]
            images = apply_operations(images, _OPERATIONS, choice, amount)
        return images


class PixelPolicy(Protocol):
    """An augmentation of uint8 images, as a recipe calls it."""

    @property
    def draws(self) -> int: ...

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""


@dataclass(frozen=True)
class RandAugment:
    """Two operations, drawn with equal probability, at one fixed level.

    Args:
        num_ops: operations for each image, one after the other.
        magnitude: level from 0 to 30.

    Example:
        >>> images = torch.full((1, 1, 1, 4), 200, dtype=torch.uint8)
        >>> RandAugment(num_ops=1).apply(images, torch.tensor([[0.45, 0.7]])).flatten().tolist()
        [254, 254, 254, 254]

    Reference: Cubuk et al., "RandAugment", 2020.
    """

    num_ops: int = 2
    magnitude: int = 9

    def __post_init__(self) -> None:
        check_integer("num_ops", self.num_ops, low=0)
        check_integer("magnitude", self.magnitude, low=0, high=30)

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        level = torch.full((len(images),), self.magnitude / 30, dtype=torch.float64)
        for which, sign in _columns(uniforms, 2):
            choice = _pick(which, len(RANDAUGMENT_SPACE))
            images = _step(images, RANDAUGMENT_SPACE, choice, level, sign)
        return images


@dataclass(frozen=True)
class TrivialAugment:
    """One operation at one of 31 levels, both drawn with equal probability ("wide" ranges).

    Example:
        >>> images = torch.full((1, 1, 1, 4), 200, dtype=torch.uint8)
        >>> TrivialAugment().apply(images, torch.tensor([[0.95, 0.5, 0.7]])).shape
        torch.Size([1, 1, 1, 4])

    Reference: Müller and Hutter, "TrivialAugment", 2021.
    """

    draws: ClassVar[int] = 3

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        which, strength, sign = uniforms.unbind(1)
        choice = _pick(which, len(TRIVIALAUGMENT_SPACE))
        return _step(images, TRIVIALAUGMENT_SPACE, choice, _pick(strength, 31).double() / 30, sign)


@dataclass(frozen=True)
class AutoAugment:
    """One of 25 pairs of operations that were found on ImageNet, each with its own probability.

    Reference: Cubuk et al., "AutoAugment", 2019.
    """

    draws: ClassVar[int] = 5

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        names = list(AUTOAUGMENT_SPACE)
        steps = [step for policy in AUTOAUGMENT_POLICIES for step in policy]
        rows = [(names.index(name), probability, level / 9) for name, probability, level in steps]
        table = torch.tensor(rows, dtype=torch.float64).view(-1, 2, 3)
        policy = table[_pick(uniforms[:, 0], len(table))]  # (N, 2, 3)
        for step, (chance, sign) in enumerate(_columns(uniforms[:, 1:], 2)):
            choice, probability, level = policy[:, step].unbind(1)
            choice = torch.where(chance < probability, choice, -1).long()
            images = _step(images, AUTOAUGMENT_SPACE, choice, level, sign)
        return images


@dataclass(frozen=True)
class AugMix:
    """A random mixture of the image and of chains of one to three operations on it.

    Args:
        severity: operations get one of the lowest `severity` levels out of 10.
        width: number of chains.

    Reference: Hendrycks et al., "AugMix", 2020.
    Differs: torchvision cuts the mixture off to whole numbers, which darkens every image; here it
        is rounded.
    """

    severity: int = 3
    width: int = 3

    def __post_init__(self) -> None:
        check_integer("severity", self.severity, low=1, high=10)
        check_integer("width", self.width, low=1)

    @property
    def draws(self) -> int:
        return 1 + self.width * (2 + 3 * 3)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The augmented images: uint8 (N, C, H, W) and numbers (N, draws) in [0, 1)."""
        _check(images, uniforms, self.draws)
        share, exponents, depths, steps = uniforms.split(
            [1, self.width, self.width, 9 * self.width], dim=1
        )
        # Exponential variables over their sum are Dirichlet(1, ..., 1).
        weights = -torch.log1p(-exponents).clamp(max=-1e-12)
        weights = share * weights / weights.sum(1, keepdim=True)
        chains = images.repeat(self.width, 1, 1, 1)  # chain by chain, (width * N, ...)
        depth = 1 + _pick(_stacked(depths), 3)
        draws = _stacked(steps.unflatten(1, (self.width, 9)))
        for number, (which, strength, sign) in enumerate(_columns(draws, 3)):
            choice = torch.where(number < depth, _pick(which, len(AUGMIX_SPACE)), -1)
            level = _pick(strength, self.severity).double() / 9
            chains = _step(chains, AUGMIX_SPACE, choice, level, sign, interpolation="bilinear")
        mixture = (1 - share).to(images.device)[:, :, None, None] * images
        parts = chains.reshape(self.width, *images.shape)
        for weight, part in zip(weights.T.to(images.device), parts, strict=True):
            mixture += weight[:, None, None, None] * part
        return mixture.round_().clamp_(0, 255).to(torch.uint8)


def _step(
    images: Tensor,
    space: Space,
    choice: Tensor,
    level: Tensor,
    sign: Tensor,
    *,
    interpolation: Interpolation = "nearest",
) -> Tensor:
    height, width = images.shape[-2:]
    size = {"translate_x": width, "translate_y": height}
    limits = [
        (span.start, span.stop, span.signed, size[name] if span.relative else 1)
        for name, span in space.items()
    ]
    start, stop, signed, scale = torch.tensor(limits, dtype=torch.float64)[choice].unbind(1)
    amount = (start + (stop - start) * level) * scale
    amount = torch.where((signed > 0) & (sign < 0.5), -amount, amount)
    names = list(space)
    # Bits are whole numbers.
    amount = torch.where(choice == names.index("posterize"), amount.round(), amount)
    return apply_operations(images, names, choice, amount, interpolation=interpolation)


def _pick(uniform: Tensor, count: int) -> Tensor:
    """Whole numbers below `count`, each equally probable."""
    # A product just below `count` may round up to it, hence the clamp.
    return (uniform * count).long().clamp(max=count - 1)


def _columns(uniforms: Tensor, count: int) -> list[tuple[Tensor, ...]]:
    """The columns in groups of `count`, one group for each operation."""
    return [part.unbind(1) for part in uniforms.split(count, dim=1)]


def _stacked(values: Tensor) -> Tensor:
    """(N, chains, ...) as (chains * N, ...), chain by chain."""
    return values.transpose(0, 1).flatten(0, 1)


def _check(images: Tensor, uniforms: Tensor, draws: int) -> None:
    check_pixels(images)
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must have 1 (grey) or 3 (colour) channels here, got {tuple(images.shape)}"
        )
    check_uniforms(uniforms, len(images), draws)
