"""How a network learns from a batch with one label for each image, or for each pixel."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato.data import Sample, TensorLoader
from sfumato.engine.fabric import Fabric
from sfumato.engine.training.step import Totals
from sfumato.engine.training.together import SharedStream, gather_around, gather_rows
from sfumato.engine.training.transforms import TransformBatch
from sfumato.predictions import mean_log_probability


@dataclass
class LabelStep:
    """The step of `Trainer` for classifiers and segmenters.

    Args:
        fabric: connects the processes.
        loss: of logits and targets; told of each sample's `index` where it takes one.
        loader: of the batches, which says how processes share them.
        seed: of the random numbers that processes draw alike.
        inputs: mixes and mollifies a batch; None leaves it as it is.
        passes: stochastic passes whose mean is trained.
        copies: rows that each sample has in a batch, the whole batch so many times in a row.
    """

    fabric: Fabric
    loss: nn.Module
    loader: TensorLoader
    seed: int
    inputs: TransformBatch | None = None
    passes: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        self._takes_index = "index" in inspect.signature(self.loss.forward).parameters
        module: Any
        for module in self.loss.modules():
            if hasattr(module, "gathers"):
                module.gathers = False  # `_batch_loss` hands it the samples of all processes

    def prepare(self, number: int, batch: Sample) -> Sample:
        """This process's part of batch `number` after mixing and mollification."""
        if self.inputs is None:
            return batch
        images, target = self._transformed(number, batch, self.inputs)
        return {**batch, "image": images, "soft_label": target}

    def __call__(self, model: nn.Module, number: int, batch: Sample) -> tuple[Tensor, Totals]:
        """The loss of this process's part of batch `number`; its mean and accuracy for the log."""
        images, target = _seen(batch)
        logits = self._logits(model, images)
        loss, share = self._batch_loss(number, logits, target, batch["index"])
        label = batch["label"]
        size = label.new_tensor(len(label))
        correct = (logits.detach().argmax(1) == label).sum()
        totals = {
            "train_loss": (loss.detach().double() * size, size),
            "train_accuracy": (correct, self._known(label)),
        }
        return loss * share if share != 1 else loss, totals

    def _known(self, label: Tensor) -> Tensor:
        """How many labels count: all of them, or the pixels that are not void."""
        void = self.loader.dataset.void
        return label.new_tensor(label.numel()) if void is None else (label != void).sum()

    def _transformed(
        self, number: int, batch: Sample, transform: TransformBatch
    ) -> tuple[Tensor, Tensor]:
        """Images and targets of this process after mixing and mollification.

        Several processes transform the whole batch, with the same random numbers, and take their
        parts of it: images are mixed across processes as they are within one.
        """
        if number == 0:
            self._begin_streams()
        is_alone = self.fabric.world_size == 1
        whole = _seen(batch) if is_alone else self._of_all(number, batch)
        with self._shared.drawing():
            images, target = transform(*whole)
        if is_alone:
            return images, target
        first, last = self.loader.bounds(number)[self.fabric.global_rank :][:2]
        parts = [self._in_a_row(self._apart(rows)[first:last]) for rows in (images, target)]
        return parts[0], parts[1]

    def _of_all(self, number: int, batch: Sample) -> tuple[Tensor, Tensor]:
        """Images and targets of all processes: read anew, or handed over where they are files."""
        if not self.loader.dataset.is_file_backed:
            return _seen(self.loader.whole(number))
        lengths = [last - first for first, last in pairwise(self.loader.bounds(number))]
        images, target = (
            self._in_a_row(gather_rows(self._apart(rows), self.fabric, lengths))
            for rows in _seen(batch)
        )
        return images.contiguous(memory_format=self.loader.layout), target

    def _apart(self, rows: Tensor) -> Tensor:
        """(K N, ...) as (N, K, ...): all copies of a sample in one row, which moves as a whole."""
        return rows.unflatten(0, (self.copies, len(rows) // self.copies)).transpose(0, 1)

    def _in_a_row(self, rows: Tensor) -> Tensor:
        """(N, K, ...) as (K N, ...), the whole batch K times."""
        return rows.transpose(0, 1).flatten(0, 1)

    def _begin_streams(self) -> None:
        """One stream for mixing and mollification, another for dropout, which is each process's."""
        epoch, rank = self.loader.epoch, self.fabric.global_rank
        shared = fold_seed(self.seed, "epoch", epoch, 0)
        self._shared = SharedStream(shared, self.fabric.device)
        torch.manual_seed(fold_seed(self.seed, "dropout", epoch, rank))

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        if self.passes > 1:
            return mean_log_probability(model, images, samples=self.passes)
        logits: Tensor = model(images)
        return logits

    def _batch_loss(
        self, number: int, logits: Tensor, target: Tensor, index: Tensor
    ) -> tuple[Tensor, float]:
        """The loss, and the factor that makes DDP's mean of gradients that of the whole batch.

        With several processes it is the loss of the whole batch, since some losses are no means
        over samples. Label maps are too large for that: there it is the loss of this process,
        weighted by its share of the images.
        """
        world, bounds = self.fabric.world_size, self.loader.bounds(number)
        share = 1.0
        if world > 1 and logits.ndim == 2:
            lengths = [last - first for first, last in pairwise(bounds)]
            logits = self._in_a_row(gather_around(self._apart(logits), self.fabric, lengths))
            target, index = (
                self._in_a_row(gather_rows(self._apart(rows), self.fabric, lengths))
                for rows in (target, index)
            )
            share = float(world)
        elif world > 1:
            share = world * len(target) / bounds[-1]
        extra = {"index": index} if self._takes_index else {}
        return self.loss(logits, target, **extra), share


def _seen(batch: Sample) -> tuple[Tensor, Tensor]:
    """What a loss and a network see of a batch."""
    return batch["image"], batch.get("soft_label", batch["label"])
