"""Blur: the mean of neighbours, in every kernel and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from sfumato.features import Blur, blur_features

PADDINGS = ("zeros", "replicate", "reflect", "grow")
KERNELS = ((1,), (1, 1), (1, 2, 1), (1, 4, 6, 4, 1), (3, 1, 2), (1, 0, 2.5, 4))
NUMPY_MODES = {"zeros": "constant", "replicate": "edge", "reflect": "reflect", "grow": "constant"}


def loop(z: np.ndarray, kernel: tuple[float, ...], padding: str) -> np.ndarray:
    """Eq. (8) point by point."""
    size = len(kernel)
    left, right = (size // 2, size // 2) if padding == "grow" else ((size - 1) // 2, size // 2)
    pads = ((0, 0), (0, 0), (left, right), (left, right))
    padded = np.pad(z, pads, mode=NUMPY_MODES[padding])
    out = np.zeros((*z.shape[:2], padded.shape[2] - size + 1, padded.shape[3] - size + 1))
    norm = sum(kernel) ** 2
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            for a, ka in enumerate(kernel):
                for b, kb in enumerate(kernel):
                    out[:, :, i, j] += ka * kb / norm * padded[:, :, i + a, j + b]
    return out


def test_hand_worked() -> None:
    z = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64)
    assert blur_features(z)[0, 0].tolist() == [[2.5, 1.5], [1.75, 1.0]]
    assert blur_features(z, padding="replicate")[0, 0].tolist() == [[2.5, 3.0], [3.5, 4.0]]
    assert blur_features(z, padding="reflect")[0, 0].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    grown = [[0.25, 0.75, 0.5], [1.0, 2.5, 1.5], [0.75, 1.75, 1.0]]
    assert blur_features(z, padding="grow")[0, 0].tolist() == grown


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_against_loop(kernel: tuple[float, ...], padding: Any) -> None:
    z = torch.randn(2, 3, 6, 9, dtype=torch.float64)
    expected = loop(z.numpy(), kernel, padding)
    np.testing.assert_allclose(blur_features(z, kernel, padding=padding), expected, atol=1e-14)
    np.testing.assert_allclose(Blur(kernel, padding)(z), expected, atol=1e-14)


@pytest.mark.parametrize("name", ["a", "b"])
def test_golden(golden: Callable[[str], dict[str, Any]], name: str) -> None:
    data = golden("smooth")
    z = torch.from_numpy(data[f"{name}.x"])
    for label, kernel in (("k11", (1, 1)), ("k121", (1, 2, 1)), ("k14641", (1, 4, 6, 4, 1))):
        for stored, padding in (
            ("constant", "zeros"),
            ("replicate", "replicate"),
            ("reflect", "reflect"),
        ):
            ours = Blur(kernel, padding)(z)  # type: ignore[arg-type]
            np.testing.assert_allclose(ours, data[f"{name}.blur.{label}.{stored}"], rtol=1e-12)
    np.testing.assert_allclose(Blur(padding="grow")(z), data[f"{name}.blur_pool"], rtol=1e-12)


def test_grow_is_the_released_pooling() -> None:
    z = torch.randn(2, 3, 5, 4)
    expected = F.avg_pool2d(z, 2, stride=1, padding=1)
    torch.testing.assert_close(blur_features(z, padding="grow"), expected)


@pytest.mark.parametrize("padding", PADDINGS)
def test_kernel_of_one_is_identity(padding: Any) -> None:
    z = torch.randn(2, 3, 5, 4)
    assert torch.equal(Blur((7,), padding)(z), z)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel", [(1, 1), (1, 2, 1)])
def test_gradients(kernel: tuple[float, ...], padding: Any) -> None:
    z = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Blur(kernel, padding), z)
    assert torch.autograd.gradgradcheck(Blur(kernel, padding), z)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (1, 1, 4, 9), (2, 5, 7, 3)])
def test_shapes_and_memory_format(shape: tuple[int, ...], padding: Any) -> None:
    z = torch.randn(shape).to(memory_format=torch.channels_last)
    out = Blur(padding=padding)(z)
    grown = 1 if padding == "grow" else 0
    assert out.shape == (*shape[:2], shape[2] + grown, shape[3] + grown)
    if shape[0] and shape[1] > 1:
        assert out.is_contiguous(memory_format=torch.channels_last)


def test_single_point() -> None:
    point = torch.full((1, 1, 1, 1), 8.0)
    assert blur_features(point).item() == 2.0
    assert blur_features(point, padding="replicate").item() == 8.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    z = torch.randn(2, 3, 4, 4)
    out = Blur()(z.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), Blur()(z), atol=2e-2, rtol=2e-2)


def test_autocast_follows_convolutions() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert Blur()(torch.randn(1, 2, 4, 4)).dtype == torch.bfloat16


def test_nothing_in_state_dict_but_moves_with_the_model() -> None:
    module = Blur((1, 2, 1))
    assert list(module.state_dict()) == []
    assert list(module.parameters()) == []
    assert module.to(torch.float16).weight.dtype == torch.float16


def test_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        module = Blur((1, 2, 1))
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    assert torch.equal(module.weight, Blur((1, 2, 1)).weight)


@settings(max_examples=40)
@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(lambda k: sum(k) > 0.1),
    st.sampled_from(["replicate", "reflect"]),
    st.integers(0, 1000),
)
def test_is_a_mean(kernel: list[float], padding: Any, seed: int) -> None:
    z = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(seed)).double()
    out = blur_features(z, kernel, padding=padding)
    assert out.min() >= z.min() - 1e-12
    assert out.max() <= z.max() + 1e-12


def test_repr() -> None:
    assert repr(Blur((1, 2, 1), "reflect")) == "Blur((1, 2, 1), padding='reflect')"


def test_bad_input() -> None:
    for kernel in ((), (0, 0), (1, -1), (1, float("nan"))):
        with pytest.raises(ValueError, match="kernel must hold non-negative numbers"):
            Blur(kernel)
    with pytest.raises(TypeError, match="kernel must be a vector of numbers"):
        Blur("121")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="padding must be one of"):
        Blur(padding="same")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"feature map \(N, C, H, W\), got shape \(2, 3\)"):
        Blur()(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="z must be floating point"):
        Blur()(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    with pytest.raises(
        ValueError, match="reflect padding of a kernel of 2 needs maps of at least 2"
    ):
        Blur(padding="reflect")(torch.zeros(1, 1, 1, 4))
