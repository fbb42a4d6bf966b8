"""The one training loop.

Order, augmentation, dropout and learning rate are pure functions of seed, epoch and step, so a run
that was killed goes on from its last finished epoch to bit-identical weights.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from sfumato._core.files import write_json
from sfumato._core.seeds import fold_seed
from sfumato.data import TensorLoader
from sfumato.engine.config.sections import TrainConfig
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import KEPT, RunDirectory
from sfumato.engine.runs.log import TrainingLog
from sfumato.engine.runs.progress import Bar, progress_bar
from sfumato.engine.training.beside import (
    WeightsBeside,
    has_statistics,
    renewing_statistics,
)
from sfumato.engine.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_weights,
    restore_checkpoint,
    save_checkpoint,
)
from sfumato.engine.training.optim import build_optimizer, learning_rate
from sfumato.engine.training.sharpness import Moment, at_worst_point, statistics_held
from sfumato.engine.training.step import EpochLoader, Step, Totals
from sfumato.engine.training.trained_parameters import (
    RATE_FACTOR,
    hold_frozen_statistics,
    parameter_groups,
)
from sfumato.engine.training.validation import Measure, measure_labels


class DivergenceError(RuntimeError):
    """Training can't go on: the loss is not a finite number."""


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
        if self.config.epochs == 0:
            return self._take_as_it_is()
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
                judged = self._judge(epoch, bar)
                self._end_epoch()  # after validation, from which a loss may learn
                log.write({"epoch": epoch, **record, **judged})
                if epoch + 1 == self.config.epochs:
                    self._choose_weights()
                self._save(epoch + 1)
        return self.model

    def _take_as_it_is(self) -> nn.Module:
        """A network that is trained already: its weights are kept for whoever loads the run."""
        if self.fabric.is_global_zero:
            restore_checkpoint(self.run.checkpoint)
            if not self.run.checkpoint.exists():
                state = Checkpoint(0, self.model.state_dict(), {}, {}, {})
                save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()
        self.model.load_state_dict(load_weights(self.run.checkpoint))
        if self.config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.model = self.fabric.setup_module(self.model)
        return self.model

    def seconds_per_epoch(self, steps: int = 3) -> float:
        """Time a few steps after a first one; for a plan, since the network is changed by it."""
        self._set_up()
        self._train_mode()
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
        optimizer = build_optimizer(parameter_groups(self.model, self.config), self.config)
        self.model, self.optimizer = self.fabric.setup(self.model, optimizer)
        self.beside = WeightsBeside(self.config)
        self.step.loss.to(self.fabric.device)
        if checkpoint is None:
            return 0
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        self.beside.load_state_dict(checkpoint.beside, self.fabric.device)
        return checkpoint.epoch

    @property
    def _network(self) -> nn.Module:
        """The network without the wrapper that Fabric puts around it."""
        return cast(nn.Module, self.model.module)

    def _epoch(self, epoch: int, bar: Bar) -> dict[str, float]:
        self._train_mode()
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

    def _train_mode(self) -> None:
        self.model.train()
        self.step.loss.train()
        if self.config.freeze:
            hold_frozen_statistics(self._network)

    def _step(self, number: int, batch: Any, rate: float) -> tuple[Tensor, Totals]:
        """One optimiser step; the loss, detached, and what the log gets."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get(RATE_FACTOR, 1.0)
        batch = self.step.prepare(number, batch)
        moment = None if self.config.sam is None else Moment(self.fabric.device, self.step.loss)
        loss, totals = self.step(self.model, number, batch)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if moment is not None:
            self._second_pass(number, batch, moment)
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.beside.after_step(self._network)
        return loss.detach(), totals

    def _second_pass(self, number: int, batch: Any, moment: Moment) -> None:
        """Replace the gradient by that of the worst point nearby; all else is as in the first."""
        parameters = [each for each in self._network.parameters() if each.requires_grad]
        with (
            at_worst_point(parameters, cast(float, self.config.sam)),
            statistics_held(self._network),
            moment.again(),
        ):
            self.optimizer.zero_grad()
            loss, _ = self.step(self.model, number, batch)
            self.fabric.backward(loss)

    def _check_finite(self, loss: Tensor, epoch: int, number: int, rate: float) -> None:
        # Reading a number from a GPU waits for it, so there only every 50th step is looked at.
        if (loss.is_cuda and number % 50) or math.isfinite(float(loss)):
            return
        where = f"epoch {epoch + 1}, step {number + 1} (learning rate {rate:.3g})"
        what = f"the loss is {float(loss)} at {where}"
        if epoch == 0 and number == 0:
            raise DivergenceError(
                f"{what} with {_name_of(self.step.loss)}. Nothing was learned before this step, so "
                "no rate is to blame: look at what the loss computes, at the images and labels, at "
                "weights that the network started from, and at train.precision."
            )
        raise self._diverged(what)

    def _diverged(self, what: str) -> DivergenceError:
        return DivergenceError(
            f"{what} with {_name_of(self.step.loss)}. Try a lower train.learning_rate, "
            "train.warmup_epochs of 1 or more, train.clip_norm of 2 or less, or train.precision "
            "32-true."
        )

    def _end_epoch(self) -> None:
        for module in self.step.loss.modules():
            end_epoch: Any = getattr(module, "end_epoch", None)
            if end_epoch is not None:
                end_epoch()

    def _judge(self, epoch: int, bar: Bar) -> dict[str, float]:
        """Validate the weights that would predict now, and keep them where they are the best."""
        self.beside.after_epoch(self._network, epoch)
        with self.beside.predicting(self._network):
            values = self._validate(epoch, bar)
            self.beside.judge(self._network, epoch, values)
        return values

    def _choose_weights(self) -> None:
        """End with the weights that predict, and write down which they are."""
        said = self.beside.finish(self._network)
        if self.config.swa is not None and has_statistics(self._network):
            self._renew_statistics()
        if self.fabric.is_global_zero and (self.config.best or self.beside.count):
            write_json(self.run.training / KEPT, said)

    @torch.no_grad()
    def _renew_statistics(self) -> None:
        """One more pass over the training set, without any step."""
        self._train_mode()
        self.step.loss.eval()
        torch.manual_seed(
            fold_seed(self.seed, "epoch", self.config.epochs, self.fabric.global_rank)
        )
        self.train_loader.set_epoch(self.config.epochs)
        with renewing_statistics(self._network):
            for number, batch in enumerate(self.train_loader):
                self.step(self.model, number, self.step.prepare(number, batch))

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
                self._network.state_dict(),
                self.optimizer.state_dict(),
                self.step.loss.state_dict(),
                self.fabric.strategy.precision.state_dict(),
                {} if epoch == self.config.epochs else self.beside.state_dict(),
            )
            save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()


def _name_of(loss: nn.Module) -> str:
    """A user's function by the name that a study has for it, a module by its class."""
    return str(getattr(loss, "name", type(loss).__name__))
