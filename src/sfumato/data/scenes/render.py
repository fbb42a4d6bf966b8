"""From parameters to pixels. Every image depends on its own row alone, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data.scenes.length import length
from sfumato.data.scenes.scene import Background, Distractors, Figure, Light, Scene, take
from sfumato.data.scenes.silhouettes import CLASSES, signed_distance
from sfumato.data.scenes.textures import TEXTURES

_PIXELS_PER_CHUNK = 2**17  # a few layers of this size fit the second-level cache


def images_per_chunk(size: int) -> int:
    """How many images of this size to render at once."""
    return max(1, _PIXELS_PER_CHUNK // size**2)


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
        _paint(image, _coverage(distance), figure.colour)
    image *= _brightness(scene.light, size)
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
    """Pixel centres along a side of the image, in (-0.5, 0.5)."""
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


def _by_kind(
    kinds: Tensor, num_kinds: int, compute: Callable[[int, Tensor], Tensor], like: Tensor
) -> Tensor:
    """Compute all rows of one kind together; the result has the order of `kinds`."""
    out = torch.empty_like(like)
    for kind in range(num_kinds):
        rows = (kinds == kind).nonzero().squeeze(1)
        if len(rows):
            out[rows] = compute(kind, rows)
    return out


def _background_image(background: Background, size: int) -> Tensor:
    x, y = _local(background, size, background.frequency, background.frequency)
    tone = _spread(background.tone)
    pattern = _by_kind(
        background.texture,
        len(TEXTURES),
        lambda kind, rows: TEXTURES[kind](x[rows], y[rows], tone[rows]),
        like=x,
    )
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
        _paint(behind, _coverage(distance * size), present.colour)
        image[rows] = behind


def _figure_distance(figure: Figure, size: int) -> Tensor:
    """Signed distance (N, H, W) in pixels; a morph's is (1 - w) * first + w * second."""
    x, y = _local(
        figure, size, 1.0 / (figure.scale * figure.stretch), figure.stretch / figure.scale
    )
    distance = _silhouettes(figure.first, x, y)
    morphs = (figure.weight > 0).nonzero().squeeze(1)
    if len(morphs):
        other = _silhouettes(figure.second[morphs], x[morphs], y[morphs])
        weight = _spread(figure.weight[morphs])
        distance[morphs] = distance[morphs] * (1.0 - weight) + other * weight
    return distance * _spread(figure.scale * size)


def _silhouettes(classes: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _by_kind(
        classes,
        len(CLASSES),
        lambda kind, rows: signed_distance(kind, x[rows], y[rows]),
        like=x,
    )


def _inside(distance: Tensor) -> Tensor:
    """Pixels with their centre inside, or the innermost pixel where a figure slips between them."""
    innermost = distance.amin(dim=(1, 2), keepdim=True)
    return distance <= innermost.clamp_min(0.0)


def _coverage(distance: Tensor) -> Tensor:
    """Share of each pixel inside the edge; overwrites `distance`."""
    return distance.neg_().add_(0.5).clamp_(0.0, 1.0)


def _paint(image: Tensor, coverage: Tensor, colour: Tensor) -> None:
    image += (_spread(colour) - image).mul_(coverage.unsqueeze(1))


def _brightness(light: Light, size: int) -> Tensor:
    across = light.x.unsqueeze(1) * _centres(size) + 1.0
    up = light.y.unsqueeze(1) * -_centres(size)
    return (across.unsqueeze(1) + up.unsqueeze(2)).unsqueeze(1)
