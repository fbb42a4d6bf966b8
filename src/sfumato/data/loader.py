"""Batches of a set: indexed or decoded, augmented and normalised as whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from sfumato._core.checks import check_integer
from sfumato._core.seeds import mix_seed
from sfumato.augment.protocol import BatchAugment, Sample
from sfumato.data.batch_workers import BatchWorkers, Drawn, loading_workers, make_batch
from sfumato.data.dataset import ArrayDataset
from sfumato.data.order import epoch_order
from sfumato.data.prepare import image_shape, preparation


class TensorLoader:
    """Iterates over batches: a dict of `image`, `label`, `index` and the set's annotations.

    `image` is float32, (x / 255 - mean) / std; everything else is as in the set. Of texts, `image`
    holds the tokens as int64, cut to the longest text of the batch, and batches are shuffled so
    that texts of about the same length are together. The order and the augmentation of an epoch
    are a pure function of (seed, epoch), drawn for all samples at once: a run resumes at any epoch
    (or any batch, with `batch(step)`) without saved random state.

    Of a set whose images are files, worker processes decode and augment the next batches. Their
    number changes no batch.

    With several processes `batch_size` is the *global* batch: every rank draws the same numbers
    and takes its contiguous slice, so that together they see exactly the samples and
    augmentations that one process sees. Nothing is dropped (unless `drop_last`) or repeated: the
    last batch may be uneven, and a rank may get fewer samples than another, or none, but every
    rank makes the same number of steps. A mean over ranks must therefore weigh each rank by
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

    def __init__(
        self,
        dataset: ArrayDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: BatchAugment | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
        channels_last: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        workers: int | None = None,
    ) -> None:
        check_integer("batch_size", batch_size, low=1)
        check_integer("seed", seed, low=0)
        check_integer("world_size", world_size, low=1)
        check_integer("rank", rank, low=0, high=world_size - 1)
        if batch_size % world_size:
            raise ValueError(
                f"batch_size is the global batch and must be a multiple of world_size, "
                f"got batch_size={batch_size}, world_size={world_size}"
            )
        if drop_last and 0 < len(dataset) < batch_size:
            raise ValueError(
                f"drop_last leaves nothing of {len(dataset)} samples in batches of {batch_size}: "
                f"use a smaller batch_size or drop_last=False"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.device = dataset.images.device if device is None else torch.device(device)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        channels, _ = image_shape(dataset)
        self._prepare = preparation(dataset.vocabulary, channels, mean, std).to(self.device)
        self._lengths = dataset.lengths if shuffle else None
        self._workers = self._start_workers(workers)
        self.set_epoch(0)

    def _start_workers(self, workers: int | None) -> BatchWorkers | None:
        if workers is not None:
            check_integer("workers", workers, low=0)
        if not self.dataset.is_file_backed:
            return None
        count = loading_workers() if workers is None else workers
        # Evaluations are few and far between; training is not.
        return BatchWorkers(self.dataset, self.augment, count, stay=self.shuffle) if count else None

    def set_epoch(self, epoch: int) -> None:
        """Draw the order and the augmentation of `epoch`; takes effect at the next iteration."""
        check_integer("epoch", epoch, low=0)
        self.epoch = epoch
        total = len(self.dataset)
        self._order = torch.arange(total)
        if self.shuffle:
            generator = self._generator("order")
            self._order = epoch_order(total, self.batch_size, self._lengths, generator)
        self._uniforms = torch.empty(total, 0)
        if self.augment is not None:
            generator = self._generator("augment")
            self._uniforms = torch.rand(total, self.augment.draws, generator=generator)

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
        drawn = [self._drawn(self._slice(step)) for step in range(len(self))]
        if self._workers is not None:
            return (self._finish(sample) for sample in self._workers.batches(drawn))
        return (self._make(each) for each in drawn)

    def batch(self, step: int) -> Sample:
        """This rank's part of batch `step` of the current epoch."""
        return self._make(self._drawn(self._slice(step)))

    def whole(self, step: int) -> Sample:
        """Batch `step` of the current epoch with the parts of all ranks."""
        start = step * self.batch_size
        every = slice(start, start + self.count(step))
        return self._make(self._drawn(every))

    def bounds(self, step: int) -> list[int]:
        """Where the part of each rank begins in batch `step`, and where the last one ends."""
        count = self.count(step)
        return [count * part // self.world_size for part in range(self.world_size + 1)]

    def _slice(self, step: int) -> slice:
        start, bounds = step * self.batch_size, self.bounds(step)
        return slice(start + bounds[self.rank], start + bounds[self.rank + 1])

    def _drawn(self, part: slice) -> Drawn:
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

    def _generator(self, stream: str) -> torch.Generator:
        # One stream for each use, so that turning one on leaves the others' numbers alone.
        number = ("order", "augment").index(stream)
        return torch.Generator().manual_seed(mix_seed(self.seed, self.epoch, number))
