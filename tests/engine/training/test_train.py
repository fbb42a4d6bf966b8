"""The training loop with a step of one's own: what it logs, keeps and refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sfumato.data import DetectionLoader, scenes
from sfumato.engine import DivergenceError, RunDirectory, TrainConfig, Trainer, load_checkpoint
from sfumato.engine.config.build import FunctionLoss
from sfumato.engine.training.steps import DetectionStep, Totals


class CountingLoss(nn.Module):
    """Has a state of its own, and is told where an epoch ends."""

    epochs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("epochs", torch.zeros(()))

    def end_epoch(self) -> None:
        self.epochs += 1

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.square().mean()


class SquareStep:
    def __init__(self) -> None:
        self.loss: nn.Module = CountingLoss()

    def prepare(self, number: int, batch: Any) -> Any:
        return batch

    def __call__(self, model: nn.Module, number: int, batch: Any) -> tuple[Tensor, Totals]:
        size = torch.tensor(len(batch.images))
        loss: Tensor = self.loss(model(torch.ones(len(batch.images), 2)))
        return loss, {"step": (number * size, size), "train_loss": (loss.detach() * size, size)}


def _trainer(path: Path, model: nn.Module, step: Any, **train: Any) -> Trainer:
    config = TrainConfig(epochs=2, batch_size=4, channels_last=False, **train)
    loader = DetectionLoader(scenes.generate_objects(10, size=32), config.batch_size)
    fabric = Fabric(accelerator="cpu", devices=1)
    run = RunDirectory(path)
    run.begin({"predict": {}}, {})
    return Trainer(fabric, model, step, loader, config, seed=0, run=run, show=False)


def test_means_count_samples_and_the_loss_is_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    trainer = _trainer(tmp_path / "run", model, SquareStep())
    trainer.fit()
    assert not torch.equal(model.weight, before)
    log = trainer.run.log()
    assert [record["epoch"] for record in log] == [0, 1]
    assert log[0]["step"] == pytest.approx((0 * 4 + 1 * 4 + 2 * 2) / 10)  # the last batch is short
    kept = load_checkpoint(trainer.run.checkpoint)
    assert kept is not None
    assert float(kept.loss["epochs"]) == 2


class BrokenDetector(nn.Module):
    def __init__(self, good_steps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

        self.good_steps = good_steps

    def forward(self, images: list[Tensor], targets: Any) -> dict[str, Tensor]:
        self.good_steps -= 1
        factor = 1.0 if self.good_steps >= 0 else float("nan")
        return {"loss_box": self.weight, "loss_class": self.weight * factor}


def test_a_detector_that_diverges_is_told_what_to_try(tmp_path: Path) -> None:
    step = DetectionStep(torch.device("cpu"))
    with pytest.raises(DivergenceError, match=r"nan at epoch 1, step 2 .*train\.learning_rate"):
        _trainer(tmp_path / "run", BrokenDetector(good_steps=1), step).fit()


def test_at_the_first_step_no_rate_is_to_blame(tmp_path: Path) -> None:
    step = DetectionStep(torch.device("cpu"))
    with pytest.raises(DivergenceError, match=r"step 1 .*look at what the loss computes") as raised:
        _trainer(tmp_path / "run", BrokenDetector(good_steps=0), step).fit()
    assert "train.learning_rate" not in str(raised.value)


def test_a_function_has_the_name_that_a_study_has_for_it(tmp_path: Path) -> None:
    step = SquareStep()
    step.loss = FunctionLoss(partial(nowhere, factor=2.0))
    with pytest.raises(DivergenceError, match=r"with .*test_train:nowhere\."):
        _trainer(tmp_path / "run", nn.Linear(2, 1), step).fit()


def nowhere(outputs: Tensor, factor: float) -> Tensor:
    return outputs.mean() * factor * float("nan")
