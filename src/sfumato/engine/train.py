"""The one training loop.

Order, augmentation, dropout and learning rate are pure functions of seed, epoch and step, so a run
that was killed goes on from its last finished epoch to bit-identical weights.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sfumato.data import Sample, TensorLoader
from sfumato.engine.checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from sfumato.engine.config import TrainConfig
from sfumato.engine.log import TrainingLog
from sfumato.engine.optim import build_optimizer, learning_rate
from sfumato.engine.predict import predict
from sfumato.engine.progress import Bar, progress_bar
from sfumato.engine.results import RunDirectory
from sfumato.engine.seeds import fold_seed
from sfumato.engine.together import SharedStream, gather_around, gather_rows
from sfumato.metrics import evaluate_predictions
from sfumato.predictions import mean_log_probability

TransformBatch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Measure = Callable[[nn.Module, TensorLoader, Fabric, Bar], dict[str, float]]


class DivergenceError(RuntimeError):
    """Training can't go on: the loss is not a finite number."""


def measure_labels(
    model: nn.Module, loader: TensorLoader, fabric: Fabric, bar: Bar
) -> dict[str, float]:
    """Accuracy, NLL and ECE of one label for each image; NaN where a logit is not finite."""
    found = predict(model, loader, fabric, bar)
    if not bool(torch.isfinite(found.logits).all()):
        return dict.fromkeys(("accuracy", "nll", "ece"), math.nan)
    values = evaluate_predictions(found.labels, logits=found.logits)
    return {name: float(values[name]) for name in ("accuracy", "nll", "ece")}


