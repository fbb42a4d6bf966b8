"""Scenes from a seed to pixels: random numbers, silhouettes, parameters, textures, rendering.

All parameters are drawn before the first pixel is rendered, and are the same however the work is
split, on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from sfumato._core.seeds import fold_seed


def derive_seed(seed: int, name: str) -> int:
    """The seed of stream `name` of `seed`; streams of different names are independent.

    Example:
        >>> derive_seed(0, "train") == derive_seed(0, "test")
        False
    """
    return fold_seed("sfumato.scenes", seed, name, order="little")


def generator_for(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, name))


class Dice:
    """Draws one number per sample at a time, each draw from a stream of its own.

    Sample i gets the i-th number of every stream, however many samples there are. Uniform numbers
    are exact multiples of 2^-24; angles are computed in float64, so that the last bit of a sine
    can't show.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self._num_samples, self._seed, self._draws = num_samples, seed, 0

    def uniform(self, low: float = 0.0, high: float = 1.0, *, count: int = 0) -> Tensor:
        """Numbers in [low, high): (N,), or (N, count) where a count is given."""
        shape = (self._num_samples, count) if count else (self._num_samples,)
        return self._rand(shape) * (high - low) + low

    def chance(self, probability: Tensor | float) -> Tensor:
        return self.uniform() < probability

    def another(self, classes: Tensor, num_classes: int) -> Tensor:
        """(N,) classes other than the given ones, all others equally likely."""
        step = (self.uniform() * (num_classes - 1)).long().clamp_max(num_classes - 2)
        return (classes + 1 + step) % num_classes

    def balanced_classes(self, num_classes: int) -> Tensor:
        """(N,) classes: every run of `num_classes` samples holds each once, in random order."""
        shape = (math.ceil(self._num_samples / num_classes), num_classes)
        order = self._rand(shape).argsort(dim=1, stable=True)
        return order.flatten()[: self._num_samples]

    def direction(self, turn: float = 1.0, *, count: int = 0) -> tuple[Tensor, Tensor]:
        """Cosine and sine of an angle within half of `turn` to either side of zero."""
        return cosine_sine(self.uniform(-0.5 * turn, 0.5 * turn, count=count))

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        self._draws += 1
        generator = generator_for(self._seed, f"draw {self._draws}")
        # The type is named, since users change PyTorch's default.
        return torch.rand(shape, generator=generator, dtype=torch.float32)


