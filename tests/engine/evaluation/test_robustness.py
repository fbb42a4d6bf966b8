"""Robustness: each cell equals a plain loop, streamed or stored, and ratios follow Eq. (35)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sfumato
from sfumato.corruptions import corrupt, corruption_generator, read_corrupted, write_corrupted
from sfumato.data import ArrayDataset, scenes
from sfumato.data.dataset import Normalise
from sfumato.engine.evaluation.altered import (
    corrupted_batches,
    predict_altered,
    relative_scores,
)
from sfumato.metrics import alexnet_scores

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
NAMES, SEVERITIES = ("gaussian_noise", "fog"), (1, 5)


class _Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


@pytest.fixture(scope="module")
def data() -> ArrayDataset:
    return scenes.generate(37, size=16)


def _evaluate(model: nn.Module, data: ArrayDataset, **changes: Any) -> dict[str, Any]:
    options = {"corruptions": NAMES, "severities": SEVERITIES, "resamples": 0, **changes}
    found = sfumato.evaluate(model, data, mean=MEAN, std=STD, quiet=True, **options)
    corrupted: dict[str, Any] = found["corrupted"]
    return corrupted


def test_cells_equal_a_plain_loop(data: ArrayDataset) -> None:
    model = _Linear()
    found = _evaluate(model, data)
    assert (found["names"], found["severities"]) == (list(NAMES), list(SEVERITIES))
    for row, name in enumerate(NAMES):
        for column, severity in enumerate(SEVERITIES):
            generator = corruption_generator(0, name, severity)
            images = corrupt(data.images, name, severity, generator=generator)
            with torch.no_grad():
                logits = model((images / 255 - 0.5) / 0.25)
            wrong = (logits.argmax(1) != data.labels).double().mean()
            nll = nn.functional.cross_entropy(logits, data.labels)
            assert found["cells"]["error"][row][column] == pytest.approx(float(wrong))
            assert found["cells"]["nll"][row][column] == pytest.approx(float(nll), rel=1e-4)
    mean = float(torch.tensor(found["cells"]["error"]).double().mean())
    assert found["error"] == pytest.approx(mean)


def test_batches_do_not_matter_and_modes_are_kept(data: ArrayDataset) -> None:
    model = _Linear().train()
    first, second = _evaluate(model, data), _evaluate(model, data, batch_size=10)
    nlls = (torch.tensor(each["cells"]["nll"]) for each in (first, second))
    assert torch.allclose(*nlls)
    assert model.training


def test_stored_sets_give_the_same(data: ArrayDataset, tmp_path: Path) -> None:
    model, normalise = _Linear(), Normalise(3, MEAN, STD)
    write_corrupted(tmp_path, data.images, data.labels, names=NAMES)
    for name in NAMES:
        made = predict_altered(model, corrupted_batches(data, name, 5, 10), normalise)
        read = predict_altered(model, read_corrupted(tmp_path, name, 5, batch_size=10), normalise)
        assert torch.allclose(made[0], read[0])
        assert torch.equal(made[1], read[1])


def test_ratios_to_alexnet(data: ArrayDataset) -> None:
    found = _evaluate(_Linear(), data)
    ratios = relative_scores(found, "cifar10")
    for metric, mean in (("error", "mean_ce"), ("nll", "mean_cnll"), ("ece", "mean_cece")):
        table = alexnet_scores("cifar10", metric, names=NAMES)[:, [0, 4]]  # type: ignore[arg-type]
        own = torch.tensor(found["cells"][metric], dtype=torch.float64)
        expected = own.sum(1) / table.sum(1)
        assert torch.allclose(torch.tensor(ratios["cells"][metric]).double(), expected)
        assert ratios[mean] == pytest.approx(float(expected.mean()))
