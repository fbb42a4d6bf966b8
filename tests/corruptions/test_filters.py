"""The linear filters against SciPy and against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from sfumato.corruptions.filters import (
    Border,
    clipped_zoom,
    correlate,
    fold_index,
    gaussian_filter,
    line_blur,
    zoom_geometry,
)

SCIPY_MODE: dict[Border, str] = {"edge": "nearest", "mirror": "mirror", "mirror_edge": "reflect"}


@pytest.mark.parametrize("border", ["edge", "mirror", "mirror_edge"])
def test_fold_index_equals_padding(border: Border) -> None:
    mode = {"edge": "edge", "mirror": "reflect", "mirror_edge": "symmetric"}[border]
    expected = np.pad(np.arange(5), 17, mode=mode)  # type: ignore[call-overload]
    assert fold_index(torch.arange(-17, 22), 5, border).tolist() == expected.tolist()


@pytest.mark.parametrize("border", ["edge", "mirror", "mirror_edge"])
@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 3.0, 30.0])
def test_gaussian_filter_equals_scipy(border: Border, sigma: float) -> None:
    images = torch.rand(2, 3, 18, 25)
    got = gaussian_filter(images, sigma, border=border, truncate=3.0)
    expected = ndimage.gaussian_filter(
        images.double().numpy(), (0, 0, sigma, sigma), mode=SCIPY_MODE[border], truncate=3.0
    )
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-6)


def test_gaussian_filter_without_a_neighbour_is_the_identity() -> None:
    images = torch.rand(1, 1, 8, 8)
    assert gaussian_filter(images, 0.124) is images


@pytest.mark.parametrize("border", ["edge", "mirror", "mirror_edge"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_correlate_equals_scipy(border: Border, size: int) -> None:
    images, kernel = torch.rand(2, 1, 9, 12), torch.randn(size, size)
    got = correlate(images, kernel, border=border)
    for image, result in zip(images[:, 0], got[:, 0], strict=True):
        expected = ndimage.correlate(
            image.double().numpy(), kernel.double().numpy(), mode=SCIPY_MODE[border]
        )
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize(("radius", "sigma"), [(3.0, 1.0), (6.0, 2.5), (8.0, 12.0)])
def test_line_blur_equals_a_loop(radius: float, sigma: float) -> None:
    images = torch.rand(4, 2, 9, 11)
    degrees = torch.tensor([-45.0, 0.0, 31.0, -120.0])
    got = line_blur(images, radius=radius, sigma=sigma, degrees=degrees)
    taps = range(2 * math.ceil(radius) + 1)
    weights = np.exp([-0.5 * (i / sigma) ** 2 for i in taps])
    weights /= weights.sum()
    for n, angle in enumerate(np.deg2rad(degrees.double().numpy())):
        expected = np.zeros((2, 9, 11))
        for i in taps:
            dx, dy = math.ceil(i * math.cos(angle) - 0.5), math.ceil(i * math.sin(angle) - 0.5)
            y = np.clip(np.arange(9) + dy, 0, 8)[:, None]
            x = np.clip(np.arange(11) + dx, 0, 10)[None]
            expected += weights[i] * images[n].double().numpy()[:, y, x]
        np.testing.assert_allclose(got[n].numpy(), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("size", "factor", "published"),
    [
        (32, 1.01, (32, 0, 32, 0)),
        (32, 1.02, (32, 0, 33, 0)),
        (32, 1.25, (26, 3, 32, 0)),
        (32, 2.25, (15, 8, 34, 1)),
        (64, 1.75, (37, 13, 65, 0)),
        (64, 1.07, (60, 2, 64, 0)),
        (224, 1.13, (199, 12, 225, 0)),
        (224, 4.5, (50, 87, 225, 0)),
    ],
)
def test_zoom_geometry_is_the_published_one(
    size: int, factor: float, published: tuple[int, ...]
) -> None:
    assert zoom_geometry(size, factor) == published


@pytest.mark.parametrize("factor", [1.06, 1.75, 2.25])
def test_clipped_zoom_equals_scipy(factor: float) -> None:
    image = torch.rand(1, 1, 32, 32)
    crop, start, _, trim = zoom_geometry(32, factor)
    centre = image[0, 0, start : start + crop, start : start + crop].double().numpy()
    expected = ndimage.zoom(centre, factor, order=1)[trim : trim + 32, trim : trim + 32]
    np.testing.assert_allclose(clipped_zoom(image, factor)[0, 0].numpy(), expected, atol=1e-6)


def test_clipped_zoom_keeps_the_shape_of_any_image() -> None:
    for height, width in ((16, 16), (33, 47), (64, 20)):
        for factor in (1.0, 1.03, 1.26, 4.5):
            assert clipped_zoom(torch.rand(1, 1, height, width), factor).shape[2:] == (
                height,
                width,
            )
