"""Colour jitter: torchvision's pixels for the same factors and order, and its ranges."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as kernels

from sfumato.augment import ColourJitter


def test_each_image_has_the_pixels_of_torchvision() -> None:
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    uniforms = torch.rand(6, 4)
    uniforms[:, 0] = torch.arange(6) / 6 + 0.01  # each order once
    jittered = ColourJitter(0.5).apply(images, uniforms)
    steps = (kernels.adjust_brightness, kernels.adjust_contrast, kernels.adjust_saturation)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    for image, found, row, order in zip(images, jittered, uniforms, orders, strict=True):
        for number in order:
            image = steps[number](image, 0.5 + float(row[1 + number]))
        assert (image.int() - found.int()).abs().max() <= 1  # rounding decides, rarely


def test_a_strength_above_one_never_inverts() -> None:
    images = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    black = ColourJitter(2.0).apply(images, torch.tensor([[0.0, 0.0, 0.5, 0.5]]))
    assert not black.any()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="strength must be"):
        ColourJitter(0.0)
    with pytest.raises(ValueError, match="1 \\(grey\\) or 3"):
        ColourJitter().apply(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), torch.zeros(1, 4))
