"""Protocols of a batch, its augmentation and its annotations, between loader and recipe."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

Sample = dict[str, Tensor]


class BatchAugment(Protocol):
    """An augmentation as `TensorLoader` calls it.

    The randomness of a sample is `draws` uniform numbers, handed in: whoever holds the numbers
    decides which samples share an epoch, a batch or a process, and the result can't depend on it.
    """

    @property
    def draws(self) -> int: ...

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample: ...


class Originals(Protocol):
    """A batch of images that are still files, so that parts of them keep the files' detail.

    An augmentation gets one in place of a batch's `image` where its `cuts_originals` is true and
    the images are larger in their files than in the data set.
    """

    shape: torch.Size  # (N, C, H, W) of the images as the data set gives them
    frames: Tensor  # (N, 2) width and height, in pixels of the file, of what each image shows
    is_stored_size: Tensor  # (N,) true where the file has the very pixels of the data set's image

    def __len__(self) -> int: ...

    def part(self, row: int, region: tuple[int, int, int, int]) -> Tensor:
        """(C, H, W), uint8: x1, y1, x2, y2 of a frame, brought to the data set's size."""
        ...


class LocatedAugment(BatchAugment, Protocol):
    """An augmentation that can say which part of its source a sample shows."""

    @property
    def rotates(self) -> bool: ...

    def corners(self, uniforms: Tensor, height: int, width: int) -> Tensor: ...


class Annotated(Protocol):
    """A training set, as far as `label_samples` looks at it."""

    @property
    def num_classes(self) -> int: ...

    @property
    def boxes(self) -> Tensor | None: ...

    @property
    def masks(self) -> Tensor | None: ...

    @property
    def context(self) -> Tensor | None: ...
