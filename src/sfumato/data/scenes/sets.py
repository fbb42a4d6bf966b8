"""Labelled sets of scenes: for classification, and for detection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.detection import DetectionDataset, DetectionSplits, Objects
from sfumato.data.scenes.render import (
    CLASSES,
    ROTATION,
    STRETCH,
    Dice,
    Figure,
    Scene,
    derive_seed,
    draw_figure_colour,
    draw_light,
    draw_scenes,
    draw_setting,
    generator_for,
    render_bytes,
)


def generate(
    num_samples: int,
    *,
    seed: int = 0,
    size: int = 32,
    context: float = 0.9,
    ambiguity: float = 0.1,
    noise: float = 0.03,
    classes: Sequence[str] | None = None,
    figure: Literal[False] | None = None,
) -> ArrayDataset:
    """Render scenes of ten classes with labels, boxes, masks, objectness and true posterior.

    The bytes depend on the arguments alone, not on threads or processor; sample i is the same
    whatever `num_samples` is.

    A share `ambiguity` of the images are morphs, whose signed distance is (1 - w) d_a + w d_b for
    two classes a, b and w uniform in [0.25, 0.75]; their label is b with probability 3w^2 - 2w^3.
    `posterior` holds these probabilities, and is one-hot for all other images, also where a figure
    is small, noisy or cut by the border: it is what the parameters of an image say.

    Args:
        num_samples: how many images, at least 1.
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        context: probability that the background is the class's habitual one, not another.
        ambiguity: probability that an image is a morph.
        noise: standard deviation of the sensor noise, where 1 is the full range of the image.
        classes: silhouettes that occur, two or more; None for all ten. Backgrounds keep their ten
            textures.
        figure: False leaves the figure out: textures without object. None draws it.

    Shape:
        images (N, 3, size, size), boxes (N, 1, 4), masks (N, size, size), posterior (N, 10).
        Boxes, masks and objectness (the mean of the mask) are of the visible part of the figure.
        Without figure there are none, and no posterior; labels are the backgrounds' habits.

    Example:
        >>> from sfumato.data import scenes
        >>> samples = scenes.generate(20, seed=1)
        >>> samples.images.shape, samples.classes[samples.labels[0]]
        (torch.Size([20, 3, 32, 32]), 'house')
    """
    check_integer("num_samples", num_samples, low=1)
    check_scene_arguments(seed=seed, size=size, context=context, noise=noise)
    check_number("ambiguity", ambiguity, low=0.0, high=1.0)
    names = _check_classes(classes)
    has_figure = figure is None
    scene, truth = draw_scenes(
        num_samples,
        seed,
        context=context,
        ambiguity=ambiguity,
        silhouettes=[CLASSES.index(name) for name in names],
        figure=has_figure,
    )
    images = torch.empty(num_samples, 3, size, size, dtype=torch.uint8)
    masks = torch.empty(num_samples, size, size, dtype=torch.bool)
    generator = generator_for(seed, "noise")
    for rows, pixels, found in render_bytes(scene, num_samples, size, noise, generator):
        images[rows] = pixels
        for mask in found:
            masks[rows] = mask
    samples = ArrayDataset(images, truth.label, names)
    if not has_figure:
        return samples
    return replace(
        samples,
        boxes=bounding_boxes(masks).unsqueeze(1),
        masks=masks,
        objectness=masks.sum(dim=(1, 2)).float() / size**2,
        posterior=truth.posterior,
    )


def _check_classes(classes: Sequence[str] | None) -> tuple[str, ...]:
    if classes is None:
        return CLASSES
    names = (classes,) if isinstance(classes, str) else tuple(classes)
    if len(names) < 2 or len(set(names)) < len(names) or not set(names) <= set(CLASSES):
        raise ValueError(
            f"classes must be two or more different silhouettes of {', '.join(CLASSES)}, got "
            f"{list(names)}"
        )
    return names


def load(
    *,
    train: int = 2000,
    validation: int = 500,
    test: int = 2000,
    seed: int = 0,
    size: int = 32,
    context: float = 0.9,
    ambiguity: float = 0.1,
    noise: float = 0.03,
    classes: list[str] | None = None,
    figure: Literal[False] | None = None,
) -> DataSplits:
    """Render train, validation and test sets from independent random streams of one seed.

    The size of one set does not change another. See `generate` for the other arguments.

    Args:
        train: samples in the training set.
        validation: samples in the validation set.
        test: samples in the test set.
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        context: probability that the background is the class's habitual one.
        ambiguity: probability that an image is a morph of two classes.
        noise: standard deviation of the sensor noise; 1 is the full range of the image.
        classes: silhouettes that occur; None for all ten.
        figure: False for textures without object; None draws the figure.

    Example:
        >>> from sfumato.data import scenes
        >>> splits = scenes.load(train=30, validation=10, test=20)
        >>> len(splits.train), len(splits.validation), len(splits.test)
        (30, 10, 20)
    """
    render = partial(
        generate,
        size=size,
        context=context,
        ambiguity=ambiguity,
        noise=noise,
        classes=classes,
        figure=figure,
    )
    counts = {"train": train, "validation": validation, "test": test}
    return DataSplits(*(render(n, seed=own) for _, n, own in split_seeds(counts, seed)))


def split_seeds(
    counts: Mapping[str, int], seed: int, stream: str = ""
) -> Iterator[tuple[str, int, int]]:
    """Name, number of samples and seed of each split; they draw from independent streams."""
    check_integer("seed", seed, low=0)
    for name, count in counts.items():
        check_integer(name, count, low=1)
        yield name, count, derive_seed(seed, f"{name}{stream}")


def bounding_boxes(masks: Tensor) -> Tensor:
    """The tightest boxes (N, 4) as x1, y1, x2, y2 around the true pixels of (N, H, W) masks."""
    first, last = [], []
    for axis in (1, 2):
        occupied = masks.any(dim=axis).to(torch.uint8)
        first.append(occupied.argmax(dim=1))
        last.append(occupied.shape[1] - occupied.flip(1).argmax(dim=1))
    return torch.stack([*first, *last], dim=1).float()


def check_scene_arguments(*, seed: int, size: int, context: float, noise: float) -> None:
    check_integer("seed", seed, low=0)
    check_integer("size", size, low=16, high=512)
    check_number("context", context, low=0.0, high=1.0)
    check_number("noise", noise, low=0.0)


# COCO's small (below 32^2), medium and large (from 96^2) count pixels of a canvas of this side.
MEASURED_SIZE = 256
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
        objects: most figures in an image, 1 to 16; every number from 1 is equally likely.
        context: probability that the background is the first figure's habitual one.
        num_samples, seed, size, noise: as in `generate`.

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
    classes = torch.stack([figure.first for figure in scene.figures], 1)
    for rows, pixels, masks in render_bytes(scene, num_samples, size, noise, generator):
        images[rows] = pixels
        found += _annotate(torch.stack(masks, 1), classes[rows], count[rows], size)
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
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        objects: largest number of objects in an image.
        context: probability that the background is the habitual one of an object's class.
        noise: standard deviation of the sensor noise; 1 is the full range of the image.
    """
    render = partial(generate_objects, size=size, objects=objects, context=context, noise=noise)
    counts = {"train": train, "validation": validation, "test": test}
    splits = split_seeds(counts, seed, " objects")
    return DetectionSplits(*(render(count, seed=own) for _, count, own in splits))


