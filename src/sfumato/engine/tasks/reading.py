"""What reading a set costs a run, told from a few of its files: bytes, memory and seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.batch_workers import BATCHES_AHEAD, loading_workers, make_batch
from sfumato.data.decode import File, Picture
from sfumato.data.file_tensor import FileTensor

_FILES_MEASURED = 1000
_FILES_DECODED = 32


@dataclass(frozen=True)
class Reading:
    """How a run comes to its training images.

    Args:
        images: of the training set.
        steps: of an epoch.
        bytes_per_epoch: read from files for training and validation; 0 where all is in memory.
        memory: bytes for images, of the run where they are in memory, else of each process that
            decodes.
        workers: processes that decode; 0 where all is in memory.
        seconds: that they take together for an epoch with its validation.
    """

    images: int
    steps: int
    bytes_per_epoch: int
    memory: int
    workers: int
    seconds: float


def reading_of(loader: TensorLoader, validation: int) -> Reading:
    """Of the images of a training loader; a few of its files are decoded, as many as a batch has.

    Args:
        loader: of the training set.
        validation: how many images are read for validation after each epoch.
    """
    train = loader.dataset
    images, steps = len(train), len(loader)
    if not isinstance(train.images, FileTensor):
        return Reading(images, steps, 0, train.images.nbytes, 0, 0.0)
    workers = max(1, loading_workers())
    batch = min(loader.batch_size, images)
    # Each process makes one batch while those that it made before wait to be taken.
    memory = (1 + BATCHES_AHEAD) * batch * train.images[:1].nbytes
    return Reading(
        images,
        steps,
        round(_mean_bytes(train.images) * (images + validation)),
        memory,
        workers,
        _seconds_per_image(train, loader) * (images + validation) / workers,
    )


def decoded_sample(dataset: ArrayDataset, count: int) -> ArrayDataset:
    """Some samples from all over a set, in memory: the rest of its files stays unread."""
    part = dataset.subset(_spread(len(dataset), count))
    return replace(part, images=part.images[:], labels=part.labels[:])


def _spread(total: int, count: int) -> Tensor:
    count = min(total, count)
    return torch.arange(count) * total // count


def _mean_bytes(images: FileTensor) -> float:
    """Of an image's file, from files all over the set."""
    places = images.positions[_spread(len(images), _FILES_MEASURED)]
    return sum(_size(images.files[int(place)]) for place in places) / len(places)


def _size(file: File) -> int:
    return len(file.content) if isinstance(file, Picture) else file.stat().st_size


def _seconds_per_image(train: ArrayDataset, loader: TensorLoader) -> float:
    """That one process takes to read, decode and augment an image."""
    positions = _spread(len(train), _FILES_DECODED)
    draws = 0 if loader.augment is None else loader.augment.draws
    uniforms = torch.rand(len(positions), draws, generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    make_batch(train, loader.augment, (positions, uniforms))
    return (time.perf_counter() - began) / len(positions)
