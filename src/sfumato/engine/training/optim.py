"""Optimisers and learning-rate schedules; a rate is a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from sfumato.engine.config.sections import TrainConfig


def build_optimizer(
    parameters: Iterable[nn.Parameter], train: TrainConfig
) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW as configured."""
    if train.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=train.learning_rate,
            momentum=train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
        )
    kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=train.learning_rate, weight_decay=train.weight_decay)


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
    total = max(1, train.epochs * steps_per_epoch - warmup)
    return train.learning_rate * _factor(step - warmup, total, steps_per_epoch, warmup, train)


def _factor(step: int, total: int, per_epoch: int, warmup: int, train: TrainConfig) -> float:
    if train.schedule == "constant":
        return 1.0
    if train.schedule == "multistep":
        epoch = (step + warmup) / per_epoch
        return train.decay_factor ** sum(epoch >= milestone for milestone in train.milestones)
    if train.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / total))
    return _one_cycle(step / total)


def _one_cycle(
    progress: float, rise: float = 0.3, start: float = 1 / 25, end: float = 1e-4
) -> float:
    """Cosine up from `start` over the first `rise` of training, cosine down to `end`."""
    if progress < rise:
        low, high, share = start, 1.0, progress / rise
    else:
        low, high, share = 1.0, end, (progress - rise) / (1 - rise)
    return high + (low - high) * 0.5 * (1 + math.cos(math.pi * share))
