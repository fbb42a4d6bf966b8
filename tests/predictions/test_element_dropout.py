"""Dropout with cheap masks: the law of `F.dropout`, layouts, types, extreme rates, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.predictions.sampling import element_dropout


def _dropped(shape: tuple[int, ...], rate: float, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return element_dropout(torch.ones(shape, dtype=torch.float64), rate) == 0


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_as_many_are_dropped_as_the_rate_says(rate: float) -> None:
    found = float(_dropped((1000, 1000), rate).double().mean())
    assert abs(found - rate) < 4 * math.sqrt(rate * (1 - rate) / 1e6) + 1e-5


def test_elements_are_independent() -> None:
    """Neighbours share 64 random bits; no lag of theirs is correlated, nor are rows or seeds."""
    mask = _dropped((1 << 20,), 0.3).double() - 0.3
    for lag in (1, 2, 3, 4, 5, 8, 64, 1024):
        assert abs(float((mask[lag:] * mask[:-lag]).mean()) / 0.21) < 5 / 1024, lag
    other = _dropped((1 << 20,), 0.3, seed=1).double() - 0.3
    assert abs(float((mask * other).mean()) / 0.21) < 5 / 1024


def test_the_four_lanes_are_alike() -> None:
    shares = _dropped((1 << 20,), 0.2).view(-1, 4).double().mean(0)
    assert torch.allclose(shares, torch.full((4,), 0.2, dtype=torch.float64), atol=0.004)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_kept_is_scaled(dtype: torch.dtype) -> None:
    x = torch.randn(50, 7).to(dtype)
    found = element_dropout(x, 0.25)
    assert found.dtype == dtype
    kept = found != 0
    assert 0 < int(kept.sum()) < x.numel()
    assert torch.allclose(found[kept], x[kept] * torch.tensor(1 / 0.75, dtype=dtype), rtol=1e-2)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(4, -1, -1, -1),
        lambda x: x[:0],
        lambda x: x[0, 0, 0, 0],
    ],
)
def test_any_layout(layout: Callable[[Tensor], Tensor]) -> None:
    x = layout(torch.rand(4, 6, 5, 3) + 1)
    found = element_dropout(x, 0.5)
    assert found.shape == x.shape
    assert bool(torch.all((found == 0) | (found == 2 * x)))
    if x.is_contiguous(memory_format=torch.channels_last) and x.ndim == 4 and len(x) > 1:
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_in_place() -> None:
    x = torch.ones(8, 8)
    torch.manual_seed(0)
    expected = element_dropout(x, 0.5)
    torch.manual_seed(0)
    assert element_dropout(x, 0.5, inplace=True) is x
    assert torch.equal(x, expected)


def test_seeds_decide_and_threads_do_not() -> None:
    threads = torch.get_num_threads()
    masks = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            masks.append(_dropped((300, 999), 0.3))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], _dropped((300, 999), 0.3, seed=1))


@pytest.mark.parametrize("rate", [0.0, 1e-7, 1.0])
def test_rates_at_the_ends_are_those_of_torch(rate: float) -> None:
    x = torch.randn(20)
    assert torch.equal(element_dropout(x, rate), F.dropout(x, rate))
    assert element_dropout(x, 0.5, training=False) is x


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_no_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="dropout probability"):
        element_dropout(torch.ones(3), rate)


def test_gradient_passes_what_is_kept() -> None:
    x = torch.randn(30, dtype=torch.float64, requires_grad=True)
    found = element_dropout(x, 0.25)
    found.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.where(found == 0, 0.0, 1 / 0.75).double())
