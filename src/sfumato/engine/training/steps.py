"""From data to a loss: the objective of a run, and the training steps of labels and detection."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfumato._core.checks import to_float64
from sfumato._core.seeds import fold_seed
from sfumato._core.spec import Spec
from sfumato.augment import BatchAugment, Sample, label_samples
from sfumato.augment.recipes import CopiedSamples
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    TensorLoader,
    median_frequency_weights,
    single_objects,
    with_context,
)
from sfumato.data.dataset import Normalise, input_statistics
from sfumato.data.detection import DetectionBatch, Target
from sfumato.engine.config.build import (
    BatchTransform,
    TransformBatch,
    batch_transform,
    build_augmentation,
    build_component,
    build_inputs,
    build_labels,
    build_loss,
    check_void,
)
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.fabric import Fabric
from sfumato.engine.training.predict import gather_around, gather_rows
from sfumato.predictions import mean_log_probability

# For each name in the log a sum over samples and their number.
Totals = dict[str, tuple[Tensor, Tensor]]


def load_splits(spec: Spec, *, fetch: bool = True) -> DataSplits:
    """The data of a run, as `load_data` or a user's own; it needs all three parts."""
    # Somebody else may have written the spec.
    if not fetch and isinstance(spec, Mapping) and spec.get("download"):
        spec = {**spec, "download": False}
    data: DataSplits = build_component("data", spec)
    counts = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    empty = [name for name, count in counts.items() if not count]
    if len(empty) == len(counts):
        raise ValueError("the data set is empty: a run needs images to train, validate and test on")
    if empty:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(
            f"no images for {' and '.join(empty)} ({found}): a run needs all three. Give more "
            f"images, or a count instead of a share, as {empty[0]}: 1"
        )
    return data


