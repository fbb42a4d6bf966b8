"""Noise as a source."""

from __future__ import annotations

import pytest
import torch

from sfumato.data import load_data


def test_noise_is_a_test_set_of_even_levels_and_the_same_for_a_seed() -> None:
    data = load_data({"name": "noise", "test": 50, "size": 24})
    assert (len(data.train), len(data.validation)) == (0, 0)
    assert data.test.images.shape == (50, 3, 24, 24)
    assert not data.test.is_labelled
    shares = data.test.images.flatten().bincount(minlength=256) / data.test.images.numel()
    assert float(shares.max()) < 2 / 256
    assert torch.equal(
        data.test.images, load_data({"name": "noise", "test": 50, "size": 24}).test.images
    )
    other = load_data({"name": "noise", "test": 50, "size": 24, "seed": 1})
    assert not torch.equal(data.test.images, other.test.images)


def test_bad_size() -> None:
    with pytest.raises(ValueError, match="size must be"):
        load_data({"name": "noise", "size": 0})
