"""The cosine transform against SciPy; spectra of corruptions whose spectrum is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.fft import dctn

from sfumato.inputs import dct, dct_change, heat_blur


@pytest.mark.parametrize("size", [(8, 8), (5, 12), (1, 7)])
def test_transform_equals_scipy(size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = dctn(images.numpy(), axes=(2, 3), norm="ortho")
    np.testing.assert_allclose(dct(images), expected, rtol=0, atol=1e-12)
    single = dct(images.float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-5)


def test_change_equals_a_loop() -> None:
    images = torch.rand(5, 2, 6, 7, dtype=torch.float64)
    found = dct_change(images, lambda x: x.square(), batch_size=2)
    total = np.zeros((6, 7))
    for image in images.numpy():
        for channel in image:
            total += np.abs(dctn(channel**2, norm="ortho") - dctn(channel, norm="ortho"))
    np.testing.assert_allclose(found, total / 10, rtol=0, atol=1e-12)


def test_known_spectra() -> None:
    images = torch.rand(64, 3, 16, 16)
    generator = torch.Generator().manual_seed(0)
    # White noise is white in any orthonormal basis: E|N(0, s)| = s sqrt(2 / pi) everywhere.
    noise = dct_change(images, lambda x: x + 0.1 * torch.randn(x.shape, generator=generator))
    torch.testing.assert_close(
        noise, torch.full_like(noise, 0.1 * math.sqrt(2 / math.pi)), rtol=0.35, atol=0
    )
    # A shift of all grey levels is the mean alone; blur is everything but the mean.
    brighter = dct_change(images, lambda x: x + 0.1)
    assert float(brighter[0, 0]) == pytest.approx(0.1 * 16, rel=1e-5)
    assert brighter.flatten()[1:].max() < 1e-5
    blurred = dct_change(images, lambda x: heat_blur(x, 2.0))
    assert blurred[0, 0] < 1e-5
    assert blurred[-1, -1] > 0.1


def test_uint8_images_count_on_the_unit_scale() -> None:
    images = torch.randint(1, 256, (4, 3, 8, 8), dtype=torch.uint8)
    found = dct_change(images, lambda x: x - 1)
    assert float(found[0, 0]) == pytest.approx(8 / 255, rel=1e-4)


def test_bad_input() -> None:
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match="at least one image"):
        dct_change(images[:0], lambda x: x)
    with pytest.raises(ValueError, match=r"corruption must return images like its input.*float64"):
        dct_change(images, lambda x: x.double())
    with pytest.raises(ValueError, match=r"\(2, 3, 8, 8\), got torch.float32 \(2, 3, 4, 8\)"):
        dct_change(images, lambda x: x[:, :, :4])
    with pytest.raises(ValueError, match=r"images must have shape \(N, C, H, W\)"):
        dct_change(images[0], lambda x: x)
    with pytest.raises(TypeError, match="images must be floating point"):
        dct(images.long())
