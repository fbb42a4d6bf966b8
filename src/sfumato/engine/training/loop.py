"""The one training loop: optimiser, schedule, trained parameters, validation."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato._core.checks import to_float64
from sfumato._core.files import write_json
from sfumato._core.seeds import fold_seed
from sfumato._core.text import Bar, progress_bar
from sfumato.data import DetectionLoader, TensorLoader
from sfumato.engine.config.sections import ConfigError, TrainConfig
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import KEPT, RunDirectory, training_log
from sfumato.engine.training.averages import (
    AveragedWeights,
    Moment,
    at_worst_point,
    has_statistics,
    renewing_statistics,
    statistics_held,
)
from sfumato.engine.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_weights,
    restore_checkpoint,
    save_checkpoint,
)
from sfumato.engine.training.predict import predict, sum_over_processes
from sfumato.engine.training.steps import Note, Step, Totals
from sfumato.metrics import evaluate_predictions
from sfumato.models.weights import final_parameters
from sfumato.predictions.scalers import fit_likelihood


def build_optimizer(
    parameters: Iterable[nn.Parameter], train: TrainConfig
) -> torch.optim.Optimizer:
    rate, decay = train.learning_rate, train.weight_decay
    if train.optimizer == "sgd":
        options: dict[str, Any] = {"momentum": train.momentum, "nesterov": train.nesterov}
        return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, **options)
    kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay)


def learning_rate(step: int, steps_per_epoch: int, train: TrainConfig) -> float:
    """The rate of optimiser step `step` (from 0).

    A pure function of the step, so that a resumed run needs no scheduler state. Warm-up rises
    linearly over `warmup_epochs` and is part of `epochs`; the schedule spans what is left.

    Example:
        >>> train = TrainConfig(epochs=10, learning_rate=0.1, schedule="cosine")
        >>> round(learning_rate(50, 10, train), 6)
        0.05
    """
    warmup = round(train.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return train.learning_rate * (step + 1) / warmup
    past, total = step - warmup, max(1, train.epochs * steps_per_epoch - warmup)
    factor = 1.0
    if train.schedule == "multistep":
        epoch = step / steps_per_epoch
        factor = train.decay_factor ** sum(epoch >= milestone for milestone in train.milestones)
    elif train.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * past / total))
    elif train.schedule == "onecycle":
        # A cosine up over the first 30 % of training, another one down.
        progress = past / total
        if progress < 0.3:
            low, high, share = 1 / 25, 1.0, progress / 0.3
        else:
            low, high, share = 1.0, 1e-4, (progress - 0.3) / (1 - 0.3)
        factor = high + (low - high) * 0.5 * (1 + math.cos(math.pi * share))
    return train.learning_rate * factor


# Key of a parameter group: its rate is the schedule's times this.
RATE_FACTOR = "rate_factor"

_SHOWN = 12


def parameter_groups(model: nn.Module, train: TrainConfig) -> Iterable[Any]:
    """Groups of parameters that an optimiser trains, after freezing what `train.freeze` names."""
    frozen = frozen_parameters(model, train.freeze)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    if train.head_learning_rate is None:
        return [p for p in model.parameters() if p.requires_grad or not frozen]
    head = final_parameters(model)
    if head <= frozen:
        raise ConfigError(
            f"train.head_learning_rate is for {', '.join(sorted(head))}, which train.freeze "
            "freezes: leave one of the two out"
        )
    trained = [(name in head, p) for name, p in model.named_parameters() if p.requires_grad]
    factors = {False: 1.0, True: train.head_learning_rate / train.learning_rate}
    groups = [
        {"params": [p for is_head, p in trained if is_head == own], RATE_FACTOR: factor}
        for own, factor in factors.items()
    ]
    return [group for group in groups if group["params"]]


def frozen_parameters(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Names of the parameters that patterns match, as shells match files.

    A pattern names parameters or modules: `stem`, `stages.0`, `layer[12]`, `*.bias`.

    Example:
        >>> from sfumato.models import resnet
        >>> sorted(frozen_parameters(resnet(8, num_classes=3, width=4), ["stem"]))
        ['stem.0.weight', 'stem.1.bias', 'stem.1.weight']
    """
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    for pattern in patterns:
        found = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")}
        if not found:
            modules = [name for name, _ in model.named_modules() if 0 < len(name.split(".")) <= 2]
            raise ConfigError(
                f"train.freeze: {pattern!r} matches no parameter of this {type(model).__name__}; "
                f"its modules are {', '.join(filter(None, modules[: _SHOWN + 1]))} ..."
            )
        frozen |= found
    if frozen and len(frozen) == len(names):
        raise ConfigError(
            f"train.freeze: {', '.join(patterns)} freezes all {len(names)} parameters, and nothing "
            "is left to train: leave the head out, which is "
            f"{', '.join(sorted(final_parameters(model)))}"
        )
    return frozen


Measure = Callable[[nn.Module, TensorLoader, Fabric, Bar], dict[str, float]]


