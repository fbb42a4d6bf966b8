"""What the augmentation policies choose from: operations and the ranges of their amounts.

The numbers are those of torchvision's `transforms.v2`.
"""

from __future__ import annotations

from typing import NamedTuple


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
