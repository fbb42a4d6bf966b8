"""Video of moving figures with a label for every pixel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.scenes.dice import Dice, cosine_sine, derive_seed, generator_for
from sfumato.data.scenes.draw import (
    ROTATION,
    STRETCH,
    draw_background,
    draw_distractors,
    draw_figure_colour,
    draw_light,
)
from sfumato.data.scenes.render import images_per_chunk, render, to_bytes
from sfumato.data.scenes.scene import Figure, Scene, apply, take
from sfumato.data.scenes.sets import check_scene_arguments
from sfumato.data.scenes.silhouettes import CLASSES

BACKGROUND = len(CLASSES)
"""The label of pixels that show no figure: the last one, so that the classes keep their numbers."""

_AREA = (0.04, 0.20)
_PERIOD = (60.0, 160.0)  # frames from one end of a movement back to it, at speed 1
_WANDER = 0.38  # figures stay within this distance of the middle, in image sides
_PAN = 0.15
_SWELL = 0.15


class SceneStream(NamedTuple):
    """Frames (S, T, 3, H, W) uint8, labels (S, T, H, W) int64, and the name of each label."""

    frames: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def stream(
    num_frames: int,
    *,
    streams: int = 1,
    seed: int = 0,
    size: int = 64,
    figures: int = 3,
    speed: float = 1.0,
    context: float = 0.9,
    noise: float = 0.03,
) -> SceneStream:
    """Render video: figures sway, turn and swell before a panning background.

    All movement is sinusoidal, so a stream may be of any length and never jumps. Frame t is the
    same whatever `num_frames` is, stream s whatever `streams` is. Later figures hide earlier ones.

    Args:
        num_frames: frames in each stream, at least 1.
        streams: how many independent streams.
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        figures: how many figures move in each stream, 1 to 10, all of them of different classes.
        speed: 1 moves the figures by at most about 4 % of the image side per frame; 0 is a still.
        context: probability that the background is the habitual one of the first figure.
        noise: standard deviation of the sensor noise, new in every frame.

    Returns:
        `SceneStream(frames, labels, classes)`: labels 0 to 9 are the classes of `generate`, 10 is
        the background.

    Example:
        >>> from sfumato.data import scenes
        >>> frames, labels, classes = scenes.stream(8, streams=2)
        >>> frames.shape, labels.shape, classes[-1]
        (torch.Size([2, 8, 3, 64, 64]), torch.Size([2, 8, 64, 64]), 'background')
    """
    check_integer("num_frames", num_frames, low=1)
    check_integer("streams", streams, low=1)
    check_integer("figures", figures, low=1, high=len(CLASSES))
    check_number("speed", speed, low=0.0)
    check_scene_arguments(seed=seed, size=size, context=context, noise=noise)
    shape = (streams, num_frames)
    frames = torch.empty(*shape, 3, size, size, dtype=torch.uint8)
    labels = torch.empty(*shape, size, size, dtype=torch.int64)
    times = torch.arange(num_frames, dtype=torch.float64) * speed
    scenes = _draw_streams(streams, times, seed, figures=figures, context=context)
    step = images_per_chunk(size)
    for number, scene in enumerate(scenes):
        generator = generator_for(seed, f"noise of stream {number}")
        for start in range(0, num_frames, step):
            rows = slice(start, start + step)
            image, masks = render(take(scene, rows), size)
            frames[number, rows] = to_bytes(image, noise, generator)
            labels[number, rows] = _pixel_labels(scene, masks)
    return SceneStream(frames, labels, (*CLASSES, "background"))


def _pixel_labels(scene: Scene, masks: list[Tensor]) -> Tensor:
    labels = torch.full(masks[0].shape, BACKGROUND)
    for figure, mask in zip(scene.figures, masks, strict=True):
        labels[mask] = figure.first[0]  # the class of a figure is the same in all frames
    return labels


def _draw_streams(
    streams: int, times: Tensor, seed: int, *, figures: int, context: float
) -> list[Scene]:
    """One scene per stream, with a row for each of the `times`."""
    dice = Dice(streams, derive_seed(seed, "video"))
    order = dice.uniform(count=len(CLASSES)).argsort(dim=1, stable=True)
    habit = order[:, 0]
    stranger = dice.another(habit, len(CLASSES))
    texture = torch.where(dice.chance(context), habit, stranger)
    hue, value = dice.uniform(), dice.uniform(0.25, 0.6)
    still = Scene(
        background=draw_background(dice, texture, hue, value),
        distractors=draw_distractors(dice),
        figures=(),
        light=draw_light(dice),
    )
    scene = apply(still, lambda values: _hold(values, times))
    pan_x, pan_y = _sway(dice, times) * _PAN, _sway(dice, times) * _PAN
    background, distractors = scene.background, scene.distractors
    moving = scene._replace(
        background=background._replace(x=background.x + pan_x, y=background.y + pan_y),
        distractors=distractors._replace(
            x=distractors.x + pan_x.unsqueeze(2), y=distractors.y + pan_y.unsqueeze(2)
        ),
        figures=tuple(
            _draw_figure(dice, order[:, k], times, colour=draw_figure_colour(dice, hue, value))
            for k in range(figures)
        ),
    )
    return [take(moving, number) for number in range(streams)]


def _draw_figure(dice: Dice, classes: Tensor, times: Tensor, *, colour: Tensor) -> Figure:
    """A figure (S, T) that sways, rocks and swells."""
    scale = _hold(dice.uniform(_AREA[0] ** 0.5, _AREA[1] ** 0.5), times)
    cosine, sine = cosine_sine(0.5 * ROTATION * _sway(dice, times))
    classes = _hold(classes, times)
    return Figure(
        first=classes,
        second=classes,
        weight=torch.zeros_like(scale),
        x=_sway(dice, times) * _WANDER,
        y=_sway(dice, times) * _WANDER,
        cosine=cosine,
        sine=sine,
        scale=scale * (1.0 + _SWELL * _sway(dice, times)),
        stretch=_hold(dice.uniform(*STRETCH), times),
        colour=_hold(colour, times),
    )


def _hold(values: Tensor, times: Tensor) -> Tensor:
    """Repeat (S, ...) for every frame: (S, T, ...)."""
    return values.unsqueeze(1).expand(-1, len(times), *values.shape[1:])


def _sway(dice: Dice, times: Tensor) -> Tensor:
    """A sine wave (S, T) in [-1, 1] with the period and phase of each stream."""
    period, phase = dice.uniform(*_PERIOD), dice.uniform()
    return cosine_sine(phase.unsqueeze(1) + times / period.unsqueeze(1))[1]
