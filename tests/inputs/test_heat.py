"""Heat blur: hand-worked values, golden vectors, the laws of heat, gradients.

`tests/golden/mollify.npz` is cut down from the full vectors so that it can live in the repository:
of the 8 images at 32 x 32 those at t = 0, t = 1 and t = 0.30; of the 4 at 64 x 64 the one at
t = 0.26, and of the 4 at 48 x 64 the one at t = 0.49, both without noise, which is elementwise and
knows no size. Schedules, labels and likelihoods are complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.fft import dctn, idctn

from sfumato.inputs import dissipate, heat_blur

Golden = Callable[[str], dict[str, Any]]
CASES = ("square32", "square64", "nonsquare")

sizes = st.tuples(st.integers(1, 3), st.integers(1, 17), st.integers(1, 17))
sigmas = st.floats(0, 20)


def _images(shape: tuple[int, ...], seed: int = 0, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def _blur_by_scipy(image: np.ndarray, sigma: float) -> np.ndarray:
    """Eq. (5) as it is written, one channel at a time."""
    channels, height, width = image.shape
    blurred = np.empty_like(image)
    for c in range(channels):
        coefficients = dctn(image[c], norm="ortho")
        for h in range(height):
            for w in range(width):
                eigenvalue = math.pi**2 * (w**2 / width**2 + h**2 / height**2)
                coefficients[h, w] *= math.exp(-(sigma**2) / 2 * eigenvalue)
        blurred[c] = idctn(coefficients, norm="ortho")
    return blurred


def test_hand_worked_value() -> None:
    # Two pixels: the mean stays, the difference shrinks by exp(-(pi/2)^2 sigma^2 / 2).
    image = torch.tensor([3.0, 1.0], dtype=torch.float64).reshape(1, 1, 1, 2)
    shrunk = math.exp(-(math.pi**2) / 8)
    expected = torch.tensor([2 + shrunk, 2 - shrunk], dtype=torch.float64)
    torch.testing.assert_close(heat_blur(image, 1.0).flatten(), expected)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 9), (2, 1, 8), (1, 7, 1)])
def test_equals_the_equation_in_scipy(shape: tuple[int, int, int]) -> None:
    images, sigma = _images(shape, count=3), torch.tensor([0.3, 1.7, 9.0], dtype=torch.float64)
    blurred = heat_blur(images, sigma)
    for image, scale, found in zip(images, sigma, blurred, strict=True):
        expected = _blur_by_scipy(image.numpy(), float(scale))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("case", CASES)
def test_equals_the_released_code(golden: Golden, case: str) -> None:
    data = golden("mollify")
    images, t = (torch.from_numpy(data[f"{case}.{key}"]) for key in ("x", "t"))
    exact = dissipate(images.double(), t)
    np.testing.assert_allclose(exact, data[f"{case}.blur"], rtol=0, atol=1e-13)
    single = dissipate(images, t)
    # The released code in float32 is off by up to 2.3e-6.
    np.testing.assert_allclose(single, data[f"{case}.blur"], rtol=0, atol=5e-6)


def test_parts_and_graph_give_the_same() -> None:
    images, t = torch.randn(70, 3, 40, 24), torch.rand(70)
    plain = dissipate(images, t)
    graph = dissipate(images.requires_grad_(), t)
    assert graph.requires_grad
    torch.testing.assert_close(plain, graph.detach(), rtol=0, atol=2e-6)


@settings(max_examples=40)
@given(shape=sizes, sigma=sigmas, seed=st.integers(0, 100))
def test_keeps_the_mean_and_never_raises_the_variance(
    shape: tuple[int, int, int], sigma: float, seed: int
) -> None:
    images = _images(shape, seed)
    blurred = heat_blur(images, sigma)
    torch.testing.assert_close(blurred.mean((2, 3)), images.mean((2, 3)), rtol=0, atol=1e-12)
    before, after = (x.var((2, 3), correction=0) for x in (images, blurred))
    assert (after <= before + 1e-12).all()


@settings(max_examples=40)
@given(shape=sizes, first=sigmas, second=sigmas)
def test_squared_scales_add(shape: tuple[int, int, int], first: float, second: float) -> None:
    images = _images(shape)
    twice = heat_blur(heat_blur(images, first), second)
    once = heat_blur(images, math.hypot(first, second))
    torch.testing.assert_close(twice, once, rtol=0, atol=1e-11)


@settings(max_examples=40)
@given(size=st.integers(1, 40), sigma=sigmas)
def test_kernel_is_symmetric_and_keeps_mass(size: int, sigma: float) -> None:
    pixels = torch.eye(size, dtype=torch.float64)[
        :, None, None
    ]  # one image for each pixel of a line
    kernel = heat_blur(pixels, sigma)[:, 0, 0]
    torch.testing.assert_close(kernel, kernel.T, rtol=0, atol=1e-15)
    ones = torch.ones(size, dtype=torch.float64)
    torch.testing.assert_close(kernel.sum(0), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(kernel.flip(0, 1), kernel, rtol=0, atol=1e-12)


def test_limits() -> None:
    images = torch.randn(2, 3, 9, 12)
    torch.testing.assert_close(heat_blur(images, 0.0), images, rtol=0, atol=2e-6)
    flat = images.mean((2, 3), keepdim=True).expand(images.shape)
    torch.testing.assert_close(heat_blur(images, 1e4), flat, rtol=0, atol=1e-6)
    scaled = dissipate(images, torch.tensor([0.0, 1.0]), sigma_min=0.5, sigma_max=3.0)
    expected = heat_blur(images, torch.tensor([0.5, 3.0]))
    torch.testing.assert_close(scaled, expected)


def test_each_image_has_its_own_temperature() -> None:
    images, t = torch.randn(5, 3, 8, 10), torch.rand(5)
    together = dissipate(images, t)
    for i in range(5):
        alone = dissipate(images[i : i + 1], float(t[i]))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-6)


def test_gradients() -> None:
    images = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dissipate, (images, t))
    sigma = torch.tensor([0.4, 1.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(heat_blur, (images, sigma))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_precision_and_shape(dtype: torch.dtype) -> None:
    for shape in ((0, 3, 4, 4), (1, 1, 1, 1), (2, 4, 3, 7)):
        blurred = dissipate(torch.ones(shape, dtype=dtype), torch.full(shape[:1], 0.5))
        assert blurred.dtype == dtype
        assert blurred.shape == shape
        torch.testing.assert_close(blurred, torch.ones(shape, dtype=dtype))


def test_autocast_does_not_round_the_blur() -> None:
    images, t = torch.randn(4, 3, 16, 16), torch.rand(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = dissipate(images, t)
        graph = dissipate(images.clone().requires_grad_(), t)
    torch.testing.assert_close(inside, dissipate(images, t), rtol=0, atol=0)
    torch.testing.assert_close(graph.detach(), inside, rtol=0, atol=1e-6)


def test_channels_last_gives_the_same() -> None:
    images, t = torch.randn(4, 3, 16, 12), torch.rand(4)
    last = images.to(memory_format=torch.channels_last)
    torch.testing.assert_close(dissipate(last, t), dissipate(images, t), rtol=0, atol=0)


def test_bad_input() -> None:
    images = torch.zeros(2, 3, 4, 4)
    with pytest.raises(TypeError, match=r"images must be floating point, got torch\.int64"):
        dissipate(images.long(), 0.5)
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\], got -0.5"):
        dissipate(images, -0.5)
    with pytest.raises(ValueError, match=r"sigma must be in \[0, inf\), got -1"):
        heat_blur(images, -1.0)
    with pytest.raises(ValueError, match=r"sigma must be in \[0, inf\), got inf"):
        heat_blur(images, math.inf)
    with pytest.raises(ValueError, match="sigma_max must be in"):
        dissipate(images, 0.5, sigma_max=0.1)


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    images, t = torch.randn(4, 3, 8, 8), torch.rand(4)
    compiled = torch.compile(dissipate)(images, t)
    torch.testing.assert_close(compiled, dissipate(images, t), rtol=0, atol=1e-5)


def test_the_default_device_is_not_used() -> None:
    images = torch.rand(2, 1, 8, 9)
    with torch.device("meta"):
        found = heat_blur(images, 1.5)
    assert torch.equal(found, heat_blur(images, 1.5))