def _draw(num_samples: int, seed: int, objects: int, context: float) -> tuple[Scene, Tensor]:
    dice = Dice(num_samples, derive_seed(seed, "objects"))
    count = (dice.uniform() * objects).long().clamp_max(objects - 1) + 1
    classes = [dice.balanced_classes(len(CLASSES))]
    for _ in range(objects - 1):
        classes.append((dice.uniform() * len(CLASSES)).long().clamp_max(len(CLASSES) - 1))
    setting = draw_setting(dice, classes[0], context)
    grid = math.ceil(math.sqrt(objects))
    cells = dice.uniform(count=grid**2).argsort(dim=1, stable=True)
    figures = []
    for k, (kind, cell) in enumerate(zip(classes, cells.unbind(1), strict=False)):
        colour = draw_figure_colour(dice, setting)
        scale = dice.uniform(*_SCALE) / grid
        cosine, sine = dice.direction(ROTATION)
        x, y = (
            (number.float() + 0.5) / grid - 0.5 + dice.uniform(-0.2, 0.2) / grid
            for number in (cell % grid, cell // grid)
        )
        x, stretch = torch.where(count <= k, _ELSEWHERE, x), dice.uniform(*STRETCH)
        whole = torch.zeros_like(scale)
        figures.append(Figure(kind, kind, whole, x, y, cosine, sine, scale, stretch, colour))
    return Scene(*setting[:2], tuple(figures), draw_light(dice)), count


def _annotate(masks: Tensor, classes: Tensor, count: Tensor, size: int) -> list[Objects]:
    """List what can be seen of each figure (N, K, H, W): later ones hide earlier ones."""
    present = torch.arange(masks.shape[1]) < count[:, None]
    masks = masks & present[:, :, None, None]
    hidden = torch.zeros_like(masks[:, 0])
    # From front to back.
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
