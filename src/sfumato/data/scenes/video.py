"""Video of moving figures with a label for every pixel, and sets of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.scenes.render import (
    CLASSES,
    ROTATION,
    STRETCH,
    Dice,
    Figure,
    Scene,
    Setting,
    apply,
    cosine_sine,
    derive_seed,
    draw_figure_colour,
    draw_light,
    draw_setting,
    generator_for,
    render_bytes,
    take,
)
from sfumato.data.scenes.sets import check_scene_arguments, split_seeds

# The label of pixels that show no figure: the last one, so that the classes keep their numbers.
BACKGROUND = len(CLASSES)
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

    Frame t is the same whatever `num_frames` is, stream s whatever `streams` is. Later figures hide
    earlier ones. Labels 0 to 9 are the classes of `generate`, 10 is the background.

    Args:
        num_frames: frames in each stream, at least 1.
        streams: how many independent streams.
        figures: how many figures move in each stream, 1 to 10, all of them of different classes.
        speed: 1 moves the figures by at most about 4 % of the image side per frame; 0 is a still.
        context: probability that the background is the habitual one of the first figure.
        noise: standard deviation of the sensor noise, new in every frame.
        seed, size: as in `generate`.

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
    labels = torch.full((*shape, size, size), BACKGROUND)
    times = torch.arange(num_frames, dtype=torch.float64) * speed
    scenes = _draw_streams(streams, times, seed, figures=figures, context=context)
    for number, scene in enumerate(scenes):
        generator = generator_for(seed, f"noise of stream {number}")
        for rows, pixels, masks in render_bytes(scene, num_frames, size, noise, generator):
            frames[number, rows] = pixels
            for figure, mask in zip(scene.figures, masks, strict=True):
                # The class of a figure is the same in all frames.
                labels[number, rows][mask] = figure.first[0]
    return SceneStream(frames, labels, (*CLASSES, "background"))


def _draw_streams(
    streams: int, times: Tensor, seed: int, *, figures: int, context: float
) -> list[Scene]:
    """One scene per stream, with a row for each of the `times`."""
    dice = Dice(streams, derive_seed(seed, "video"))
    order = dice.uniform(count=len(CLASSES)).argsort(dim=1, stable=True)
    setting = draw_setting(dice, order[:, 0], context)
    still = Scene(*setting[:2], figures=(), light=draw_light(dice))
    scene = apply(still, lambda values: _hold(values, times))
    pan_x, pan_y = _sway(dice, times) * _PAN, _sway(dice, times) * _PAN
    background, distractors = scene.background, scene.distractors
    moving = scene._replace(
        background=background._replace(x=background.x + pan_x, y=background.y + pan_y),
        distractors=distractors._replace(
            x=distractors.x + pan_x.unsqueeze(2), y=distractors.y + pan_y.unsqueeze(2)
        ),
        figures=tuple(_draw_figure(dice, order[:, k], times, setting) for k in range(figures)),
    )
    return [take(moving, number) for number in range(streams)]


def _draw_figure(dice: Dice, classes: Tensor, times: Tensor, setting: Setting) -> Figure:
    colour, kind = _hold(draw_figure_colour(dice, setting), times), _hold(classes, times)
    scale = _hold(dice.uniform(_AREA[0] ** 0.5, _AREA[1] ** 0.5), times)
    cosine, sine = cosine_sine(0.5 * ROTATION * _sway(dice, times))
    x, y = _sway(dice, times) * _WANDER, _sway(dice, times) * _WANDER
    swelling = scale * (1.0 + _SWELL * _sway(dice, times))
    stretch = _hold(dice.uniform(*STRETCH), times)
    whole = torch.zeros_like(scale)
    return Figure(kind, kind, whole, x, y, cosine, sine, swelling, stretch, colour)


def _hold(values: Tensor, times: Tensor) -> Tensor:
    return values.unsqueeze(1).expand(-1, len(times), *values.shape[1:])


def _sway(dice: Dice, times: Tensor) -> Tensor:
    """A sine wave (S, T) in [-1, 1] with the period and phase of each stream."""
    period, phase = dice.uniform(*_PERIOD), dice.uniform()
    return cosine_sine(phase.unsqueeze(1) + times / period.unsqueeze(1))[1]


# No pixel of a stream has it; augmentation gives it to what comes from outside the image.
VOID = -100


def load_streams(
    *,
    train: int = 600,
    validation: int = 100,
    test: int = 20,
    train_frames: int = 1,
    test_frames: int = 30,
    seed: int = 0,
    size: int = 64,
    figures: int = 3,
    speed: float = 1.0,
    context: float = 0.9,
    noise: float = 0.03,
) -> DataSplits:
    """Independent streams: short ones to train on, and a few at video rate to be tested on.

    `stream` numbers the streams, so that predictions may be smoothed along each. All pixels are
    labelled; the background is the last class.

    Args:
        train: streams in the training set.
        validation: streams in the validation set.
        test: streams in the test set.
        train_frames: frames of each training and validation stream; neighbours are nearly alike,
            so more streams teach more than longer ones.
        test_frames: frames of each test stream.
        seed: the same seed gives the same bytes; the size of one set does not change another.
        size: as in `stream`; so are the remaining arguments.
        figures: how many figures move in each stream.
        speed: of the movement.
        context: probability that the background is the habitual one of the first figure.
        noise: standard deviation of the sensor noise, new in every frame.

    Example:
        >>> from sfumato.data import scenes
        >>> splits = scenes.load_streams(train=4, validation=2, test=2, test_frames=3, size=16)
        >>> splits.train.images.shape, splits.test.stream.tolist()
        (torch.Size([4, 3, 16, 16]), [0, 0, 0, 1, 1, 1])
    """
    check_integer("train_frames", train_frames, low=1)
    check_integer("test_frames", test_frames, low=1)
    render = partial(stream, size=size, figures=figures, speed=speed, context=context, noise=noise)
    counts = {"train": train, "validation": validation, "test": test}
    made = []
    for name, count, own in split_seeds(counts, seed, " streams"):
        length = test_frames if name == "test" else train_frames
        frames, labels, classes = render(length, streams=count, seed=own)
        samples = ArrayDataset(frames.flatten(0, 1), labels.flatten(0, 1), classes, void=VOID)
        numbers = torch.arange(count).repeat_interleave(length)
        made.append(replace(samples, stream=numbers, background=(BACKGROUND,)))
    return DataSplits(*made)
