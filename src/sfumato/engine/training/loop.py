"""The one training loop.

Order, augmentation, dropout and learning rate are pure functions of seed, epoch and step, so a run
that was killed goes on from its last finished epoch to bit-identical weights.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato.data import TensorLoader
from sfumato.engine.config.sections import TrainConfig
from sfumato.engine.evaluation.predict import predict
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.log import TrainingLog
from sfumato.engine.runs.progress import Bar, progress_bar
from sfumato.engine.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from sfumato.engine.training.optim import build_optimizer, learning_rate
from sfumato.metrics import evaluate_predictions

Totals = dict[str, tuple[Tensor, Tensor]]
"""For each name in the log a sum over samples and their number."""
Measure = Callable[[nn.Module, TensorLoader, Fabric, Bar], dict[str, float]]


class Step(Protocol):
    """What a task brings to the loop: how a batch becomes a loss.

    The state of `loss` is in checkpoints, and its modules are told where an epoch ends.
    """

    loss: nn.Module

    def __call__(self, model: nn.Module, number: int, batch: Any) -> tuple[Tensor, Totals]:
        """The loss of batch `number` of an epoch, to be differentiated, and what the log gets."""


class EpochLoader(Protocol):
    """Batches of a training set, the same ones for the same epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


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

    `measure` is what validation measures after every epoch, where there is a loader for it; a
    value that is not finite ends the training.
    """

    fabric: Fabric
    model: nn.Module
    step: Step
    train_loader: EpochLoader
    config: TrainConfig
    seed: int
    run: RunDirectory
    show: bool = True
    validation_loader: TensorLoader | None = None
    measure: Measure = measure_labels

    def fit(self) -> nn.Module:
        """Train to the last epoch, from the last checkpoint if there is one."""
        start = self._set_up()
        if start == self.config.epochs:
            return self.model
        validation = 0 if self.validation_loader is None else len(self.validation_loader)
        steps = (self.config.epochs - start) * (len(self.train_loader) + validation)
        with (
            TrainingLog(self.run, start, self.fabric.is_global_zero) as log,
            progress_bar("training", steps, show=self.show and self.fabric.is_global_zero) as bar,
        ):
            for epoch in range(start, self.config.epochs):
                torch.manual_seed(fold_seed(self.seed, "epoch", epoch, self.fabric.global_rank))
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
        batches = itertools.islice(itertools.cycle(self.train_loader), steps + 1)
        for number, batch in enumerate(batches):
            self._step(number % len(self.train_loader), batch, 0.0)
            if number == 0:
                began = time.perf_counter()
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
                self.step.loss.load_state_dict(checkpoint.loss)
        if self.config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        optimizer = build_optimizer(self.model.parameters(), self.config)
        self.model, self.optimizer = self.fabric.setup(self.model, optimizer)
        self.step.loss.to(self.fabric.device)
        if checkpoint is None:
            return 0
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        return checkpoint.epoch

    def _epoch(self, epoch: int, bar: Bar) -> dict[str, float]:
        self.model.train()
        self.step.loss.train()
        self.train_loader.set_epoch(epoch)
        began = time.perf_counter()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(self.train_loader):
            rate = learning_rate(
                epoch * len(self.train_loader) + number, len(self.train_loader), self.config
            )
            loss, totals = self._step(number, batch, rate)
            self._check_finite(loss, epoch, number, rate)
            for name, pair in totals.items():
                sums[name] = sums.get(name, 0) + torch.stack([each.double() for each in pair])
            bar.advance(f"epoch {epoch + 1}/{self.config.epochs}")
        mine = torch.stack(list(sums.values()))  # (names, 2)
        total, count = cast(Tensor, self.fabric.all_reduce(mine, reduce_op="sum")).unbind(1)
        return {
            "learning_rate": rate,
            **dict(zip(sums, (total / count.clamp(min=1)).tolist(), strict=True)),
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _step(self, number: int, batch: Any, rate: float) -> tuple[Tensor, Totals]:
        """One optimiser step; the loss, detached, and what the log gets."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, totals = self.step(self.model, number, batch)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        return loss.detach(), totals

    def _check_finite(self, loss: Tensor, epoch: int, number: int, rate: float) -> None:
        # Reading a number from a GPU waits for it, so there only every 50th step is looked at.
        if (loss.is_cuda and number % 50) or math.isfinite(float(loss)):
            return
        where = f"epoch {epoch + 1}, step {number + 1} (learning rate {rate:.3g})"
        raise self._diverged(f"the loss is {float(loss)} at {where}")

    def _diverged(self, what: str) -> DivergenceError:
        return DivergenceError(
            f"{what} with {type(self.step.loss).__name__}. Try a lower train.learning_rate, "
            "train.warmup_epochs of 1 or more, train.clip_norm of 2 or less, or train.precision "
            "32-true."
        )

    def _end_epoch(self) -> None:
        for module in self.step.loss.modules():
            end_epoch: Any = getattr(module, "end_epoch", None)
            if end_epoch is not None:
                end_epoch()

    def _validate(self, epoch: int, bar: Bar) -> dict[str, float]:
        if self.validation_loader is None:
            return {}
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
                self.step.loss.state_dict(),
                self.fabric.strategy.precision.state_dict(),
            )
            save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()