@dataclass
class Trainer:
    """What one training needs, put together by the task.

    `measure` is what validation measures after every epoch; a value that is not finite ends the
    training.
    """

    fabric: Fabric
    model: nn.Module
    loss: nn.Module
    inputs: TransformBatch | None
    train_loader: TensorLoader
    validation_loader: TensorLoader
    config: TrainConfig
    seed: int
    run: RunDirectory
    show: bool = True
    measure: Measure = measure_labels

    def fit(self) -> nn.Module:
        """Train to the last epoch, from the last checkpoint if there is one."""
        start = self._set_up()
        if start == self.config.epochs:
            return self.model
        steps = (self.config.epochs - start) * (
            len(self.train_loader) + len(self.validation_loader)
        )
        with (
            TrainingLog(self.run, start, self.fabric.is_global_zero) as log,
            progress_bar("training", steps, show=self.show and self.fabric.is_global_zero) as bar,
        ):
            for epoch in range(start, self.config.epochs):
                torch.manual_seed(fold_seed(self.seed, "epoch", epoch, self.fabric.global_rank))
                shared = fold_seed(self.seed, "epoch", epoch, 0)
                self._shared = SharedStream(shared, self.fabric.device)
                record = self._epoch(epoch, bar)
                self._end_epoch()
                log.write({"epoch": epoch, **record, **self._validate(epoch, bar)})
                self._save(epoch + 1)
        return self.model

    def seconds_per_epoch(self, steps: int = 3) -> float:
        """Time a few steps after a first one; for a plan, since the network is changed by it."""
        self._set_up()
        self.model.train()
        began = time.perf_counter()
        for number in range(steps + 1):
            if number == 1:
                began = time.perf_counter()
            batch = self.train_loader.batch(number % len(self.train_loader))
            self._step(number % len(self.train_loader), batch, 0.0)
        return (time.perf_counter() - began) / steps * len(self.train_loader)

    def _set_up(self) -> int:
        """Move everything to its device and restore the last checkpoint; the epoch to start at."""
        if self.fabric.is_global_zero:
            restore_checkpoint(self.run.checkpoint)
        self.fabric.barrier()
        checkpoint = load_checkpoint(self.run.checkpoint)
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint.model)
            if checkpoint.epoch < self.config.epochs:  # a finished training needs no loss any more
                self.loss.load_state_dict(checkpoint.loss)
        if self.config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        optimizer = build_optimizer(self.model.parameters(), self.config)
        self.model, self.optimizer = self.fabric.setup(self.model, optimizer)
        self.loss = self.loss.to(self.fabric.device)
        module: Any
        for module in self.loss.modules():
            if hasattr(module, "gathers"):
                module.gathers = False  # `_batch_loss` hands it the samples of all processes
        self._takes_index = "index" in inspect.signature(self.loss.forward).parameters
        if checkpoint is None:
            return 0
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        return checkpoint.epoch

    def _epoch(self, epoch: int, bar: Bar) -> dict[str, float]:
        self.model.train()
        self.loss.train()
        self.train_loader.set_epoch(epoch)
        began = time.perf_counter()
        total = torch.zeros(4, device=self.fabric.device, dtype=torch.float64)
        for number, batch in enumerate(self.train_loader):
            rate = learning_rate(
                epoch * len(self.train_loader) + number, len(self.train_loader), self.config
            )
            loss, correct = self._step(number, batch, rate)
            self._check_finite(loss, epoch, number, rate)
            size, known = len(batch["label"]), self._known(batch["label"])
            total += torch.stack([loss.double() * size, correct, total.new_tensor(size), known])
            bar.advance(f"epoch {epoch + 1}/{self.config.epochs}")
        sums = cast(Tensor, self.fabric.all_reduce(total, reduce_op="sum"))
        mean_loss, accuracy = (sums[:2] / sums[2:].clamp(min=1)).tolist()
        return {
            "learning_rate": rate,
            "train_loss": mean_loss,
            "train_accuracy": accuracy,
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _known(self, label: Tensor) -> Tensor:
        """How many labels count: all of them, or the pixels that are not void."""
        void = self.train_loader.dataset.void
        return label.new_tensor(label.numel()) if void is None else (label != void).sum()

    def _step(self, number: int, batch: Sample, rate: float) -> tuple[Tensor, Tensor]:
        """One optimiser step; the loss and the number of right predictions, both detached."""
        images, target = self._transformed(number, batch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        logits = self._logits(images)
        loss, share = self._batch_loss(number, logits, target, batch["index"])
        self.optimizer.zero_grad()
        self.fabric.backward(loss * share if share != 1 else loss)
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        return loss.detach(), (logits.detach().argmax(1) == batch["label"]).sum()

    def _transformed(self, number: int, batch: Sample) -> tuple[Tensor, Tensor]:
        """Images and targets of this process after mixing and mollification.

        Several processes transform the whole batch, with the same random numbers, and take their
        parts of it: images are mixed across processes as they are within one.
        """
        if self.inputs is None:
            return _seen(batch)
        if self.fabric.world_size == 1:
            return self.inputs(*_seen(batch))
        with self._shared.drawing():
            images, target = self.inputs(*_seen(self.train_loader.whole(number)))
        first, last = self.train_loader.bounds(number)[self.fabric.global_rank :][:2]
        return images[first:last], target[first:last]

    def _batch_loss(
        self, number: int, logits: Tensor, target: Tensor, index: Tensor
    ) -> tuple[Tensor, float]:
        """The loss, and the factor that makes DDP's mean of gradients that of the whole batch.

        With several processes it is the loss of the whole batch, since some losses are no means
        over samples. Label maps are too large for that: there it is the loss of this process,
        weighted by its share of the images.
        """
        world, bounds = self.fabric.world_size, self.train_loader.bounds(number)
        share = 1.0
        if world > 1 and logits.ndim == 2:
            lengths = [last - first for first, last in pairwise(bounds)]
            logits = gather_around(logits, self.fabric, lengths)
            target, index = (gather_rows(rows, self.fabric, lengths) for rows in (target, index))
            share = float(world)
        elif world > 1:
            share = world * len(target) / bounds[-1]
        extra = {"index": index} if self._takes_index else {}
        return self.loss(logits, target, **extra), share

    def _logits(self, images: Tensor) -> Tensor:
        if self.config.passes > 1:
            return mean_log_probability(self.model, images, samples=self.config.passes)
        logits: Tensor = self.model(images)
        return logits

    def _check_finite(self, loss: Tensor, epoch: int, number: int, rate: float) -> None:
        # Reading a number from a GPU waits for it, so there only every 50th step is looked at.
        if (loss.is_cuda and number % 50) or math.isfinite(float(loss)):
            return
        where = f"epoch {epoch + 1}, step {number + 1} (learning rate {rate:.3g})"
        raise self._diverged(f"the loss is {float(loss)} at {where}")

    def _diverged(self, what: str) -> DivergenceError:
        return DivergenceError(
            f"{what} with {type(self.loss).__name__}. Try a lower train.learning_rate, "
            "train.warmup_epochs of 1 or more, train.clip_norm of 2 or less, or train.precision "
            "32-true."
        )

    def _end_epoch(self) -> None:
        for module in self.loss.modules():
            end_epoch: Any = getattr(module, "end_epoch", None)
            if end_epoch is not None:
                end_epoch()

    def _validate(self, epoch: int, bar: Bar) -> dict[str, float]:
        values = self.measure(self.model, self.validation_loader, self.fabric, bar)
        if not all(math.isfinite(value) for value in values.values()):
            raise self._diverged(f"the logits are not finite after epoch {epoch + 1}")
        return {f"validation_{name}": value for name, value in values.items()}

    def _save(self, epoch: int) -> None:
        if self.fabric.is_global_zero:
            state = Checkpoint(
                epoch,
                self.model.module.state_dict(),  # type: ignore[union-attr]
                self.optimizer.state_dict(),
                self.loss.state_dict(),
                self.fabric.strategy.precision.state_dict(),
            )
            save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()


def _seen(batch: Sample) -> tuple[Tensor, Tensor]:
    """What a loss and a network see of a batch."""
    return batch["image"], batch.get("soft_label", batch["label"])
