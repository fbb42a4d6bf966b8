"""Averages of weights (EMA, SWA, best epoch), and sharpness-aware minimisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato._core.evaluation_mode import with_attribute
from sfumato.engine.config.sections import TrainConfig

Weights = dict[str, Tensor]


@dataclass
class AveragedWeights:
    """Averages and best weights that are kept while training goes on, all of it in checkpoints."""

    train: TrainConfig
    # Of weights and statistics, over `count` steps (`ema`) or epochs (`swa`).
    average: Weights | None = None
    count: int = 0
    # Of the best epoch so far; with averaging their average then.
    best: Weights | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        names = ("average", "count", "best", "record")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        for name, value in state.items():
            if name in ("average", "best"):
                value = {key: tensor.to(device) for key, tensor in value.items()}
            setattr(self, name, value)

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Move the exponential average, statistics of batch normalisation included.

        average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t))
        """
        if self.train.ema is not None:
            self._move(model, 1 - min(self.train.ema, (1 + self.count) / (10 + self.count)))

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, epoch: int) -> None:
        """Add the weights at the end of one of the last `swa` epochs to their mean."""
        if self.train.swa is not None and epoch >= self.train.epochs - self.train.swa:
            self._move(model, 1 / (self.count + 1))

    def _move(self, model: nn.Module, share: float) -> None:
        found = model.state_dict()
        if self.average is None:
            self.average = _copied(model)
            for key, value in self.average.items():
                # Small changes must add up: 16 bits would round them away.
                if value.is_floating_point() and value.element_size() < 4:
                    self.average[key] = value.float()
        else:
            for key, kept in self.average.items():
                if kept.is_floating_point():
                    kept.lerp_(found[key].to(kept), share)
                else:
                    kept.copy_(found[key])
        self.count += 1

    @contextmanager
    def predicting(self, model: nn.Module) -> Iterator[None]:
        """Within, the model has the weights that would predict now: an exponential average."""
        if self.train.ema is None or self.average is None:
            yield
            return
        own = _copied(model)
        model.load_state_dict(self.average)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def judge(self, model: nn.Module, epoch: int, values: Mapping[str, float]) -> None:
        """Keep the model's weights where this epoch is the best so far; of equals the first."""
        name = self.train.best
        if name is None:
            return
        value = values[f"validation_{name}"]
        sign = -1.0 if name == "accuracy" else 1.0
        if not self.record or sign * value < sign * self.record["value"]:
            self.best = _copied(model)
            self.record = {"epoch": epoch, "by": name, "value": value}

    def finish(self, model: nn.Module) -> dict[str, Any]:
        """Give the model the weights that predict; what they are, for the reader of the run."""
        chosen = self.average if self.best is None else self.best
        if chosen is not None:
            model.load_state_dict(chosen)
        said = {
            name: getattr(self.train, name) for name in ("ema", "swa") if getattr(self.train, name)
        }
        return {**(self.record or {"epoch": self.train.epochs - 1}), **said}


def renewing_statistics(model: nn.Module) -> AbstractContextManager[None]:
    """Within, passes in training mode make the statistics of batch normalisation anew.

    An average of weights has seen no image. Frozen layers, in evaluation mode, keep theirs.
    """
    layers = _learning_norms(model)
    for layer in layers:
        layer.reset_running_stats()
    return with_attribute(layers, "momentum", None)  # a cumulative mean


def _learning_norms(model: nn.Module) -> list[_BatchNorm]:
    return [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]


def has_statistics(model: nn.Module) -> bool:
    """Tell whether some layer keeps running statistics of what it has seen."""
    return any(isinstance(p, _BatchNorm) and p.track_running_stats for p in model.modules())


@contextmanager
def at_worst_point(parameters: Sequence[nn.Parameter], rho: float) -> Iterator[None]:
    """Within, weights w are w + rho g / |g| for their gradients g; afterwards exactly w again.

    Where the norm is 0 or not finite (an overflow in half precision), they stay w.

    Reference:
        Foret et al. 2021, Eq. (2), p = 2.
    """
    moved = [(each, each.grad) for each in parameters if each.grad is not None]
    before = [each.detach().clone() for each, _ in moved]
    norm = torch.nn.utils.get_total_norm([gradient for _, gradient in moved])
    is_sound = torch.isfinite(norm) & (norm > 0)
    with torch.no_grad():
        for each, gradient in moved:
            step = gradient * (rho / norm).to(gradient)  # Eq. (2)
            each.add_(torch.where(is_sound, step, torch.zeros_like(step)))
    try:
        yield
    finally:
        with torch.no_grad():
            for (each, _), kept in zip(moved, before, strict=True):
                each.copy_(kept)


def statistics_held(model: nn.Module) -> AbstractContextManager[None]:
    """Within, batch normalisation in training mode leaves its running statistics alone."""
    return with_attribute(_learning_norms(model), "track_running_stats", False)


class Moment:
    """Random numbers (dropout masks) and the memory of a loss, to go through a pass once more."""

    def __init__(self, device: torch.device, loss: nn.Module) -> None:
        self._device = device
        self._loss = loss
        self._memory = _copied(loss)
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, everything is as it was when this was made."""
        after = _copied(self._loss)
        self._loss.load_state_dict(self._memory)
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        try:
            yield
        finally:
            self._loss.load_state_dict(after)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}
