"""Weights that are kept beside those in training, and that predict in the end.

An average of them (`train.ema`, `train.swa`), and those of the best epoch (`train.best`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato.engine.config.sections import TrainConfig

Weights = dict[str, Tensor]
_SLOWEST_START = 10  # decay of step t is at most (1 + t) / (10 + t)


@dataclass
class WeightsBeside:
    """What is kept while training goes on; all of it is in checkpoints.

    Attributes:
        average: of weights and statistics; None until there is one.
        count: how many steps (`ema`) or epochs (`swa`) are in it.
        best: weights of the best epoch so far, with averaging their average then.
        record: `epoch` (from 0) and `value` of the best, for the reader of the run.
    """

    train: TrainConfig
    average: Weights | None = None
    count: int = 0
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
        if self.train.ema is None:
            return
        decay = min(self.train.ema, (1 + self.count) / (_SLOWEST_START + self.count))
        self._move(model, 1 - decay)

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, epoch: int) -> None:
        """Add the weights at the end of one of the last `swa` epochs to their mean."""
        if self.train.swa is not None and epoch >= self.train.epochs - self.train.swa:
            self._move(model, 1 / (self.count + 1))

    def _move(self, model: nn.Module, share: float) -> None:
        found = model.state_dict()
        if self.average is None:
            self.average = {key: _precise(value) for key, value in found.items()}
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
        own = {key: value.clone() for key, value in model.state_dict().items()}
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
            self.best = {key: tensor.clone() for key, tensor in model.state_dict().items()}
            self.record = {"epoch": epoch, "by": name, "value": value}

    def finish(self, model: nn.Module) -> dict[str, Any]:
        """Give the model the weights that predict; what they are, for the reader of the run."""
        chosen = self.average if self.best is None else self.best
        if chosen is not None:
            model.load_state_dict(chosen)
        averaged = {"ema": self.train.ema, "swa": self.train.swa}
        said = {name: value for name, value in averaged.items() if value is not None}
        epoch = {} if self.record else {"epoch": self.train.epochs - 1}
        return {**epoch, **self.record, **said}


def _precise(value: Tensor) -> Tensor:
    """A copy that small changes add up in: 16 bits would round them away."""
    is_half = value.is_floating_point() and value.element_size() < 4
    return value.float() if is_half else value.clone()


@contextmanager
def renewing_statistics(model: nn.Module) -> Iterator[None]:
    """Within, passes in training mode make the statistics of batch normalisation anew.

    An average of weights has seen no image: its statistics are means over all batches that the
    passes show. Layers in evaluation mode, which are frozen, keep theirs.
    """
    layers = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative mean
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def has_statistics(model: nn.Module) -> bool:
    """Whether some layer keeps running statistics of what it has seen."""
    return any(isinstance(p, _BatchNorm) and p.track_running_stats for p in model.modules())
