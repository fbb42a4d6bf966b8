"""Diffusion noise: hand-worked values, golden vectors, the law of its variance, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sfumato.inputs import diffuse

Golden = Callable[[str], dict[str, Any]]


def test_hand_worked_value() -> None:
    images, noise = torch.tensor([[[[2.0]]], [[[2.0]]]]), torch.tensor([[[[-4.0]]], [[[1.0]]]])
    # cos 60 = 1/2, sin 60 = sqrt(3)/2; then cos 30 and sin 30.
    mixed = diffuse(images, torch.tensor([2 / 3, 1 / 3]), noise=noise).flatten()
    expected = torch.tensor([1 - 2 * math.sqrt(3), math.sqrt(3) + 0.5])
    torch.testing.assert_close(mixed, expected)


def test_equals_a_loop_in_numpy() -> None:
    rng = np.random.default_rng(0)
    images, noise, t = rng.normal(size=(3, 2, 4, 5)), rng.normal(size=(3, 2, 4, 5)), rng.random(3)
    mixed = diffuse(torch.tensor(images), torch.tensor(t), noise=torch.tensor(noise))
    for i in range(3):
        expected = np.cos(t[i] * np.pi / 2) * images[i] + np.sin(t[i] * np.pi / 2) * noise[i]
        np.testing.assert_allclose(mixed[i], expected, rtol=1e-14)


def test_equals_the_released_code(golden: Golden) -> None:
    data = golden("mollify")
    images, noise, t = (torch.from_numpy(data[f"square32.{key}"]) for key in ("x", "eps", "t"))
    exact = diffuse(images.double(), t, noise=noise.double())
    np.testing.assert_allclose(exact, data["square32.noise"], rtol=0, atol=1e-14)
    single = diffuse(images, t, noise=noise)
    np.testing.assert_allclose(single, data["square32.noise"], rtol=0, atol=1e-6)


def test_limits() -> None:
    images, noise = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(diffuse(images, 0.0, noise=noise), images, rtol=0, atol=0)
    torch.testing.assert_close(diffuse(images, 1.0, noise=noise), noise)


@settings(max_examples=20)
@given(t=st.floats(0, 1), seed=st.integers(0, 100))
def test_standardised_images_stay_standardised(t: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(1, 3, 64, 64, generator=generator)
    images = (images - images.mean()) / images.std()
    noisy = diffuse(images, t, generator=generator)
    # 12,288 numbers: five standard errors are 5 / sqrt(n) for the mean, 5 sqrt(2 / n) for the
    # variance.
    count = noisy.numel()
    assert abs(float(noisy.mean())) < 5 / math.sqrt(count)
    assert abs(float(noisy.var()) - 1) < 5 * math.sqrt(2 / count) + 0.02


def test_generator_decides_the_noise() -> None:
    images = torch.zeros(2, 3, 8, 8)
    first, again, other = (
        diffuse(images, 0.7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, other)
    last = images.to(memory_format=torch.channels_last)
    same = diffuse(last, 0.7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(first, same, rtol=0, atol=0)


def test_gradients() -> None:
    images, noise = (torch.randn(2, 1, 2, 3, dtype=torch.float64) for _ in range(2))
    t = torch.tensor([0.2, 0.7], dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (images, t, noise)]
    assert torch.autograd.gradcheck(lambda x, t, eps: diffuse(x, t, noise=eps), inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_precision_and_shape(dtype: torch.dtype) -> None:
    for shape in ((0, 3, 4, 4), (1, 1, 1, 1), (2, 4, 3, 7)):
        noisy = diffuse(torch.ones(shape, dtype=dtype), torch.full(shape[:1], 0.5))
        assert noisy.dtype == dtype
        assert noisy.shape == shape


def test_bad_input() -> None:
    images = torch.zeros(2, 3, 4, 4)
    with pytest.raises(TypeError, match=r"images must be floating point, got torch.uint8.*/ 255"):
        diffuse(images.to(torch.uint8), 0.5)
    with pytest.raises(ValueError, match=r"\(N, C, H, W\), got \(3, 4, 4\).*images\[None\]"):
        diffuse(images[0], 0.5)
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\], got 1.5"):
        diffuse(images, torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"one per image, shape \(2,\), got \(3,\)"):
        diffuse(images, torch.rand(3))
    with pytest.raises(TypeError, match="t must be a number or a tensor, got str"):
        diffuse(images, "0.5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noise must have the shape of images"):
        diffuse(images, 0.5, noise=images[:1])
    with pytest.raises(ValueError, match="leave generator out"):
        diffuse(images, 0.5, noise=images, generator=torch.Generator())


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    images, noise, t = torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8), torch.rand(4)
    compiled = torch.compile(diffuse)(images, t, noise=noise)
    torch.testing.assert_close(compiled, diffuse(images, t, noise=noise))
