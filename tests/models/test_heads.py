"""Classifier heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfumato.models import classifier
from sfumato.models.layers import GlobalMedianPool2d


@pytest.mark.parametrize("side", [1, 2, 3, 4, 7])
def test_median_against_sorting(side: int) -> None:
    z = torch.randn(3, 5, side, side)
    ordered = z.flatten(2).sort(dim=2).values
    expected = ordered[..., side**2 // 2]  # the middle, the upper one of two
    torch.testing.assert_close(GlobalMedianPool2d()(z)[..., 0, 0], expected)


def test_median_is_the_released_one_for_an_even_number_of_points() -> None:
    z = torch.randn(2, 3, 4, 4)
    released = z.flatten(2).topk(k=8).values[..., -1]
    torch.testing.assert_close(GlobalMedianPool2d()(z)[..., 0, 0], released)


def test_pools() -> None:
    z = torch.randn(2, 6, 4, 5)
    for head, pooled in (("gap", z.mean((2, 3))), ("gmaxp", z.amax((2, 3)))):
        module = classifier(head, 6, 3)  # type: ignore[arg-type]
        torch.testing.assert_close(module(z), module.linear(pooled))


def test_mlp() -> None:
    module = classifier("mlp", 6, 3, hidden=11, side=2)
    assert [m.out_features for m in module if isinstance(m, nn.Linear)] == [11, 11, 3]
    assert module[2].in_features == 24
    assert [m.p for m in module if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    assert module(torch.randn(2, 6, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize("head", ["gap", "mlp", "gmaxp", "gmedp"])
def test_gradcheck(head: Any) -> None:
    module = classifier(head, 2, 3, hidden=4, side=2).double().eval()
    z = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, z)
