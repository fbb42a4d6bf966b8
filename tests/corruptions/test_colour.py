"""Light and colour against the standard library's hue, saturation, value."""

from __future__ import annotations

import colorsys

import pytest
import torch

from sfumato.corruptions.camera import brightness, contrast, luma, saturate

PIXELS = [
    (0, 0, 0),
    (255, 255, 255),
    (128, 128, 128),
    (200, 10, 90),
    (10, 200, 199),
    (1, 2, 3),
    (250, 251, 4),
    (0, 0, 90),
]


def _image() -> torch.Tensor:
    return torch.tensor(PIXELS, dtype=torch.float32).T.reshape(1, 3, 2, 4)


@pytest.mark.parametrize("shift", [-0.2, 0.05, 0.3, 0.5])
def test_brightness_raises_the_value(shift: float) -> None:
    got = brightness(_image(), shift=shift).reshape(3, -1).T
    for pixel, result in zip(PIXELS, got.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in pixel))
        expected = colorsys.hsv_to_rgb(hue, saturation, min(max(value + shift, 0.0), 1.0))
        assert result == pytest.approx([255 * level for level in expected], abs=1e-3)


@pytest.mark.parametrize(("factor", "shift"), [(0.3, 0.0), (1.5, 0.0), (2.0, 0.1), (30.0, 0.2)])
def test_saturate_changes_the_saturation(factor: float, shift: float) -> None:
    got = saturate(_image(), factor=factor, shift=shift).reshape(3, -1).T
    for pixel, result in zip(PIXELS, got.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in pixel))
        expected = colorsys.hsv_to_rgb(hue, min(saturation * factor + shift, 1.0), value)
        assert result == pytest.approx([255 * level for level in expected], abs=1e-3)


def test_saturate_tints_grey_as_published() -> None:
    grey = torch.full((1, 3, 1, 1), 128.0)
    assert saturate(grey, factor=2.0, shift=0.1).flatten().tolist() == pytest.approx(
        [128, 115.2, 115.2], abs=1e-3
    )


def test_contrast_pulls_to_the_mean_of_each_channel() -> None:
    image = torch.tensor([0.0, 100.0, 50.0, 50.0]).view(1, 2, 1, 2)
    assert contrast(image, factor=0.5).flatten().tolist() == [25.0, 75.0, 50.0, 50.0]


def test_luma_weighs_the_channels() -> None:
    assert luma(_image())[0, 0, 0, 3].item() == pytest.approx(0.299 * 200 + 0.587 * 10 + 0.114 * 90)
    grey = torch.rand(1, 1, 2, 2)
    assert luma(grey) is grey


def test_grey_images_stay_grey() -> None:
    grey = torch.rand(2, 1, 4, 4) * 255
    assert torch.equal(saturate(grey, factor=2.0, shift=0.1), grey)
    assert torch.allclose(brightness(grey, shift=0.1), (grey + 25.5).clamp_max(255), atol=1e-3)
