"""Evaluation mode for a while: every module's own mode comes back, also after an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato._core.evaluation_mode import evaluating, keeping_modes


def _partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()).train()
    model[1].eval()
    return model


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_evaluates_without_gradients_and_restores_each_module() -> None:
    model = _partly_frozen()
    with evaluating(model):
        assert not any(_modes(model))
        assert not model(torch.zeros(3, 2)).requires_grad
    assert _modes(model) == [True, True, False, True]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("context", [evaluating, keeping_modes])
def test_restores_when_something_raises(context: type) -> None:
    model = _partly_frozen()
    with pytest.raises(RuntimeError), context(model):
        model.eval()(torch.zeros(3, 5))  # the wrong number of features
    assert _modes(model) == [True, True, False, True]
    assert torch.is_grad_enabled()
