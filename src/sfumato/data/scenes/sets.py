"""Labelled sets of scenes, in the one form in which samples travel."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.scenes.dice import derive_seed, generator_for
from sfumato.data.scenes.draw import draw_scenes
from sfumato.data.scenes.render import images_per_chunk, render, to_bytes
from sfumato.data.scenes.scene import take
from sfumato.data.scenes.silhouettes import CLASSES


def generate(
    num_samples: int,
    *,
    seed: int = 0,
    size: int = 32,
    context: float = 0.9,
    ambiguity: float = 0.1,
    noise: float = 0.03,
) -> ArrayDataset:
    """Render scenes of ten classes with labels, boxes, masks, objectness and true posterior.

    The bytes depend on the arguments alone: not on threads, not on the vector units of the
    machine, and sample i is the same whatever `num_samples` is.

    A share `ambiguity` of the images are morphs, whose signed distance is (1 - w) d_a + w d_b for
    two classes a, b and w uniform in [0.25, 0.75]; their label is b with probability 3w^2 - 2w^3.
    `posterior` holds these probabilities, and is one-hot for all other images. It is the
    distribution of the label given the parameters that the image was rendered from: what a perfect
    eye would know. A figure that is small, noisy or cut by the border keeps its one-hot row.

    Args:
        num_samples: how many images, at least 1.
        seed: the same seed gives the same bytes.
        size: image side in pixels, 16 to 512.
        context: probability that the background is the class's habitual one; otherwise it is one
            of the other nine, equally likely.
        ambiguity: probability that an image is a morph.
        noise: standard deviation of the sensor noise, where 1 is the full range of the image.

    Shape:
        images (N, 3, size, size), boxes (N, 1, 4), masks (N, size, size), posterior (N, 10).
        Boxes, masks and objectness (the mean of the mask) are of the visible part of the figure.

    Example:
        >>> from sfumato.data import scenes
        >>> samples = scenes.generate(20, seed=1)
        >>> samples.images.shape, samples.classes[samples.labels[0]]
        (torch.Size([20, 3, 32, 32]), 'house')
    """
    check_integer("num_samples", num_samples, low=1)
    check_scene_arguments(seed=seed, size=size, context=context, noise=noise)
    check_number("ambiguity", ambiguity, low=0.0, high=1.0)
    scene, truth = draw_scenes(num_samples, seed, context=context, ambiguity=ambiguity)
    images = torch.empty(num_samples, 3, size, size, dtype=torch.uint8)
    masks = torch.empty(num_samples, size, size, dtype=torch.bool)
    generator = generator_for(seed, "noise")
    step = images_per_chunk(size)
    for start in range(0, num_samples, step):
        rows = slice(start, start + step)
        image, (masks[rows],) = render(take(scene, rows), size)
        images[rows] = to_bytes(image, noise, generator)
    return ArrayDataset(
        images=images,
        labels=truth.label,
        classes=CLASSES,
        boxes=bounding_boxes(masks).unsqueeze(1),
        masks=masks,
        objectness=masks.sum(dim=(1, 2)).float() / size**2,
        posterior=truth.posterior,
    )


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
) -> DataSplits:
    """Render train, validation and test sets from independent random streams of one seed.

    The size of one set does not change another. See `generate` for the other arguments.

    Args:
        train: samples in the training set.
        validation: samples in the validation set.
        test: samples in the test set.
        seed: as in `generate`; so are the remaining arguments.

    Example:
        >>> from sfumato.data import scenes
        >>> splits = scenes.load(train=30, validation=10, test=20)
        >>> len(splits.train), len(splits.validation), len(splits.test)
        (30, 10, 20)
    """
    counts = {"train": train, "validation": validation, "test": test}
    for name, count in counts.items():
        check_integer(name, count, low=1)
    check_integer("seed", seed, low=0)
    return DataSplits(
        *(
            generate(
                count,
                seed=derive_seed(seed, name),
                size=size,
                context=context,
                ambiguity=ambiguity,
                noise=noise,
            )
            for name, count in counts.items()
        )
    )


def bounding_boxes(masks: Tensor) -> Tensor:
    """The tightest boxes (N, 4) as x1, y1, x2, y2 around the true pixels of (N, H, W) masks."""
    edges = []
    for axis in (1, 2):
        occupied = masks.any(dim=axis).to(torch.uint8)
        first = occupied.argmax(dim=1)
        last = occupied.shape[1] - occupied.flip(1).argmax(dim=1)
        edges.append((first, last))
    (left, right), (top, bottom) = edges
    return torch.stack([left, top, right, bottom], dim=1).float()


def check_scene_arguments(*, seed: int, size: int, context: float, noise: float) -> None:
    """Raise unless the arguments that images and video share are possible."""
    check_integer("seed", seed, low=0)
    check_integer("size", size, low=16, high=512)
    check_number("context", context, low=0.0, high=1.0)
    check_number("noise", noise, low=0.0)
