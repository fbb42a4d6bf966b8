"""Sharpness-aware steps: the gradient of the worst point nearby, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.engine import RunConfig, RunDirectory, TrainConfig, Trainer, load_network, parse, run
from sfumato.engine.fabric import Fabric
from sfumato.engine.training.averages import at_worst_point, statistics_held
from sfumato.engine.training.steps import Totals

BATCH = torch.tensor([[1.0, 2.0], [0.5, -1.0]])


class QuarticStep:
    """The mean of fourth powers: a loss whose gradient differs from point to point."""

    def __init__(self) -> None:
        self.loss = nn.Module()
        self.loss.register_buffer("passes", torch.zeros(()))

    def prepare(self, number: int, batch: Any) -> Any:
        return batch

    def __call__(self, model: nn.Module, number: int, batch: Any) -> tuple[Tensor, Totals]:
        self.loss.get_buffer("passes").add_(1)
        loss: Tensor = model(batch).pow(4).mean()
        return loss, {"train_loss": (loss.detach(), torch.tensor(1))}


class OneBatch:
    def set_epoch(self, epoch: int) -> None: ...

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter([BATCH])


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_is_that_of_the_paper(tmp_path: Path, clip: float | None) -> None:
    torch.manual_seed(0)
    model, step = nn.Linear(2, 1), QuarticStep()
    start = [p.detach().double().clone() for p in model.parameters()]
    train = TrainConfig(
        epochs=1, batch_size=2, schedule="constant", learning_rate=0.1, momentum=0.0,
        weight_decay=0.0, clip_norm=clip, sam=0.3, channels_last=False,
    )  # fmt: skip
    directory = RunDirectory(tmp_path / "run")
    directory.begin({"predict": {}}, {})
    fabric = Fabric(accelerator="cpu", devices=1)
    Trainer(fabric, model, step, OneBatch(), train, seed=0, run=directory, show=False).fit()

    def gradient(weight: Tensor, bias: Tensor) -> list[Tensor]:
        output = BATCH.double() @ weight.T + bias  # (2, 1)
        slope = 4 * output**3 / len(BATCH)
        return [slope.T @ BATCH.double(), slope.sum(0)]

    def norm(values: list[Tensor]) -> Tensor:
        return torch.cat([each.flatten() for each in values]).norm()

    first = gradient(*start)
    worst = gradient(*(w + 0.3 * g / norm(first) for w, g in zip(start, first, strict=True)))
    size = norm(worst)
    factor = 1.0 if clip is None else min(1.0, clip / float(size))
    expected = [w - 0.1 * factor * g for w, g in zip(start, worst, strict=True)]
    found = [p.detach().double() for p in model.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert float(step.loss.get_buffer("passes")) == 1  # what is remembered is of the first pass


def test_weights_come_back_to_the_bit_and_bad_gradients_move_nothing() -> None:
    weight = nn.Parameter(torch.tensor([0.1, 1e8]))
    before = weight.detach().clone()
    for gradient, moves in (([3.0, 4.0], True), ([0.0, 0.0], False), ([torch.inf, 1.0], False)):
        weight.grad = torch.tensor(gradient)
        with at_worst_point([weight], 0.5):
            assert torch.equal(weight, before) is not moves
        assert torch.equal(weight, before)
    with at_worst_point([nn.Parameter(torch.ones(1))], 0.5):  # nothing has a gradient
        pass


def test_statistics_are_left_alone_in_between() -> None:
    layer = nn.BatchNorm1d(2)
    kept = {key: value.clone() for key, value in layer.state_dict().items()}
    with statistics_held(layer):
        held = layer(BATCH)
    assert all(torch.equal(value, kept[key]) for key, value in layer.state_dict().items())
    assert torch.equal(layer(BATCH), held)
    assert not torch.equal(layer.state_dict()["running_mean"], kept["running_mean"])


def test_a_radius_of_nothing_is_ordinary_training(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """With dropout masks, a history of samples and running statistics: each counts once."""
    tiny["model"] |= {"dropout": 0.3}
    tiny["loss"] = "crl"
    train = {"epochs": 2, "batch_size": 32}
    weights = []
    for extra in ({}, {"sam": 1e-12}):
        config = parse(RunConfig, {**tiny, "train": {**train, **extra}})
        weights.append(load_network(run(config, tmp_path, show=False)).network.state_dict())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
