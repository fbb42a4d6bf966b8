"""Learning rates against torch's own schedulers and hand-worked values."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from sfumato.engine import TrainConfig
from sfumato.engine.training.loop import build_optimizer, learning_rate


def _rates(train: TrainConfig, per_epoch: int) -> list[float]:
    return [learning_rate(step, per_epoch, train) for step in range(train.epochs * per_epoch)]


def test_cosine_equals_torch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    expected = []
    for _ in range(40):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert _rates(TrainConfig(epochs=4, schedule="cosine"), 10) == pytest.approx(expected)


def test_multistep_drops_at_its_milestones() -> None:
    train = TrainConfig(epochs=4, schedule="multistep", milestones=[1, 3], decay_factor=0.1)
    assert _rates(train, 2) == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001])


def test_warmup_is_linear_and_part_of_the_epochs() -> None:
    train = TrainConfig(epochs=3, schedule="constant", warmup_epochs=1.0)
    assert _rates(train, 4) == pytest.approx([0.025, 0.05, 0.075, *[0.1] * 9])


def test_one_cycle_rises_to_the_rate_and_falls_to_nearly_nothing() -> None:
    rates = _rates(TrainConfig(epochs=10, schedule="onecycle"), 10)
    peak = max(range(100), key=rates.__getitem__)
    assert rates[0] == pytest.approx(0.1 / 25)
    assert peak == 30
    assert rates[peak] == pytest.approx(0.1)
    assert all(a < b for a, b in itertools.pairwise(rates[:31]))
    assert all(a > b for a, b in itertools.pairwise(rates[30:]))
    assert rates[-1] < 1e-3
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_optimizer_takes_its_settings(name: str, kind: type) -> None:
    train = TrainConfig.model_validate({"optimizer": name, "weight_decay": 0.01})
    optimizer = build_optimizer([nn.Parameter(torch.zeros(2))], train)
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["weight_decay"] == 0.01
