"""Compressed sizes: against torchvision's encoder, linear in t on real images."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.inputs import blur_label_decay, dissipate, information_label_decay, information_ratio
from sfumato.inputs.mollify import png_sizes


def _photos(path: Path, count: int) -> torch.Tensor:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["images"][:count]).permute(0, 3, 1, 2) / 255


def test_sizes_equal_torchvisions_encoder(real_data: Callable[[str], Path]) -> None:
    from torchvision.io import encode_png

    images = _photos(real_data("cifar10-test.npz"), 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = [encode_png((image * 255).round().byte()).numel() for image in images]
    ratio = png_sizes(images) / torch.tensor(theirs)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.01)
    assert ((ratio > 0.97) & (ratio < 1.03)).all()


def test_blur_removes_bits_linearly(real_data: Callable[[str], Path]) -> None:
    images = _photos(real_data("cifar10-test.npz"), 100)
    times = torch.linspace(0, 1, 6)
    ratios = torch.stack([information_ratio(images, float(t)).mean() for t in times])
    assert (ratios.diff() < 0).all()
    assert np.corrcoef(times, ratios)[0, 1] < -0.98
    # The decay by real bits and its approximation t differ by less than 0.15 at every t.
    decay = torch.stack([information_label_decay(images, float(t)).mean() for t in times])
    torch.testing.assert_close(decay, blur_label_decay(times), rtol=0, atol=0.15)


def test_hand_worked_decay() -> None:
    images = torch.rand(3, 3, 16, 16)
    t = torch.tensor([0.0, 0.5, 1.0])
    sizes = png_sizes(dissipate(images, t)) / png_sizes(dissipate(images, 0.0))
    torch.testing.assert_close(information_ratio(images, t), sizes)
    torch.testing.assert_close(information_label_decay(images, t, 2.0), (1 - sizes).square())
    assert float(information_label_decay(images, t)[0]) == 0.0


def test_a_drawing_may_gain_bits_but_never_a_negative_decay() -> None:
    drawing = torch.zeros(1, 1, 64, 64)
    drawing[:, :, :, 32:] = 1.0
    assert information_ratio(drawing, 0.6) > 1
    assert information_label_decay(drawing, 0.6) == 0.0


def test_sizes_of_grey_colour_and_flat_images() -> None:
    flat, noise = torch.full((2, 3, 32, 32), 0.5), torch.rand(2, 3, 32, 32)
    assert (png_sizes(flat) < 150).all()
    assert (png_sizes(noise) > 3 * 32 * 32).all()
    assert (png_sizes(noise[:, :1]) < png_sizes(noise)).all()
    assert png_sizes(noise[:0]).shape == (0,)
    assert png_sizes(3 * flat).equal(png_sizes(torch.ones_like(flat)))


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="images must be floating point"):
        png_sizes(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="1 or 3 channels for PNG"):
        png_sizes(torch.zeros(1, 2, 8, 8))
    with pytest.raises(ValueError, match="k must be in"):
        information_label_decay(torch.zeros(1, 3, 8, 8), 0.5, 0.0)
