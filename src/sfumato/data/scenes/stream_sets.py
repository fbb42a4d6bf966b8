"""Scenes streams as a data set for segmentation."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.scenes.dice import derive_seed
from sfumato.data.scenes.video import BACKGROUND, stream

VOID = -100
"""No pixel of a stream has it; augmentation gives it to what comes from outside the image."""


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

    Frames of a stream follow each other and carry its number in `stream`, so that predictions may
    be smoothed along it. All pixels are labelled; the background is the last class.

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
    counts = {"train": train, "validation": validation, "test": test}
    for name, count in counts.items():
        check_integer(name, count, low=1)
    check_integer("train_frames", train_frames, low=1)
    check_integer("test_frames", test_frames, low=1)
    check_integer("seed", seed, low=0)

    def render(name: str, frames: int) -> ArrayDataset:
        video = stream(
            frames,
            streams=counts[name],
            seed=derive_seed(seed, f"{name} streams"),
            size=size,
            figures=figures,
            speed=speed,
            context=context,
            noise=noise,
        )
        return as_frames(video.frames, video.labels, video.classes)

    return DataSplits(
        render("train", train_frames),
        render("validation", train_frames),
        render("test", test_frames),
    )


def as_frames(frames: Tensor, labels: Tensor, classes: tuple[str, ...]) -> ArrayDataset:
    """Streams (S, T, ...) as one set of S * T frames in order, with their streams' numbers."""
    streams, length = frames.shape[:2]
    return ArrayDataset(
        frames.flatten(0, 1),
        labels.flatten(0, 1),
        classes,
        void=VOID,
        stream=torch.arange(streams).repeat_interleave(length),
        background=(BACKGROUND,),
    )
