"""Drawing the parameters of scenes, all of them before the first pixel is rendered."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.data.scenes.dice import Dice
from sfumato.data.scenes.scene import Background, Distractors, Figure, Light, Scene
from sfumato.data.scenes.silhouettes import CLASSES

AREA = (0.03, 0.60)
"""Share of the image that an untruncated figure covers."""
STRETCH = (0.85, 1.18)
ROTATION = 1 / 3
"""The range of angles in turns: figures keep their heads up, within 60 degrees."""
MORPH = (0.25, 0.75)
"""Morphs closer to one class than this would be no riddle."""
OVERHANG = 0.45
"""Centres keep this many scales from the border: less than the figure's reach, so it may be cut."""

_TEXTURE_CONTRAST = (0.04, 0.18)
_TEXTURE_FREQUENCY = (3.5, 6.0)
_FIGURE_LEAD = (0.30, 0.55)
_DISTRACTORS = 4
_DISTRACTOR_SHARE = 0.35
_LIGHT = 0.3


class Truth(NamedTuple):
    """What is known about each sample: its drawn label and the probabilities it was drawn with."""

    label: Tensor
    posterior: Tensor  # (N, 10)


def draw_scenes(
    num_samples: int, seed: int, *, context: float, ambiguity: float
) -> tuple[Scene, Truth]:
    """Draw scenes of one figure each, and their labels.

    A share `ambiguity` are morphs between two classes, of weight w. The label is the second class
    with probability `morph_probability(w)`. The background follows a second, independent draw with
    the same probability: given w it tells nothing about the label, so the posterior stays exact.
    """
    dice = Dice(num_samples, seed)
    first = dice.balanced_classes(len(CLASSES))
    second = dice.another(first, len(CLASSES))
    weight = dice.uniform(*MORPH) * dice.chance(ambiguity)
    probability = morph_probability(weight)
    label = torch.where(dice.chance(probability), second, first)
    habit = torch.where(dice.chance(probability), second, first)
    stranger = dice.another(habit, len(CLASSES))
    texture = torch.where(dice.chance(context), habit, stranger)
    posterior = torch.zeros(num_samples, len(CLASSES), dtype=torch.float32)
    posterior.scatter_(1, first.unsqueeze(1), (1.0 - probability).unsqueeze(1))
    posterior.scatter_add_(1, second.unsqueeze(1), probability.unsqueeze(1))

    hue, value = dice.uniform(), dice.uniform(0.25, 0.6)
    background = draw_background(dice, texture, hue, value)
    distractors = draw_distractors(dice)
    figure = _draw_figure(dice, first, second, weight, hue, value)
    scene = Scene(background, distractors, (figure,), draw_light(dice))
    return scene, Truth(label, posterior)


def morph_probability(weight: Tensor) -> Tensor:
    """Probability 3w^2 - 2w^3 that a morph of weight w bears its second class as label.

    Example:
        >>> morph_probability(torch.tensor([0.0, 0.25, 0.5, 1.0]))
        tensor([0.0000, 0.1562, 0.5000, 1.0000])
    """
    return weight * weight * (3.0 - 2.0 * weight)


def draw_background(dice: Dice, texture: Tensor, hue: Tensor, value: Tensor) -> Background:
    """A muted two-coloured texture of mean brightness `value`."""
    half_contrast = 0.5 * dice.uniform(*_TEXTURE_CONTRAST)
    saturation = dice.uniform(0.05, 0.35)
    neighbour = hue + dice.uniform(-0.15, 0.15)
    cosine, sine = dice.direction()
    return Background(
        texture=texture,
        x=dice.uniform(-0.3, 0.3),
        y=dice.uniform(-0.3, 0.3),
        cosine=cosine,
        sine=sine,
        frequency=dice.uniform(*_TEXTURE_FREQUENCY),
        tone=dice.uniform(),
        low=hsv_to_rgb(hue, saturation, value - half_contrast),
        high=hsv_to_rgb(neighbour, saturation, value + half_contrast),
    )


def draw_distractors(dice: Dice) -> Distractors:
    """Lines and blobs anywhere in the image, of any colour; some of the places stay empty."""
    count = _DISTRACTORS
    cosine, sine = dice.direction(count=count)
    present = dice.uniform(count=count) < _DISTRACTOR_SHARE
    radius = dice.uniform(0.015, 0.06, count=count)
    hue, saturation = dice.uniform(count=count), dice.uniform(0.2, 0.9, count=count)
    return Distractors(
        x=dice.uniform(-0.5, 0.5, count=count),
        y=dice.uniform(-0.5, 0.5, count=count),
        cosine=cosine,
        sine=sine,
        half_length=dice.uniform(-0.1, 0.25, count=count).clamp_min(0.0),
        radius=torch.where(present, radius, -1.0),
        colour=hsv_to_rgb(hue, saturation, dice.uniform(0.2, 1.0, count=count)),
    )


def draw_light(dice: Dice) -> Light:
    return Light(dice.uniform(-_LIGHT, _LIGHT), dice.uniform(-_LIGHT, _LIGHT))


def draw_figure_colour(dice: Dice, hue: Tensor, value: Tensor) -> Tensor:
    """A vivid colour, brighter than the background and of another hue."""
    own_value = (value + dice.uniform(*_FIGURE_LEAD)).clamp_max(1.0)
    return hsv_to_rgb(hue + dice.uniform(0.15, 0.85), dice.uniform(0.4, 0.9), own_value)


def _draw_figure(
    dice: Dice, first: Tensor, second: Tensor, weight: Tensor, hue: Tensor, value: Tensor
) -> Figure:
    scale = dice.uniform(AREA[0] ** 0.5, AREA[1] ** 0.5)
    limit = (0.5 - OVERHANG * scale).clamp_min(0.0)
    cosine, sine = dice.direction(ROTATION)
    return Figure(
        first=first,
        second=second,
        weight=weight,
        x=dice.uniform(-1.0, 1.0) * limit,
        y=dice.uniform(-1.0, 1.0) * limit,
        cosine=cosine,
        sine=sine,
        scale=scale,
        stretch=dice.uniform(*STRETCH),
        colour=draw_figure_colour(dice, hue, value),
    )


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours (..., 3) in [0, 1]; the hue counts turns and wraps.

    Example:
        >>> hsv_to_rgb(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.5))
        tensor([0.5000, 0.0000, 0.0000])
    """
    sector = torch.stack([hue * 6.0 + offset for offset in (5.0, 3.0, 1.0)], dim=-1)
    sector = sector - (sector / 6.0).floor() * 6.0
    ramp = torch.minimum(sector, 4.0 - sector).clamp(0.0, 1.0)
    return value.unsqueeze(-1) * (1.0 - saturation.unsqueeze(-1) * ramp)
