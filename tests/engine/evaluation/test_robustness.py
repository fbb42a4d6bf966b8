"""Robustness: each cell equals a plain loop, streamed or stored, and ratios follow Eq. (35)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sfumato.corruptions import (
    CORRUPTIONS,
    alexnet_scores,
    corrupt,
    corruption_generator,
    write_corrupted,
)
from sfumato.data import ArrayDataset, scenes
from sfumato.engine import Robustness, evaluate_robustness
from sfumato.engine.evaluation.robustness import robustness_from

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
NAMES = ("gaussian_noise", "fog")


class _Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


@pytest.fixture(scope="module")
def data() -> ArrayDataset:
    return scenes.generate(37, size=16)


def _evaluate(model: nn.Module, data: ArrayDataset, **changes: object) -> Robustness:
    options: dict[str, object] = {"names": NAMES, "severities": (1, 5), "show": False, **changes}
    return evaluate_robustness(model, data, mean=MEAN, std=STD, **options)  # type: ignore[arg-type]


def test_cells_equal_a_plain_loop(data: ArrayDataset) -> None:
    model = _Linear()
    found = _evaluate(model, data)
    for row, name in enumerate(NAMES):
        for column, severity in enumerate((1, 5)):
            generator = corruption_generator(0, name, severity)
            images = corrupt(data.images, name, severity, generator=generator)
            with torch.no_grad():
                logits = model((images / 255 - 0.5) / 0.25)
            wrong = (logits.argmax(1) != data.labels).double().mean()
            nll = nn.functional.cross_entropy(logits, data.labels)
            assert float(found.error[row, column]) == pytest.approx(float(wrong))
            assert float(found.nll[row, column]) == pytest.approx(float(nll), rel=1e-4)
    assert found.means()["error"] == pytest.approx(float(found.error.mean()))
    again = robustness_from(found.as_dict())
    assert torch.equal(again.ece, found.ece)


def test_batches_do_not_matter_and_modes_are_kept(data: ArrayDataset) -> None:
    model = _Linear().train()
    first, second = _evaluate(model, data), _evaluate(model, data, batch_size=10)
    assert torch.allclose(first.nll, second.nll)
    assert model.training


def test_stored_sets_give_the_same(data: ArrayDataset, tmp_path: Path) -> None:
    model = _Linear()
    write_corrupted(tmp_path, data.images, data.labels, names=NAMES)
    assert torch.allclose(_evaluate(model, data).nll, _evaluate(model, data, stored=tmp_path).nll)


def test_ratios(data: ArrayDataset) -> None:
    found = _evaluate(_Linear(), data)
    other = _evaluate(_Linear(), data)
    own = found.relative_to(other)["nll"]
    assert torch.allclose(own, found.nll.sum(1) / other.nll.sum(1))
    table = alexnet_scores("cifar10", "error", names=NAMES)[:, [0, 4]]
    expected = found.error.sum(1) / table.sum(1)
    assert torch.allclose(found.relative_to("cifar10")["error"], expected)
    with pytest.raises(ValueError, match="same corruptions"):
        found.relative_to(_evaluate(_Linear(), data, names=CORRUPTIONS[:1]))
