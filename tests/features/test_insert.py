"""Inserting layers without renaming parameters."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from sfumato.features.insertion import insert_after, insert_before


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2))
    )


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_values_and_keys(model: nn.Sequential) -> None:
    x = torch.randn(4, 3)
    first, middle, last = model
    expected = last(3.0 * (middle(7.0 * (2.0 * first(x)))))
    keys = list(model.state_dict())
    insert_after(first, Scale(2.0), "scale")
    insert_before(middle, Scale(7.0), "scale")
    insert_before(last, Scale(3.0), "scale")
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == keys
    names = [name for name, part in model.named_modules() if isinstance(part, Scale)]
    assert names == ["0.scale", "1.scale", "2.scale"]


def test_after_a_leaf(model: nn.Sequential) -> None:
    x = torch.randn(4, 3)
    expected = 2.0 * model[1](x)
    insert_after(model[1], Scale(2.0), "scale")
    torch.testing.assert_close(model[1](x), expected)


def test_survives_copies_and_pickle(model: nn.Sequential) -> None:
    insert_after(model[1], Scale(2.0), "scale")
    x = torch.randn(4, 3)
    expected = model(x)
    clone = copy.deepcopy(model)
    clone[1].scale.factor = 5.0
    assert torch.equal(model(x), expected)  # the copy's hook runs the copy's layer
    assert not torch.equal(clone(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)


def test_names_do_not_collide(model: nn.Sequential) -> None:
    insert_after(model[1], Scale(2.0), "weight")
    insert_after(model[1], Scale(2.0), "scale")
    insert_after(model[1], Scale(2.0), "scale")
    assert list(dict(model[1].named_children())) == ["weight2", "scale", "scale2"]
