"""Normalisation: the equation, both kinds of images, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.dataset import Normalise

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
IMAGES = torch.randint(
    256, (4, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def test_equation_for_bytes_and_floats() -> None:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    expected = (IMAGES / 255 - mean) / std
    normalise = Normalise(3, MEAN, STD)
    torch.testing.assert_close(normalise(IMAGES), expected)
    floats = IMAGES / 255
    torch.testing.assert_close(normalise(floats), expected)
    assert torch.equal(floats, IMAGES / 255)
    torch.testing.assert_close(Normalise(3)(IMAGES), IMAGES / 255)


def test_loaders_give_the_same_to_the_last_bit() -> None:
    data = ArrayDataset(IMAGES, torch.zeros(4, dtype=torch.int64), ("only",))
    batch = TensorLoader(data, 4, mean=MEAN, std=STD).batch(0)["image"]
    assert torch.equal(batch, Normalise(3, MEAN, STD)(IMAGES))


@pytest.mark.parametrize("images", [IMAGES, IMAGES / 255])
def test_layout(images: torch.Tensor) -> None:
    found = Normalise(3, MEAN, STD)(images, torch.channels_last)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, Normalise(3, MEAN, STD)(images))


def test_is_no_part_of_the_weights_and_moves_with_a_network() -> None:
    normalise = Normalise(3, MEAN, STD).double()
    assert not normalise.state_dict()
    assert normalise(IMAGES).dtype == torch.float64


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="mean must have 3 entries"):
        Normalise(3, (0.5,), STD)
    with pytest.raises(ValueError, match="std must be"):
        Normalise(1, (0.5,), (0.0,))
    with pytest.raises(ValueError, match=r"images must be \(N, 3, H, W\), got \(3, 5, 6\)"):
        Normalise(3)(IMAGES[0])
    with pytest.raises(TypeError, match="uint8 or floating point"):
        Normalise(3)(IMAGES.long())
