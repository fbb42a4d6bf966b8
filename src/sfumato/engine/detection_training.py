"""Fine-tuning a detector: the training loop for models that return their own losses.

Order, flips, sampled proposals and learning rate are pure functions of seed, epoch and step, as in
`engine.train`, and a killed run goes on from its last finished epoch.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sfumato.data import DetectionLoader
from sfumato.data.detection import Objects, Target
from sfumato.engine.checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from sfumato.engine.config import TrainConfig
from sfumato.engine.log import TrainingLog
from sfumato.engine.optim import build_optimizer, learning_rate
from sfumato.engine.progress import Bar, progress_bar
from sfumato.engine.results import RunDirectory
from sfumato.engine.seeds import fold_seed
from sfumato.engine.train import DivergenceError


@dataclass
class DetectionTrainer:
    """What one fine-tuning needs, put together by `engine.detect`."""

    fabric: Fabric
    model: nn.Module
    loader: DetectionLoader
    config: TrainConfig
    seed: int
    run: RunDirectory
    show: bool = True

    def fit(self) -> nn.Module:
        """Train to the last epoch, from the last checkpoint if there is one."""
        start = self._set_up()
        steps = (self.config.epochs - start) * len(self.loader)
        with (
            TrainingLog(self.run, start, self.fabric.is_global_zero) as log,
            progress_bar("fine-tuning", steps, show=self.show and steps > 0) as bar,
        ):
            for epoch in range(start, self.config.epochs):
                torch.manual_seed(fold_seed(self.seed, "epoch", epoch, self.fabric.global_rank))
                log.write({"epoch": epoch, **self._epoch(epoch, bar)})
                self._save(epoch + 1)
        return self.model

    def seconds_per_epoch(self, steps: int = 3) -> float:
        """Time a few steps after a first one; for a plan, since the network is changed by it."""
        self._set_up()
        self.model.train()
        began = time.perf_counter()
        batches = itertools.cycle(self.loader)
        for number, batch in enumerate(itertools.islice(batches, steps + 1)):
            if number == 1:
                began = time.perf_counter()
            self._step(batch.images, batch.objects, 0.0)
        return (time.perf_counter() - began) / steps * len(self.loader)

    def _set_up(self) -> int:
        """Move everything to its device and restore the last checkpoint; the epoch to start at."""
        if self.fabric.is_global_zero:
            restore_checkpoint(self.run.checkpoint)
        self.fabric.barrier()
        checkpoint = load_checkpoint(self.run.checkpoint)
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint.model)
        if self.config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        optimizer = build_optimizer(self.model.parameters(), self.config)
        self.model, self.optimizer = self.fabric.setup(self.model, optimizer)
        if checkpoint is None:
            return 0
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        return checkpoint.epoch

    def _epoch(self, epoch: int, bar: Bar) -> dict[str, float]:
        self.model.train()
        self.loader.set_epoch(epoch)
        began = time.perf_counter()
        sums: dict[str, float] = {}
        rate = self.config.learning_rate
        for number, batch in enumerate(self.loader):
            rate = learning_rate(epoch * len(self.loader) + number, len(self.loader), self.config)
            losses = self._step(batch.images, batch.objects, rate)
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            total = sum(float(value) for value in losses.values())
            if not math.isfinite(total):
                raise DivergenceError(
                    f"the loss is {total} at epoch {epoch + 1}, step {number + 1} (learning rate "
                    f"{rate:.3g}). Try a lower train.learning_rate or train.warmup_epochs of 1"
                )
            bar.advance(f"epoch {epoch + 1}/{self.config.epochs}")
        means = {f"train_{name}": value / len(self.loader) for name, value in sums.items()}
        return {
            "learning_rate": rate,
            "train_loss": sum(means.values()),
            **means,
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _step(self, images: list[Tensor], objects: list[Objects], rate: float) -> dict[str, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        targets = [detector_target(each, self.fabric.device) for each in objects]
        losses: dict[str, Tensor] = self.model(images, targets)
        self.optimizer.zero_grad()
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def _save(self, epoch: int) -> None:
        if self.fabric.is_global_zero:
            state = Checkpoint(
                epoch,
                self.model.module.state_dict(),  # type: ignore[union-attr]
                self.optimizer.state_dict(),
                {},
                self.fabric.strategy.precision.state_dict(),
            )
            save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()


def detector_target(objects: Objects, device: torch.device) -> Target:
    """What torchvision's detectors train on: label 0 is the background, crowds are left out."""
    single = ~objects.crowd
    return {
        "boxes": objects.boxes[single].to(device),
        "labels": objects.labels[single].to(device) + 1,
    }
