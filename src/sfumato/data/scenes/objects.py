"""Scenes of several figures, each with its box: the built-in world for detection."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.data.detection import DetectionDataset, DetectionSplits, Objects
from sfumato.data.scenes.dice import Dice, derive_seed, generator_for
from sfumato.data.scenes.draw import (
    ROTATION,
    STRETCH,
    draw_background,
    draw_distractors,
    draw_figure_colour,
    draw_light,
)
from sfumato.data.scenes.render import images_per_chunk, render, to_bytes
from sfumato.data.scenes.scene import Figure, Scene, take
from sfumato.data.scenes.sets import bounding_boxes, check_scene_arguments
from sfumato.data.scenes.silhouettes import CLASSES

MEASURED_SIZE = 256
"""COCO's small (below 32^2), medium and large (from 96^2) count pixels of a canvas of this side."""

_SCALE = (0.24, 0.84)  # square root of a figure's area, in cells of the grid of figures
_FEWEST_PIXELS = 4
_ELSEWHERE = 10.0  # out of sight, in image sides


def generate_objects(
    num_samples: int,
    *,
    seed: int = 0,
    size: int = 64,
    objects: int = 4,
    context: float = 0.9,
    noise: float = 0.03,
) -> DetectionDataset:
    """Render scenes of one to `objects` figures, with the box and class of each.

    Figures stand on the cells of a grid, shifted at random, so that they touch and overlap a
    little; boxes are of the visible part. The background is a habit of the first figure's class.

    Args:
        num_samples: how many images, at least 1.
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        objects: most figures in an image, 1 to 16; every number from 1 is equally likely.
        context: probability that the background is the first figure's habitual one.
        noise: standard deviation of the sensor noise.

    Example:
        >>> from sfumato.data import scenes
        >>> samples = scenes.generate_objects(6, seed=1)
        >>> samples.images.shape, [len(each.labels) for each in samples.objects]
        (torch.Size([6, 3, 64, 64]), [2, 3, 3, 3, 4, 4])
    """
    check_integer("num_samples", num_samples, low=1)
    check_integer("objects", objects, low=1, high=16)
    check_scene_arguments(seed=seed, size=size, context=context, noise=noise)
    scene, count = _draw(num_samples, seed, objects, context)
    images = torch.empty(num_samples, 3, size, size, dtype=torch.uint8)
    found: list[Objects] = []
    generator = generator_for(seed, "noise")
    step = images_per_chunk(size)
    for start in range(0, num_samples, step):
        rows = slice(start, start + step)
        part = take(scene, rows)
        image, masks = render(part, size)
        images[rows] = to_bytes(image, noise, generator)
        classes = torch.stack([figure.first for figure in part.figures], 1)
        found += _annotate(torch.stack(masks, 1), classes, count[rows], size)
    return DetectionDataset(images, found, CLASSES, [MEASURED_SIZE / size] * num_samples)


def load_objects(
    *,
    train: int = 500,
    validation: int = 100,
    test: int = 300,
    seed: int = 0,
    size: int = 64,
    objects: int = 4,
    context: float = 0.9,
    noise: float = 0.03,
) -> DetectionSplits:
    """Train, validation and test sets of `generate_objects`, from independent random streams.

    Args:
        train: images in the training set.
        validation: images in the validation set.
        test: images in the test set.
        seed: as in `generate_objects`; so are the remaining arguments.
    """
    check_integer("seed", seed, low=0)
    made = [
        generate_objects(
            count,
            seed=derive_seed(seed, f"{name} objects"),
            size=size,
            objects=objects,
            context=context,
            noise=noise,
        )
        for name, count in (("train", train), ("validation", validation), ("test", test))
    ]
    return DetectionSplits(*made)


def _draw(num_samples: int, seed: int, objects: int, context: float) -> tuple[Scene, Tensor]:
    """The scenes, and how many of their figures are in sight."""
    dice = Dice(num_samples, derive_seed(seed, "objects"))
    count = (dice.uniform() * objects).long().clamp_max(objects - 1) + 1
    classes = [dice.balanced_classes(len(CLASSES))]
    for _ in range(objects - 1):
        classes.append((dice.uniform() * len(CLASSES)).long().clamp_max(len(CLASSES) - 1))
    stranger = dice.another(classes[0], len(CLASSES))
    texture = torch.where(dice.chance(context), classes[0], stranger)
    hue, value = dice.uniform(), dice.uniform(0.25, 0.6)
    background = draw_background(dice, texture, hue, value)
    distractors = draw_distractors(dice)
    grid = math.ceil(math.sqrt(objects))
    cells = dice.uniform(count=grid**2).argsort(dim=1, stable=True)
    figures = []
    for k in range(objects):
        colour = draw_figure_colour(dice, hue, value)
        figure = _figure(dice, classes[k], cells[:, k], grid, colour)
        absent = count <= k
        figures.append(figure._replace(x=torch.where(absent, _ELSEWHERE, figure.x)))
    return Scene(background, distractors, tuple(figures), draw_light(dice)), count


def _figure(dice: Dice, classes: Tensor, cells: Tensor, grid: int, colour: Tensor) -> Figure:
    scale = dice.uniform(*_SCALE) / grid
    cosine, sine = dice.direction(ROTATION)
    middle = lambda number: (number.float() + 0.5) / grid - 0.5  # noqa: E731
    return Figure(
        first=classes,
        second=classes,
        weight=torch.zeros_like(scale),
        x=middle(cells % grid) + dice.uniform(-0.2, 0.2) / grid,
        y=middle(cells // grid) + dice.uniform(-0.2, 0.2) / grid,
        cosine=cosine,
        sine=sine,
        scale=scale,
        stretch=dice.uniform(*STRETCH),
        colour=colour,
    )


def _annotate(masks: Tensor, classes: Tensor, count: Tensor, size: int) -> list[Objects]:
    """What can be seen of each figure (N, K, H, W): later ones hide earlier ones."""
    present = torch.arange(masks.shape[1]) < count[:, None]
    masks = masks & present[:, :, None, None]
    hidden = torch.zeros_like(masks[:, 0])
    for k in reversed(range(masks.shape[1])):
        masks[:, k], hidden = masks[:, k] & ~hidden, masks[:, k] | hidden
    pixels = masks.flatten(2).sum(2)  # (N, K)
    found = []
    for row in range(len(masks)):
        seen = pixels[row] >= _FEWEST_PIXELS
        areas = pixels[row, seen].float() * (MEASURED_SIZE / size) ** 2
        labels = classes[row, seen]
        boxes = bounding_boxes(masks[row, seen])
        found.append(Objects(boxes, labels, areas, torch.zeros_like(labels, dtype=torch.bool)))
    return found
