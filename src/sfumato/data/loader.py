"""Batches of a set: ordered, decoded by workers, augmented and normalised."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from multiprocessing.context import BaseContext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sfumato._core.checks import check_integer
from sfumato._core.seeds import mix_seed
from sfumato.augment.protocol import BatchAugment, Sample
from sfumato.data.dataset import ArrayDataset, check_global_batch, image_shape, preparation

_BATCHES_SORTED_TOGETHER = 50


def epoch_order(
    total: int, batch_size: int, lengths: Tensor | None, generator: torch.Generator
) -> Tensor:
    """A random order of `total` samples; where they have lengths, with similar ones in a batch.

    A batch is as long as its longest text: shuffled samples are sorted by length within groups of
    50 batches, and the batches are shuffled again. What doesn't fill a batch comes last and is as
    random as the rest, so that leaving it out leaves out no special length.
    """
    order = torch.randperm(total, generator=generator)
    if lengths is None:
        return order
    full = total - total % batch_size
    groups = order[:full].split(batch_size * _BATCHES_SORTED_TOGETHER)
    ordered = [group[lengths[group].argsort(descending=True, stable=True)] for group in groups]
    batches = torch.cat([*ordered, order[:0]]).view(-1, batch_size)
    batches = batches[torch.randperm(len(batches), generator=generator)]
    return torch.cat([batches.flatten(), order[full:]])


VARIABLE = "SFUMATO_LOADING_WORKERS"
BATCHES_AHEAD = 2
# Positions of a batch's samples in their set, and the uniform numbers of their augmentation.
Drawn = tuple[Tensor, Tensor]


def loading_workers(given: int | None = None) -> int:
    """Processes that decode for one loader: as given, by the variable, or as many as threads.

    How many there are changes no number. 0 decodes in the process itself.
    """
    if given is not None:
        return given
    said = os.environ.get(VARIABLE)
    if said is None:
        return max(1, torch.get_num_threads())
    if not said.isdecimal():
        raise ValueError(f"{VARIABLE} must be a whole number, 0 or more, got {said!r}")
    return int(said)


def make_batch(dataset: ArrayDataset, augment: BatchAugment | None, drawn: Drawn) -> Sample:
    """Samples of a file-backed set after augmentation, on the CPU, images in uint8."""
    positions, uniforms = drawn
    if augment is None:
        return dataset.batch(positions)
    cuts = getattr(augment, "cuts_originals", False)
    sample = dataset.batch_to_cut(positions) if cuts else dataset.batch(positions)
    return augment.apply(sample, uniforms, void=dataset.void)


class BatchWorkers:
    """Batches of a file-backed set, made by worker processes, in the order of the requests."""

    def __init__(
        self, dataset: ArrayDataset, augment: BatchAugment | None, workers: int, *, stay: bool
    ) -> None:
        check_integer("workers", workers, low=1)
        self._maker = _Maker(dataset, augment)
        self._workers, self._stay = workers, stay
        self._round: list[Drawn] = []
        self._loader: DataLoader[Sample | _Failure] | None = None

    def batches(self, drawn: Sequence[Drawn]) -> Iterator[Sample]:
        self._round[:] = drawn
        self._loader = self._loader or self._started()
        for found in _until_death(self._loader):
            if isinstance(found, _Failure):
                self._loader = None
                raise found.error from RuntimeError(found.trace)
            yield found

    def _started(self) -> DataLoader[Sample | _Failure]:
        return DataLoader(
            self._maker,
            batch_size=None,
            sampler=self._round,
            num_workers=self._workers,
            prefetch_factor=BATCHES_AHEAD,
            persistent_workers=self._stay,
            worker_init_fn=_follow_parent,
            multiprocessing_context=start_context(),
            # Else every round would draw from the generator of dropout.
            generator=torch.Generator(),
        )


def start_context() -> BaseContext | None:
    """Choose how worker processes start; None is the default of this process.

    Where that is "spawn", as in the processes of a study, every worker would import PyTorch anew,
    in each epoch of a validation set: they are forks of one fresh process that has imported it.
    """
    if sys.platform != "linux" or multiprocessing.get_start_method(allow_none=True) != "spawn":
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


class _Failure(NamedTuple):
    error: Exception  # raised in the worker, it would come with its traceback as message
    trace: str


def _until_death(loader: DataLoader[Sample | _Failure]) -> Iterator[Sample | _Failure]:
    """The batches of a round, with a failure as the last one where a process has died."""
    try:
        yield from loader
        return
    except RuntimeError as error:
        said = str(error).strip().removesuffix(".")
    message = (
        f"a process that decodes images died: {said}. Signal 9 (Killed) mostly means that memory "
        f"was short: use a smaller batch_size, or fewer processes with {VARIABLE}=1; {VARIABLE}=0 "
        "decodes in the run's own process and shows what crashes"
    )
    yield _Failure(RuntimeError(message), said)


@dataclass(frozen=True)
class _Maker(Dataset[Sample | _Failure]):
    dataset: ArrayDataset
    augment: BatchAugment | None

    def __getitem__(self, drawn: Drawn) -> Sample | _Failure:
        try:
            return make_batch(self.dataset, self.augment, drawn)
        except Exception as error:  # raised again where the batch is asked for
            return _Failure(error, "in a process that decodes images:\n" + traceback.format_exc())


def _follow_parent(worker: int) -> None:
    """End with the process that wants the batches, and not before.

    One traceback of an interrupted run is enough. PyTorch looks at the process that forked this
    one, which need not be the one that is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # `sys.exit` would end this thread alone.
        os._exit(1)