def image_statistics(
    config: RunConfig, train: ArrayDataset
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel: those that the run names, else those of its training set."""
    named = config.standardise
    if named is None:
        return input_statistics(train)
    if train.vocabulary is not None:
        raise ValueError("standardise is for images, and the data is of texts: leave it out")
    Normalise(train.images.shape[1], named.mean, named.std)  # says where they are too many or few
    return tuple(named.mean), tuple(named.std)


@dataclass(frozen=True)
class Objective:
    """The parts of a configuration that make a loss of training samples."""

    train: ArrayDataset
    augment: BatchAugment | None
    inputs: BatchTransform | None
    loss: nn.Module
    # Rows that each sample has in a batch.
    copies: int


def build_objective(
    config: RunConfig,
    train: ArrayDataset,
    mean: Sequence[float],
    std: Sequence[float],
    naming: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Objective:
    """The objective of a run on the training part of its data, standardised with `mean`, `std`.

    Each component is built within `naming(its key)`, which can say whose mistake an error is.
    """
    num_classes, copies = train.num_classes, config.train.copies
    statistics = tuple(mean), tuple(std)
    train = _training_set(train, config, statistics[0])
    with naming("augment"):
        augment = build_augmentation(config.augment)
        labels = build_labels(config.labels, num_classes=num_classes)
        labelled = label_samples(labels, train, augment)
    with naming("inputs"):
        mollify = build_inputs(config.inputs, num_classes=num_classes, statistics=statistics)
    with naming("loss"):
        weight = None
        if config.class_weight == "median_frequency":
            weight = median_frequency_weights(train.labels, num_classes, void=train.void)
        loss = build_loss(
            config.loss,
            num_samples=len(train),
            num_classes=num_classes,
            epochs=config.train.epochs,
            class_weight=weight,
            copies=copies,
        )
        check_void(loss, train)
    return Objective(
        train,
        labelled if copies is None else CopiedSamples(labelled, copies.count),
        batch_transform(num_classes, augment, mollify),
        loss,
        1 if copies is None else copies.count,
    )


def _training_set(train: ArrayDataset, config: RunConfig, mean: tuple[float, ...]) -> ArrayDataset:
    """The samples after what `objects` does to them, counted from 0 for losses with a memory."""
    objects = config.objects
    if objects is not None:
        if objects.single:
            train = single_objects(train, fill=mean)
        seed = fold_seed(config.seed, "context-only images")
        train = with_context(train, share=objects.context, fill=mean, seed=seed)
    return dataclasses.replace(train, index=torch.arange(len(train)))


def indexed_loss(loss: nn.Module, logits: Tensor, target: Tensor, index: Tensor) -> Tensor:
    takes_index = "index" in inspect.signature(loss.forward).parameters
    value: Tensor = loss(logits, target, **({"index": index} if takes_index else {}))
    return value


class Step(Protocol):
    """The way from a batch to a loss, which a task brings to the loop."""

    loss: nn.Module

    def prepare(self, number: int, batch: Any) -> Any:
        """Batch `number` of an epoch as the network sees it, mixed and mollified."""

    def __call__(self, model: nn.Module, number: int, batch: Any) -> tuple[Tensor, Totals]:
        """The loss of a prepared batch, to be differentiated, and what the log gets."""


Note = Callable[[Tensor, Tensor], None]


def validation_notes(loss: nn.Module) -> Note | None:
    """Return a call for logits and labels of each validated batch; None where nobody listens.

    A loss, or a submodule of it, listens by having a method `note_validation(logits, target)`,
    called before `end_epoch` with all samples at once or batch after batch, in each process with
    what it has.
    """
    listeners: list[Any] = [each for each in loss.modules() if hasattr(each, "note_validation")]

    def note(logits: Tensor, target: Tensor) -> None:
        for each in listeners:
            each.note_validation(logits, target)

    return note if listeners else None


class SharedStream:
    """Random numbers that all processes draw alike; leaves the global state alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(self._gpus):
            torch.manual_seed(seed)
            self._remember()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within, what draws from the global state draws from this stream."""
        with torch.random.fork_rng(self._gpus):
            torch.set_rng_state(self._state)
            for gpu, state in zip(self._gpus, self._gpu_states, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            yield
            self._remember()

    def _remember(self) -> None:
        self._state = torch.get_rng_state()
        self._gpu_states = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]


@dataclass
class LabelStep:
    """The step of `Trainer` for classifiers and segmenters."""

    fabric: Fabric
    loss: nn.Module
    loader: TensorLoader
    seed: int
    inputs: TransformBatch | None = None
    passes: int = 1
    # The whole batch so many times in a row.
    copies: int = 1

    def __post_init__(self) -> None:
        module: Any
        for module in self.loss.modules():
            if hasattr(module, "gathers"):
                module.gathers = False  # `_batch_loss` hands it the samples of all processes

    def prepare(self, number: int, batch: Sample) -> Sample:
        """This process's part of batch `number` after mixing and mollification.

        Several processes transform the whole batch alike, so that images are mixed across them.
        """
        if self.inputs is None:
            return batch
        if number == 0:
            # One stream for mixing and mollification, another for dropout, which is each process's.
            epoch, rank = self.loader.epoch, self.fabric.global_rank
            shared = fold_seed(self.seed, "epoch", epoch, 0)
            self._shared = SharedStream(shared, self.fabric.device)
            torch.manual_seed(fold_seed(self.seed, "dropout", epoch, rank))
        is_alone = self.fabric.world_size == 1
        images, target = _seen(batch)
        if not is_alone and self.loader.dataset.is_file_backed:  # handed over, not read anew
            images, target = (self._gathered(number, rows) for rows in (images, target))
            images = images.contiguous(memory_format=self.loader.layout)
        elif not is_alone:
            images, target = _seen(self.loader.whole(number))
        with self._shared.drawing():
            images, target = self.inputs(images, target)
        if not is_alone:
            first, last = self.loader.bounds(number)[self.fabric.global_rank :][:2]
            images, target = (
                self._in_a_row(self._apart(rows)[first:last]) for rows in (images, target)
            )
        return {**batch, "image": images, "soft_label": target}

    def __call__(self, model: nn.Module, number: int, batch: Sample) -> tuple[Tensor, Totals]:
        """The loss of this process's part of batch `number`; its mean and accuracy for the log."""
        images, target = _seen(batch)
        many = self.passes > 1
        logits = mean_log_probability(model, images, samples=self.passes) if many else model(images)
        loss, share = self._batch_loss(number, logits, target, batch["index"])
        label, void = batch["label"], self.loader.dataset.void
        correct = (logits.detach().argmax(1) == label).sum()
        # Of labels that count: all of them, or the pixels that are not void.
        known = label.new_tensor(label.numel()) if void is None else (label != void).sum()
        totals = {
            "train_loss": (to_float64(loss.detach()) * len(label), label.new_tensor(len(label))),
            "train_accuracy": (correct, known),
        }
        return loss * share if share != 1 else loss, totals

    def _gathered(
        self, number: int, rows: Tensor, gather: Callable[..., Tensor] = gather_rows
    ) -> Tensor:
        """The rows of all processes, as one process would have them."""
        lengths = [last - first for first, last in pairwise(self.loader.bounds(number))]
        return self._in_a_row(gather(self._apart(rows), self.fabric, lengths))

    def _apart(self, rows: Tensor) -> Tensor:
        """(K N, ...) as (N, K, ...): all copies of a sample in one row, which moves as a whole."""
        return rows.unflatten(0, (self.copies, len(rows) // self.copies)).transpose(0, 1)

    def _in_a_row(self, rows: Tensor) -> Tensor:
        """(N, K, ...) as (K N, ...), the whole batch K times."""
        return rows.transpose(0, 1).flatten(0, 1)

    def _batch_loss(
        self, number: int, logits: Tensor, target: Tensor, index: Tensor
    ) -> tuple[Tensor, float]:
        """The loss, and the factor that makes DDP's mean of gradients that of the whole batch.

        It is the loss of the whole batch, since some are no means over samples. Segmentation masks
        are too large for that: it is the loss of this process, weighted by its share of the images.
        """
        world, share = self.fabric.world_size, 1.0
        if world > 1 and logits.ndim == 2:
            logits = self._gathered(number, logits, gather_around)
            target, index = (self._gathered(number, rows) for rows in (target, index))
            share = float(world)
        elif world > 1:
            share = world * len(target) / self.loader.bounds(number)[-1]
        return indexed_loss(self.loss, logits, target, index), share


def _seen(batch: Sample) -> tuple[Tensor, Tensor]:
    return batch["image"], batch.get("soft_label", batch["label"])


class SummedLosses(nn.Module):
    """The sum of the losses that a detector returns in training."""

    def forward(self, losses: dict[str, Tensor]) -> Tensor:
        return torch.stack(list(losses.values())).sum()


@dataclass
class DetectionStep:
    """The step of `Trainer` for torchvision's detectors, whose sampled proposals are random."""

    device: torch.device
    loss: nn.Module = field(default_factory=SummedLosses)

    def prepare(self, number: int, batch: DetectionBatch) -> DetectionBatch:
        """The batch as it is: flips are drawn by its loader."""
        return batch

    def __call__(
        self, model: nn.Module, number: int, batch: DetectionBatch
    ) -> tuple[Tensor, Totals]:
        """The sum of the losses; the log gets each of them too."""
        targets: list[Target] = []
        for objects in batch.objects:
            single = ~objects.crowd
            boxes, labels = objects.boxes[single], objects.labels[single] + 1  # 0: the background
            targets.append({"boxes": boxes.to(self.device), "labels": labels.to(self.device)})
        losses: dict[str, Tensor] = model(batch.images, targets)
        total: Tensor = self.loss(losses)
        size = torch.tensor(len(batch.images), device=self.device)
        each = {"train_loss": total, **{f"train_{name}": loss for name, loss in losses.items()}}
        sums = {name: to_float64(loss.detach()) * len(batch.images) for name, loss in each.items()}
        return total, {name: (value, size) for name, value in sums.items()}