def cosine_sine(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine (float32) of angles counted in full turns.

    Example:
        >>> cosine_sine(torch.tensor([0.0, 0.125]))
        (tensor([1.0000, 0.7071]), tensor([0.0000, 0.7071]))
    """
    angle = turns.double() * (2.0 * math.pi)
    return angle.cos().float(), angle.sin().float()


def length(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x^2 + y^2), the root of a float32 number correctly rounded.

    PyTorch's float32 root has a wrong last bit for every sixth number on some processors. A float64
    root rounds to the right float32 number even if its own last bit is wrong.
    """
    return (x * x + y * y).double().sqrt_().to(x.dtype)


Distance = Callable[[Tensor, Tensor], Tensor]


def disc(x: Tensor, y: Tensor) -> Tensor:
    return length(x, y) - 1.0


def ring(x: Tensor, y: Tensor) -> Tensor:
    return (length(x, y) - 0.72).abs() - 0.28


def crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(length(x - 0.2, y) - 1.0, 0.78 - length(x - 0.7, y))


def drop(x: Tensor, y: Tensor) -> Tensor:
    """A disc and the cone of its two tangents through the tip at (0, 1.65)."""
    lower = y + 0.25
    tip, sine = 1.9, 1.0 / 1.9
    cosine = math.sqrt(1.0 - sine * sine)
    cone = x.abs() * cosine + (lower - tip) * sine
    neck = sine - lower  # the tangents touch the disc at height `sine`: the cone starts there
    return torch.minimum(length(x, lower) - 1.0, torch.maximum(cone, neck))


def heart(x: Tensor, y: Tensor) -> Tensor:
    """A square on its corner with a half-disc on each upper side."""
    side, upper = x.abs(), y + 0.3
    square = (side + upper.abs() - 1.0) * math.sqrt(0.5)
    return torch.minimum(square, length(side - 0.5, upper - 0.5) - math.sqrt(0.5))


def leaf(x: Tensor, y: Tensor) -> Tensor:
    """The overlap of two discs."""
    return length(x.abs() + 0.75, y) - 1.35


def star(x: Tensor, y: Tensor) -> Tensor:
    """Five points: mirrored into one tenth of the plane, where a single edge remains."""
    side, height = x.abs(), y
    for angle in (0.6 * math.pi, 0.2 * math.pi):
        normal_x, normal_y = math.cos(angle), -math.sin(angle)
        beyond = 2.0 * (side * normal_x + height * normal_y).clamp_min(0.0)
        side, height = (side - beyond * normal_x).abs(), height - beyond * normal_y
    inner_x, inner_y = 0.5 * math.sin(0.2 * math.pi), 0.5 * math.cos(0.2 * math.pi)
    slope = math.hypot(inner_x, 1.0 - inner_y)
    return (side * (1.0 - inner_y) + (height - 1.0) * inner_x) / slope


def cross(x: Tensor, y: Tensor) -> Tensor:
    side, height = x.abs(), y.abs()
    long, short = torch.maximum(side, height), torch.minimum(side, height)
    return torch.maximum(long - 1.0, short - 0.36)


def arrow(x: Tensor, y: Tensor) -> Tensor:
    side = x.abs()
    head = torch.maximum((side + y - 1.0) * math.sqrt(0.5), 0.05 - y)
    shaft = torch.maximum(side - 0.36, (y + 0.1).abs() - 0.85)
    return torch.minimum(head, shaft)


def house(x: Tensor, y: Tensor) -> Tensor:
    side = x.abs()
    walls = torch.maximum(side - 0.75, -0.85 - y)
    return torch.maximum(walls, (side + y - 1.0) * math.sqrt(0.5))


# The square root of each area, as its function draws it.
_UNITS: tuple[tuple[Distance, float], ...] = (
    (disc, 1.7725),
    (ring, 1.5917),
    (crescent, 1.2586),
    (drop, 1.9341),
    (heart, 1.8898),
    (leaf, 1.3765),
    (star, 1.2122),
    (cross, 1.5367),
    (arrow, 1.2787),
    (house, 1.4876),
)

CLASSES: tuple[str, ...] = tuple(silhouette.__name__ for silhouette, _ in _UNITS)


def signed_distance(silhouette: int, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance from (x, y) to the edge of silhouette number `silhouette`, of area 1."""
    function, unit = _UNITS[silhouette]
    return function(x * unit, y * unit) / unit


_DISTANCES = [partial(signed_distance, kind) for kind in range(len(CLASSES))]

Rows = TypeVar("Rows", bound=tuple[Any, ...])


class Background(NamedTuple):
    """A texture between two colours, rotated about its origin (x, y)."""

    texture: Tensor
    x: Tensor
    y: Tensor
    cosine: Tensor
    sine: Tensor
    frequency: Tensor  # periods per image side
    tone: Tensor
    low: Tensor  # (N, 3)
    high: Tensor  # (N, 3)


class Distractors(NamedTuple):
    """Short thick lines behind the figures, K per image; one without length is a blob."""

    x: Tensor  # (N, K), as all but the colour
    y: Tensor
    cosine: Tensor
    sine: Tensor
    half_length: Tensor
    radius: Tensor  # negative where absent
    colour: Tensor  # (N, K, 3)


class Figure(NamedTuple):
    """A silhouette of class `first`, or its morph towards `second` where `weight` is above 0."""

    first: Tensor
    second: Tensor
    weight: Tensor
    x: Tensor
    y: Tensor
    cosine: Tensor
    sine: Tensor
    scale: Tensor  # square root of the area
    stretch: Tensor  # width over height, as a square root
    colour: Tensor  # (N, 3)


class Light(NamedTuple):
    """The slope of the brightness over the image."""

    x: Tensor
    y: Tensor


class Scene(NamedTuple):
    """All that is seen, back to front. Lengths count in image sides, from the middle, y up."""

    background: Background
    distractors: Distractors
    figures: tuple[Figure, ...]
    light: Light


def apply(rows: Rows, function: Callable[[Tensor], Tensor]) -> Rows:
    parts = [apply(p, function) if isinstance(p, tuple) else function(p) for p in rows]
    return cast(Rows, tuple(parts) if type(rows) is tuple else type(rows)(*parts))


def take(rows: Rows, chosen: slice | int | Tensor | tuple[Tensor, int]) -> Rows:
    return apply(rows, lambda values: values[chosen])


# Share of the image that an untruncated figure covers.
AREA = (0.03, 0.60)
STRETCH = (0.85, 1.18)
# The range of angles in turns: figures keep their heads up, within 60 degrees.
ROTATION = 1 / 3
# Morphs closer to one class than this would be no riddle.
MORPH = (0.25, 0.75)
# Centres keep this many scales from the border: less than the figure's reach, so it may be cut.
OVERHANG = 0.45
_TEXTURE_CONTRAST = (0.04, 0.18)
_TEXTURE_FREQUENCY = (3.5, 6.0)
_FIGURE_LEAD = (0.30, 0.55)
_DISTRACTORS = 4
_DISTRACTOR_SHARE = 0.35
_LIGHT = 0.3


class Truth(NamedTuple):
    """The truth about each sample: its drawn label and the probabilities it was drawn with."""

    label: Tensor
    posterior: Tensor  # (N, silhouettes)


def draw_scenes(
    num_samples: int,
    seed: int,
    *,
    context: float,
    ambiguity: float,
    silhouettes: Sequence[int] = range(len(CLASSES)),
    figure: bool = True,
) -> tuple[Scene, Truth]:
    """Draw scenes of one figure each, of these silhouettes, and their labels.

    A share `ambiguity` are morphs between two classes, of weight w. The label is the second class
    with probability `morph_probability(w)`. The background follows a second, independent draw with
    the same probability: given w it tells nothing about the label, so the posterior stays exact.
    Labels count the silhouettes that are drawn. Without a figure the setting alone is seen.
    """
    dice, kinds = Dice(num_samples, seed), torch.tensor(silhouettes)
    first = dice.balanced_classes(len(kinds))
    second = dice.another(first, len(kinds))
    weight = dice.uniform(*MORPH) * dice.chance(ambiguity)
    probability = morph_probability(weight)
    label = torch.where(dice.chance(probability), second, first)
    habit = torch.where(dice.chance(probability), second, first)
    setting = draw_setting(dice, kinds[habit], context)
    posterior = torch.zeros(num_samples, len(kinds), dtype=torch.float32)
    posterior.scatter_(1, first.unsqueeze(1), (1.0 - probability).unsqueeze(1))
    posterior.scatter_add_(1, second.unsqueeze(1), probability.unsqueeze(1))
    drawn = _draw_figure(dice, kinds[first], kinds[second], weight, setting)
    figures = (drawn,) if figure else ()
    return Scene(*setting[:2], figures, draw_light(dice)), Truth(label, posterior)


class Setting(NamedTuple):
    """All behind the figures, and the hue and brightness that figures stand out from."""

    background: Background
    distractors: Distractors
    hue: Tensor
    value: Tensor


def draw_setting(dice: Dice, habit: Tensor, context: float) -> Setting:
    stranger = dice.another(habit, len(CLASSES))
    texture = torch.where(dice.chance(context), habit, stranger)
    hue, value = dice.uniform(), dice.uniform(0.25, 0.6)
    background = _draw_background(dice, texture, hue, value)
    return Setting(background, _draw_distractors(dice), hue, value)


def morph_probability(weight: Tensor) -> Tensor:
    """Probability 3w^2 - 2w^3 that a morph of weight w bears its second class as label."""
    return weight * weight * (3.0 - 2.0 * weight)


def _draw_background(dice: Dice, texture: Tensor, hue: Tensor, value: Tensor) -> Background:
    half_contrast = 0.5 * dice.uniform(*_TEXTURE_CONTRAST)
    saturation = dice.uniform(0.05, 0.35)
    neighbour = hue + dice.uniform(-0.15, 0.15)
    cosine, sine = dice.direction()
    x, y = dice.uniform(-0.3, 0.3), dice.uniform(-0.3, 0.3)
    frequency, tone = dice.uniform(*_TEXTURE_FREQUENCY), dice.uniform()
    low = hsv_to_rgb(hue, saturation, value - half_contrast)
    high = hsv_to_rgb(neighbour, saturation, value + half_contrast)
    return Background(texture, x, y, cosine, sine, frequency, tone, low, high)


def _draw_distractors(dice: Dice) -> Distractors:
    """Lines and blobs anywhere in the image, of any colour; some of the places stay empty."""
    count = _DISTRACTORS
    cosine, sine = dice.direction(count=count)
    present = dice.uniform(count=count) < _DISTRACTOR_SHARE
    radius = torch.where(present, dice.uniform(0.015, 0.06, count=count), -1.0)
    hue, saturation = dice.uniform(count=count), dice.uniform(0.2, 0.9, count=count)
    x, y = dice.uniform(-0.5, 0.5, count=count), dice.uniform(-0.5, 0.5, count=count)
    half_length = dice.uniform(-0.1, 0.25, count=count).clamp_min(0.0)
    colour = hsv_to_rgb(hue, saturation, dice.uniform(0.2, 1.0, count=count))
    return Distractors(x, y, cosine, sine, half_length, radius, colour)


def draw_light(dice: Dice) -> Light:
    return Light(dice.uniform(-_LIGHT, _LIGHT), dice.uniform(-_LIGHT, _LIGHT))


def draw_figure_colour(dice: Dice, setting: Setting) -> Tensor:
    """A vivid colour, brighter than the background and of another hue."""
    value = (setting.value + dice.uniform(*_FIGURE_LEAD)).clamp_max(1.0)
    return hsv_to_rgb(setting.hue + dice.uniform(0.15, 0.85), dice.uniform(0.4, 0.9), value)


def _draw_figure(
    dice: Dice, first: Tensor, second: Tensor, weight: Tensor, setting: Setting
) -> Figure:
    scale = dice.uniform(AREA[0] ** 0.5, AREA[1] ** 0.5)
    limit = (0.5 - OVERHANG * scale).clamp_min(0.0)
    cosine, sine = dice.direction(ROTATION)
    x, y = dice.uniform(-1.0, 1.0) * limit, dice.uniform(-1.0, 1.0) * limit
    stretch, colour = dice.uniform(*STRETCH), draw_figure_colour(dice, setting)
    return Figure(first, second, weight, x, y, cosine, sine, scale, stretch, colour)


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours (..., 3) in [0, 1]; the hue counts turns and wraps."""
    sector = torch.stack([hue * 6.0 + offset for offset in (5.0, 3.0, 1.0)], dim=-1)
    sector = sector - (sector / 6.0).floor() * 6.0
    ramp = torch.minimum(sector, 4.0 - sector).clamp(0.0, 1.0)
    return value.unsqueeze(-1) * (1.0 - saturation.unsqueeze(-1) * ramp)


Pattern = Callable[[Tensor, Tensor, Tensor], Tensor]


def _triangle(x: Tensor) -> Tensor:
    return ((x - x.floor()) * 2.0 - 1.0).abs_()


def _sharpen(wave: Tensor, slope: float, middle: float = 0.5) -> Tensor:
    return ((wave - middle) * slope + 0.5).clamp_(0.0, 1.0)


def _smooth(wave: Tensor) -> Tensor:
    """3w^2 - 2w^3: rounds the corners of a triangle wave into something like a cosine."""
    return wave * wave * (3.0 - 2.0 * wave)


def fade(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _smooth(_triangle(0.12 * x + tone))


def clouds(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    first = _smooth(_triangle(0.31 * x + 0.17 * y + tone))
    second = _smooth(_triangle(0.43 * y - 0.23 * x + 3.0 * tone))
    third = _smooth(_triangle(0.37 * x + 0.61 * y + first))
    return (first + second + third) * (1.0 / 3.0)


def mosaic(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    """Cells with a brightness each, scattered by the fractional part of a product."""
    mixed = (2.0 * x).floor() * 0.7548777 + (2.0 * y).floor() * 0.5698403 + tone
    mixed = (mixed - mixed.floor()) * 47.3
    mixed = mixed * (mixed + 13.7)
    return mixed - mixed.floor()


def stripes(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(x), 2.5)


def zigzag(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(x + 0.7 * _triangle(0.5 * y)), 2.5)


def ripples(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(_triangle(length(x, y)), 2.5)


def dots(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    across, along = _triangle(x), _triangle(y)
    return _sharpen((across * across + along * along) * 0.5, -4.0, 0.25)


def checks(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen((_triangle(0.5 * x) - 0.5) * (_triangle(0.5 * y) - 0.5), 30.0, 0.0)


def grid(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    return _sharpen(torch.maximum(_triangle(x), _triangle(y)), 4.0, 0.72)


def bricks(x: Tensor, y: Tensor, tone: Tensor) -> Tensor:
    row = y.floor()
    shifted = 0.5 * x + 0.5 * (row - 2.0 * (0.5 * row).floor())
    joint = torch.maximum(_triangle(shifted) * 2.0 - 1.0, _triangle(y))
    return _sharpen(joint, 4.0, 0.72)


TEXTURES: tuple[Pattern, ...] = (
    stripes,
    mosaic,
    bricks,
    ripples,
    fade,
    dots,
    clouds,
    zigzag,
    checks,
    grid,
)

# The habitual context of each class, in the order of the classes.
CONTEXTS: tuple[str, ...] = tuple(texture.__name__ for texture in TEXTURES)
_PIXELS_PER_CHUNK = 2**17  # a few layers of this size fit the second-level cache


def render_bytes(
    scene: Scene, count: int, size: int, noise: float, generator: torch.Generator
) -> Iterator[tuple[slice, Tensor, list[Tensor]]]:
    """Render `count` images by chunks: their rows, their uint8 pixels, the mask of each figure."""
    step = max(1, _PIXELS_PER_CHUNK // size**2)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        image, masks = render(take(scene, rows), size)
        yield rows, to_bytes(image, noise, generator), masks


def render(scene: Scene, size: int) -> tuple[Tensor, list[Tensor]]:
    """Render images (N, 3, H, W) in about [0, 1] without noise, and the mask of each figure.

    Edges are anti-aliased: a pixel at signed distance d (in pixels) is covered by
    clip(1/2 - d, 0, 1). A mask (N, H, W) holds the pixels whose centre is inside, whether or not a
    later figure hides them.
    """
    image = _background_image(scene.background, size)
    _paint_distractors(image, scene.distractors, size)
    masks = []
    for figure in scene.figures:
        distance = _figure_distance(figure, size)
        masks.append(_inside(distance))
        _paint(image, distance, figure.colour)
    across = scene.light.x.unsqueeze(1) * _centres(size) + 1.0
    up = scene.light.y.unsqueeze(1) * -_centres(size)
    image *= (across.unsqueeze(1) + up.unsqueeze(2)).unsqueeze(1)
    return image, masks


def to_bytes(image: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Add sensor noise of standard deviation `noise` and round to uint8; overwrites `image`."""
    if noise:
        image += sensor_noise(image.shape, generator).mul_(noise)
    return image.clamp_(0.0, 1.0).mul_(255.0).round_().to(torch.uint8)


def sensor_noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Nearly normal numbers of mean 0 and variance 1, within 3: the sum of a number's three bytes.

    Unlike `torch.randn`, the n-th number does not depend on how many are drawn at once.
    """
    rest = torch.rand(shape, generator=generator, dtype=torch.float32).mul_(256.0)
    total = rest.floor()
    rest = rest.sub_(total).mul_(256.0)
    middle = rest.floor()
    total += middle
    total += rest.sub_(middle).mul_(256.0)
    return total.sub_(382.5).mul_(1.0 / math.sqrt(3 * (256**2 - 1) / 12))


def _centres(size: int) -> Tensor:
    return (torch.arange(size, dtype=torch.float32) + 0.5) / size - 0.5


def _spread(values: Tensor) -> Tensor:
    return values[..., None, None]


def _local(
    part: Background | Distractors | Figure, size: int, x_unit: Tensor, y_unit: Tensor
) -> tuple[Tensor, Tensor]:
    """Pixel centres (N, H, W) in the frame of `part`, its axes multiplied by x_unit and y_unit.

    Rotating a grid is a sum of a row and a column: one pass over the pixels for each coordinate.
    """
    across = _centres(size) - part.x.unsqueeze(1)  # (N, W)
    up = -_centres(size) - part.y.unsqueeze(1)  # (N, H)
    cosine, sine = part.cosine.unsqueeze(1), part.sine.unsqueeze(1)
    x_unit, y_unit = x_unit.unsqueeze(1), y_unit.unsqueeze(1)
    x = (across * (cosine * x_unit)).unsqueeze(1) + (up * (sine * x_unit)).unsqueeze(2)
    y = (up * (cosine * y_unit)).unsqueeze(2) - (across * (sine * y_unit)).unsqueeze(1)
    return x, y


def _by_kind(kinds: Tensor, functions: Sequence[Callable[..., Tensor]], *values: Tensor) -> Tensor:
    """Compute all rows of one kind together, by its function; the result is in order again."""
    out = torch.empty_like(values[0])
    for kind, function in enumerate(functions):
        rows = (kinds == kind).nonzero().squeeze(1)
        if len(rows):
            out[rows] = function(*(each[rows] for each in values))
    return out


def _background_image(background: Background, size: int) -> Tensor:
    x, y = _local(background, size, background.frequency, background.frequency)
    pattern = _by_kind(background.texture, TEXTURES, x, y, _spread(background.tone))
    low, high = _spread(background.low), _spread(background.high)
    return pattern.unsqueeze(1) * (high - low) + low


def _paint_distractors(image: Tensor, distractors: Distractors, size: int) -> None:
    for k in range(distractors.x.shape[1]):
        rows = (distractors.radius[:, k] > 0).nonzero().squeeze(1)
        present = take(distractors, (rows, k))
        unit = torch.ones_like(present.x)
        x, y = _local(present, size, unit, unit)
        beyond = (x.abs_() - _spread(present.half_length)).clamp_min_(0.0)
        distance = length(beyond, y) - _spread(present.radius)
        behind = image[rows]
        _paint(behind, distance * size, present.colour)
        image[rows] = behind


def _figure_distance(figure: Figure, size: int) -> Tensor:
    """Signed distance (N, H, W) in pixels; a morph's is (1 - w) * first + w * second."""
    x, y = _local(
        figure, size, 1.0 / (figure.scale * figure.stretch), figure.stretch / figure.scale
    )
    distance = _by_kind(figure.first, _DISTANCES, x, y)
    morphs = (figure.weight > 0).nonzero().squeeze(1)
    if len(morphs):
        other = _by_kind(figure.second[morphs], _DISTANCES, x[morphs], y[morphs])
        weight = _spread(figure.weight[morphs])
        distance[morphs] = distance[morphs] * (1.0 - weight) + other * weight
    return distance * _spread(figure.scale * size)


def _inside(distance: Tensor) -> Tensor:
    """Pixels with their centre inside, or the innermost pixel where a figure slips between them."""
    innermost = distance.amin(dim=(1, 2), keepdim=True)
    return distance <= innermost.clamp_min(0.0)


def _paint(image: Tensor, distance: Tensor, colour: Tensor) -> None:
    """Paint by the share of each pixel inside the edge; overwrites `distance`."""
    coverage = distance.neg_().add_(0.5).clamp_(0.0, 1.0)
    image += (_spread(colour) - image).mul_(coverage.unsqueeze(1))