@dataclass(eq=False, repr=False)
class TensorLoader:
    """Iterates over batches: a dict of `image`, `label`, `index` and the set's annotations.

    `image` is float32, (x / 255 - mean) / std; everything else is as in the set. Of texts, `image`
    holds the tokens as int64, cut to the longest text of the batch, and batches are shuffled so
    that texts of about the same length are together. The order and the augmentation of an epoch
    are a pure function of (seed, epoch), drawn for all samples at once: a run resumes at any epoch
    (or any batch, with `batch(step)`) without saved random state.

    Of a set whose images are files, worker processes decode and augment the next batches.

    With several processes `batch_size` is the *global* batch: every rank draws the same numbers and
    takes its contiguous slice, so that together they see what one process sees. The last batch may
    be uneven, and a rank may get fewer samples than another, or none, but every rank makes the same
    number of steps. A mean over ranks must weigh each by
    `world_size * len(batch["label"]) / loader.count(step)`.

    Args:
        dataset: the samples.
        batch_size: samples per step over all ranks; a multiple of `world_size`.
        shuffle: a new order in every epoch.
        seed: of order and augmentation.
        augment: e.g. `Augment(flip=True, crop=4)`; works on the uint8 batch.
        drop_last: leave out the last batch if it is not full.
        rank: this process.
        world_size: number of processes.
        device: where batches go; augmentation and normalisation run there.
        channels_last: memory layout of `image`, about twice as fast for convolutions on a CPU.
        mean: per channel, on the [0, 1] scale. None is 0.
        std: per channel, on the [0, 1] scale. None is 1.
        workers: processes that decode files, 0 for none. None is the variable
            `SFUMATO_LOADING_WORKERS`, else as many as PyTorch has threads here.

    Example:
        >>> images = torch.full((5, 3, 8, 8), 255, dtype=torch.uint8)
        >>> data = ArrayDataset(images, torch.zeros(5, dtype=torch.int64), ("only",))
        >>> loader = TensorLoader(data, 2, mean=(0.5,) * 3, std=(0.25,) * 3)
        >>> [batch["index"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
        >>> loader.batch(0)["image"].unique().tolist()
        [2.0]
    """

    dataset: ArrayDataset
    batch_size: int
    _: KW_ONLY
    shuffle: bool = False
    seed: int = 0
    augment: BatchAugment | None = None
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    device: torch.device | str | None = None
    channels_last: bool = True
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    workers: InitVar[int | None] = None

    def __post_init__(self, workers: int | None) -> None:
        check_integer("batch_size", self.batch_size, low=1)
        check_integer("seed", self.seed, low=0)
        check_integer("world_size", self.world_size, low=1)
        check_integer("rank", self.rank, low=0, high=self.world_size - 1)
        check_global_batch(self.batch_size, self.world_size)
        total = len(self.dataset)
        if self.drop_last and 0 < total < self.batch_size:
            raise ValueError(
                f"drop_last leaves nothing of {total} samples in batches of {self.batch_size}: "
                f"use a smaller batch_size or drop_last=False"
            )
        own = self.dataset.images.device
        self.device = own if self.device is None else torch.device(self.device)
        self.layout = torch.channels_last if self.channels_last else torch.contiguous_format
        channels, _ = image_shape(self.dataset)
        prepare = preparation(self.dataset.vocabulary, channels, self.mean, self.std)
        self._prepare = prepare.to(self.device)
        self._lengths = self.dataset.lengths if self.shuffle else None
        if workers is not None:
            check_integer("workers", workers, low=0)
        self._workers = None
        if self.dataset.is_file_backed and (count := loading_workers(workers)):
            # Evaluations are few and far between; training is not.
            self._workers = BatchWorkers(self.dataset, self.augment, count, stay=self.shuffle)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order and the augmentation of `epoch`; takes effect at the next iteration."""
        check_integer("epoch", epoch, low=0)
        self.epoch = epoch
        total = len(self.dataset)
        self._order = torch.arange(total)
        if self.shuffle:
            self._order = epoch_order(total, self.batch_size, self._lengths, self._generator(0))
        draws = 0 if self.augment is None else self.augment.draws
        self._uniforms = torch.rand(total, draws, generator=self._generator(1))

    def __len__(self) -> int:
        """Number of steps, the same on every rank."""
        total = len(self.dataset)
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def count(self, step: int) -> int:
        """Number of samples in the global batch `step`."""
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in [0, {len(self)}), got {step}")
        return min(self.batch_size, len(self.dataset) - step * self.batch_size)

    def __iter__(self) -> Iterator[Sample]:
        drawn = [self._drawn(step) for step in range(len(self))]
        if self._workers is not None:
            return (self._finish(sample) for sample in self._workers.batches(drawn))
        return (self._make(each) for each in drawn)

    def batch(self, step: int) -> Sample:
        """This rank's part of batch `step` of the current epoch."""
        return self._make(self._drawn(step))

    def whole(self, step: int) -> Sample:
        """Batch `step` of the current epoch with the parts of all ranks."""
        return self._make(self._drawn(step, slice(0, self.world_size)))

    def bounds(self, step: int) -> list[int]:
        """Places where each rank's share of batch `step` begins, and where the last one ends."""
        count = self.count(step)
        return [count * part // self.world_size for part in range(self.world_size + 1)]

    def _drawn(self, step: int, ranks: slice | None = None) -> Drawn:
        ranks = ranks or slice(self.rank, self.rank + 1)
        start, bounds = step * self.batch_size, self.bounds(step)
        part = slice(start + bounds[ranks.start], start + bounds[ranks.stop])
        return self._order[part], self._uniforms[part]

    def _make(self, drawn: Drawn) -> Sample:
        if self.dataset.is_file_backed:
            return self._finish(make_batch(self.dataset, self.augment, drawn))
        positions, uniforms = drawn
        sample = self.dataset.batch(positions.to(self.dataset.images.device))
        sample = {key: value.to(self.device) for key, value in sample.items()}
        if self.augment is not None:
            sample = self.augment.apply(sample, uniforms, void=self.dataset.void)
        return self._finish(sample)

    def _finish(self, sample: Sample) -> Sample:
        sample = {key: value.to(self.device) for key, value in sample.items()}
        return {**sample, "image": self._prepare(sample["image"], self.layout)}

    def _generator(self, stream: int) -> torch.Generator:
        # One stream for each use, so that turning one on leaves the others' numbers alone.
        return torch.Generator().manual_seed(mix_seed(self.seed, self.epoch, stream))
