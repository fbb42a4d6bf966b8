"""The compiled smoothing layer, against the same in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import sfumato.ops.library as native
from sfumato.features import Smooth, blur_features, bound_features, smooth_features
from sfumato.ops.library import can_smooth

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (3, 16, 8, 8), (2, 33, 1, 4), (1, 5, 6, 1)]


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    z = 20 * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return z.contiguous(memory_format=torch.channels_last)


def in_pytorch(z: Tensor, temperature: float = 10.0) -> Tensor:
    return blur_features(bound_features(z, temperature=temperature))


@pytest.mark.parametrize("temperature", [10.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradient(shape: tuple[int, ...], dtype: torch.dtype, temperature: float) -> None:
    z = draw(shape, dtype).requires_grad_()
    assert can_smooth(z)
    upstream = torch.randn(shape, dtype=dtype)
    found = Smooth(temperature=temperature)(z)
    expected = in_pytorch(z, temperature)
    assert torch.equal(smooth_features(z, temperature=temperature), found)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, z, upstream)[0], torch.autograd.grad(expected, z, upstream)[0]
    )


def test_first_and_second_derivative() -> None:
    z = draw((2, 2, 3, 4), torch.float64).requires_grad_()
    assert gradcheck(Smooth(), z)
    assert gradgradcheck(Smooth(), z)


def test_small_values_keep_their_precision() -> None:
    z = torch.logspace(-30, 2, 64).view(1, 64, 1, 1)
    z = z.contiguous(memory_format=torch.channels_last)
    found = Smooth()(z)
    expected = in_pytorch(z.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


def test_special_values() -> None:
    values = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 1.0])
    z = values.view(1, 5, 1, 1).contiguous(memory_format=torch.channels_last).requires_grad_()
    found = Smooth()(z)
    torch.testing.assert_close(found, in_pytorch(z), equal_nan=True)
    (gradient,) = torch.autograd.grad(found.sum(), z)
    assert gradient.flatten().isnan().tolist() == [True, False, False, False, False]
    assert gradient.flatten()[1:4].tolist() == [0.0, 0.0, 0.0]


def test_other_layouts_and_layers_are_left_to_pytorch() -> None:
    z = torch.randn(2, 3, 4, 4)
    assert not can_smooth(z)
    assert not can_smooth(draw((2, 3, 4, 4)).to(torch.bfloat16))
    last = z.contiguous(memory_format=torch.channels_last)
    for options in ({"kernel": (1, 2, 1)}, {"padding": "replicate"}, {"prob": "relu6"}):
        torch.testing.assert_close(Smooth(**options)(last), Smooth(**options)(z))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # of torch.func.jvp
def test_transforms_and_forward_mode() -> None:
    z = draw((2, 3, 4, 4))
    torch.testing.assert_close(torch.func.vmap(Smooth())(z.unsqueeze(0))[0], Smooth()(z))
    _, tangent = torch.func.jvp(Smooth(), (z,), (torch.ones_like(z),))
    assert tangent.isfinite().all()


def test_many_gradients_at_once() -> None:
    z = draw((1, 2, 3, 3)).requires_grad_()
    upstream = torch.randn(4, 1, 2, 3, 3)
    (found,) = torch.autograd.grad(Smooth()(z), z, upstream, is_grads_batched=True)
    one = torch.autograd.grad(Smooth()(z), z, upstream[2])[0]
    torch.testing.assert_close(found[2], one)


def test_modes_that_watch_operations_see_all_of_them() -> None:
    z = draw((1, 2, 3, 3))
    graph = make_fx(Smooth())(z)
    torch.testing.assert_close(graph(z + 1), Smooth()(z + 1))
    with FlopCounterMode(display=False) as counter:
        Smooth()(z)
    assert counter.get_total_flops() > 0


def test_maps_without_values_at_their_address_go_to_pytorch() -> None:
    maps = torch.randn(2, 3, 4, 4, dtype=torch.complex64).conj().imag
    maps = maps.contiguous(memory_format=torch.channels_last)
    negated = torch.randn(2, 4, 4, 3, dtype=torch.complex64).conj().imag.permute(0, 3, 1, 2)
    zeros = torch._efficientzerotensor((2, 4, 4, 3)).permute(0, 3, 1, 2)
    assert can_smooth(maps)
    assert not can_smooth(zeros)
    assert not can_smooth(negated)
    expected = blur_features(bound_features(negated.clone()))
    torch.testing.assert_close(smooth_features(negated), expected)
