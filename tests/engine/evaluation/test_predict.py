"""The prediction loop: modes come back in every evaluation, also where a forward pass raises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sfumato._core.text import Bar
from sfumato.data import TensorLoader, scenes
from sfumato.data.dataset import Normalise
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.evaluation.altered import (
    corrupted_batches,
    measure_steadiness,
    perturbed_sequences,
    predict_altered,
)
from sfumato.engine.evaluation.classifier import context_metrics
from sfumato.engine.evaluation.context import Context
from sfumato.engine.evaluation.pixels import PixelEvaluator, measure_pixels
from sfumato.engine.tasks.detect import detect
from sfumato.engine.training.predict import predict, predict_here

STATISTICS: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
CPU = torch.device("cpu")


class Partly(nn.Module):
    """In training mode except for its frozen norm; fails after some passes."""

    def __init__(self, passes: float = math.inf) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3).eval()
        self.passes = passes
        self.modes: set[bool] = set()

    def forward(self, images: Tensor) -> Tensor:
        self.modes.add(self.training)
        self.passes -= 1
        if self.passes < 0:
            raise RuntimeError("no more passes")
        return self.norm(images).mean((2, 3)).repeat(1, 4)[:, :10]


def _clean(model: nn.Module) -> object:
    return predict(model, _loader(), Fabric(accelerator="cpu", devices=1), Bar())


def _corrupted(model: nn.Module) -> object:
    batches = corrupted_batches(scenes.generate(6, size=16), "fog", 1, batch_size=4)
    return predict_altered(model, batches, Normalise(3, **STATISTICS))


def _perturbed(model: nn.Module) -> object:
    frames = perturbed_sequences(scenes.generate(17, size=16), "brightness")
    return measure_steadiness(model, frames, "brightness", Normalise(3, **STATISTICS))


def _context(model: nn.Module) -> object:
    return context_metrics(predict_here(model, _loader(), Bar()))


def _validated_pixels(model: nn.Module) -> object:
    return measure_pixels(model, _loader(), Fabric(accelerator="cpu", devices=1), Bar())


def _pixels(model: nn.Module) -> object:
    config = RunConfig(data="scenes", model="resnet", train={"batch_size": 4})
    context = Context(Fabric(accelerator="cpu", devices=1), config, model, None, **STATISTICS)
    return PixelEvaluator(context).sums("test", scenes.generate(6, size=16))


def _objects(model: nn.Module) -> object:
    return detect(model, scenes.generate_objects(17, size=32), CPU)


def _loader() -> TensorLoader:
    return TensorLoader(scenes.generate(6, size=16), 4, **STATISTICS)


@pytest.mark.parametrize("evaluate", [_clean, _corrupted, _perturbed, _context])
def test_modes_are_kept(evaluate: Callable[[nn.Module], object]) -> None:
    model = Partly()
    evaluate(model)
    assert model.modes == {False}
    assert (model.training, model.norm.training) == (True, False)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "evaluate",
    [_clean, _corrupted, _perturbed, _context, _validated_pixels, _pixels, _objects],
)
def test_modes_are_kept_where_a_forward_pass_raises(
    evaluate: Callable[[nn.Module], object],
) -> None:
    model = Partly(passes=0)
    with pytest.raises(RuntimeError, match="no more passes"):
        evaluate(model)
    assert (model.training, model.norm.training) == (True, False)
    assert torch.is_grad_enabled()