def measure_labels(
    model: nn.Module,
    loader: TensorLoader,
    fabric: Fabric,
    bar: Bar,
    *,
    scaled: bool = False,
    note: Note | None = None,
) -> dict[str, float]:
    """Accuracy, NLL and ECE of one label for each image; NaN where a logit is not finite.

    With `scaled` also the NLL after the temperature that suits these labels best: what is left of
    the loss once confidences are right (Berta et al., arXiv 2501.19195). `note` is called with
    finite logits and labels.
    """
    names = ("accuracy", "nll", "ece")
    found = predict(model, loader, fabric, bar)
    if not bool(torch.isfinite(found.logits).all()):
        return dict.fromkeys(names, math.nan)
    if note is not None:
        note(found.logits, found.labels)
    values = evaluate_predictions(logits=found.logits, target=found.labels, splits=False)
    measured = {name: float(values[name]) for name in names}
    if scaled:
        rows = to_float64(found.logits)
        cooled = rows / fit_likelihood(rows, found.labels)
        measured["scaled_nll"] = float(F.cross_entropy(cooled, found.labels))
    return measured


_SLOWER = (
    "Try a lower train.learning_rate, train.warmup_epochs of 1 or more, train.clip_norm of 2 or "
    "less, or train.precision 32-true."
)


class DivergenceError(RuntimeError):
    """Training can't go on: the loss is not a finite number."""


@dataclass
class Trainer:
    """Everything that one training needs; validation makes its `measure` after every epoch."""

    fabric: Fabric
    model: nn.Module
    step: Step
    train_loader: TensorLoader | DetectionLoader
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
            training_log(self.run, start, self.fabric.is_global_zero) as write,
            progress_bar("training", steps, show=self.show and self.fabric.is_global_zero) as bar,
        ):
            for epoch in range(start, self.config.epochs):
                torch.manual_seed(fold_seed(self.seed, "epoch", epoch, self.fabric.global_rank))
                record = self._epoch(epoch, bar)
                judged = self._judge(epoch, bar)
                self._end_epoch()  # after validation, from which a loss may learn
                write({"epoch": epoch, **record, **judged})
                # The last checkpoint must have the weights that predict, for whoever loads the run.
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
        self.averaged = AveragedWeights(self.config)
        self.step.loss.to(self.fabric.device)
        if checkpoint is None:
            return 0
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        self.averaged.load_state_dict(checkpoint.beside, self.fabric.device)
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
                sums[name] = sums.get(name, 0) + torch.stack([to_float64(each) for each in pair])
            bar.advance(f"epoch {epoch + 1}/{self.config.epochs}")
        mine = torch.stack(list(sums.values()))  # (names, 2)
        total, count = sum_over_processes(mine, self.fabric).unbind(1)
        return {
            "learning_rate": rate,
            **dict(zip(sums, (total / count.clamp(min=1)).tolist(), strict=True)),
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _train_mode(self) -> None:
        self.model.train()
        self.step.loss.train()
        # Running statistics belong to the weights around them: where these stay, they do.
        for module in self._network.modules() if self.config.freeze else ():
            own = list(module.parameters(recurse=False))
            if isinstance(module, _BatchNorm) and own and not any(p.requires_grad for p in own):
                module.eval()

    def _step(self, number: int, batch: Any, rate: float) -> tuple[Tensor, Totals]:
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
        self.averaged.after_step(self._network)
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
        if epoch or number:
            raise self._diverged(what)
        raise self._diverged(
            what,
            "Nothing was learned before this step, so no rate is to blame: look at what the loss "
            "computes, at the images and labels, at weights that the network started from, and at "
            "train.precision.",
        )

    def _diverged(self, what: str, advice: str = _SLOWER) -> DivergenceError:
        # A user's function by the name that a study has for it, a module by its class.
        name = getattr(self.step.loss, "name", type(self.step.loss).__name__)
        return DivergenceError(f"{what} with {name}. {advice}")

    def _end_epoch(self) -> None:
        for module in self.step.loss.modules():
            if (end_epoch := getattr(module, "end_epoch", None)) is not None:
                cast(Any, end_epoch)()

    def _judge(self, epoch: int, bar: Bar) -> dict[str, float]:
        """Validate the weights that would predict now, and keep them where they are the best."""
        self.averaged.after_epoch(self._network, epoch)
        if self.validation_loader is None:
            return {}
        with self.averaged.predicting(self._network):
            found = self.measure(self.model, self.validation_loader, self.fabric, bar)
            if not all(map(math.isfinite, found.values())):
                raise self._diverged(f"the logits are not finite after epoch {epoch + 1}")
            values = {f"validation_{name}": value for name, value in found.items()}
            self.averaged.judge(self._network, epoch, values)
        return values

    @torch.no_grad()
    def _choose_weights(self) -> None:
        """End with the weights that predict, and write down which they are."""
        said = self.averaged.finish(self._network)
        if self.config.swa is not None and has_statistics(self._network):
            # One more pass over the training set, without any step.
            epoch = self.config.epochs
            self._train_mode()
            self.step.loss.eval()
            torch.manual_seed(fold_seed(self.seed, "epoch", epoch, self.fabric.global_rank))
            self.train_loader.set_epoch(epoch)
            with renewing_statistics(self._network):
                for number, batch in enumerate(self.train_loader):
                    self.step(self.model, number, self.step.prepare(number, batch))
        # Where nothing was averaged or chosen, the last epoch's weights need no record.
        if self.fabric.is_global_zero and (self.config.best or self.averaged.count):
            write_json(self.run.training / KEPT, said)

    def _save(self, epoch: int) -> None:
        if self.fabric.is_global_zero:
            state = Checkpoint(
                epoch,
                self._network.state_dict(),
                self.optimizer.state_dict(),
                self.step.loss.state_dict(),
                self.fabric.strategy.precision.state_dict(),
                {} if epoch == self.config.epochs else self.averaged.state_dict(),
            )
            save_checkpoint(self.run.checkpoint, state)
        self.fabric.barrier()
