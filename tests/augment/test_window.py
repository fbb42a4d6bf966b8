"""Random windows: image and labels move together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as kernels

from sfumato.augment.geometry import RandomWindow


def _sample(height: int = 20, width: int = 30, seed: int = 0) -> dict[str, torch.Tensor]:
    """Blocks of one class each, whose colour tells the class."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 5, (3, height // 5, width // 5), generator=generator)
    label = blocks.repeat_interleave(5, 1).repeat_interleave(5, 2)
    return {"image": (40 * label + 20)[:, None].to(torch.uint8), "label": label}


def test_scale_one_copies_pixels_of_the_window() -> None:
    sample = _sample()
    window = RandomWindow(flip=True, scale=(1.0, 1.0), height=8, width=12)
    uniforms = torch.tensor([[0.9, 0.3, 0.0, 0.0], [0.1, 0.3, 0.5, 0.25], [0.9, 0.3, 0.99, 0.99]])
    seen = window.apply(sample, uniforms, void=-100)
    images = sample["image"].numpy()
    for number, (flipped, top, left) in enumerate([(False, 0, 0), (True, 6, 4), (False, 12, 18)]):
        source = images[number, 0, :, ::-1] if flipped else images[number, 0]
        expected = source[top : top + 8, left : left + 12]
        assert np.array_equal(seen["image"][number, 0].numpy(), expected)
        assert np.array_equal(seen["label"][number].numpy() * 40 + 20, expected)


def test_labels_follow_the_image_at_any_scale() -> None:
    sample = _sample()
    uniforms = torch.rand(3, 4, generator=torch.Generator().manual_seed(3))
    seen = RandomWindow(scale=(0.5, 3.0)).apply(sample, uniforms, void=-100)
    image, label = seen["image"][:, 0].float(), seen["label"]
    known = label != -100
    # Colours mix at the borders of blocks, a pixel wide: (4 / 5) ** 2 of each block is pure.
    agrees = (image - (40 * label + 20)).abs() <= 1
    assert agrees[known].float().mean() > 0.6
    assert set(label.unique().tolist()) <= {-100, 0, 1, 2, 3, 4}


def test_magnified_twice_repeats_pixels() -> None:
    sample = _sample()
    window = RandomWindow(flip=False, scale=(2.0, 2.0))
    label = window.apply(sample, torch.zeros(3, 4), void=-100)["label"]
    expected = sample["label"][:, :10, :15].repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(label, expected)


def test_outside_is_black_and_void() -> None:
    window = RandomWindow(flip=False, scale=(0.5, 0.5))
    seen = window.apply(_sample(), torch.zeros(3, 4), void=-100)
    assert (seen["label"][:, 10:] == -100).all()
    assert (seen["label"][:, :10, :15] != -100).all()
    assert (seen["image"][:, :, 11:] == 0).all()


def test_bad_use_says_what_to_do() -> None:
    sample, uniforms = _sample(), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="needs a void label"):
        RandomWindow(scale=(0.5, 1.0)).apply(sample, uniforms)
    with pytest.raises(ValueError, match="needs segmentation masks"):
        RandomWindow().apply({**sample, "label": torch.zeros(3)}, uniforms, void=-100)
    with pytest.raises(ValueError, match=r"can't move \['masks'\]"):
        RandomWindow().apply({**sample, "masks": sample["label"]}, uniforms, void=-100)
    with pytest.raises(ValueError, match=r"scale must be in \[2, inf"):
        RandomWindow(scale=(2.0, 1.0))
    with pytest.raises(ValueError, match=r"uniforms must have shape \(3, 4\)"):
        RandomWindow().apply(sample, torch.zeros(3, 5), void=-100)


def test_jitter_changes_brightness_and_contrast_alone() -> None:
    """As torchvision does, with the factors 1 + 0.3 (2 u - 1) in the order of the fifth number."""
    generator = torch.Generator().manual_seed(5)
    image = torch.randint(256, (4, 3, 8, 8), generator=generator, dtype=torch.uint8)
    sample = {"image": image, "label": torch.randint(3, (4, 8, 8), generator=generator)}
    window = RandomWindow(flip=False, scale=(1.0, 1.0), jitter=0.3)
    assert window.draws == 7
    uniforms = torch.rand(4, 7, generator=generator)
    uniforms[:, 4] = torch.tensor([0.1, 0.6, 0.1, 0.6])
    seen = window.apply(sample, uniforms)
    assert torch.equal(seen["label"], sample["label"])
    steps = (kernels.adjust_brightness, kernels.adjust_contrast)
    for found, before, row in zip(seen["image"], image, uniforms, strict=True):
        expected = before
        for number in (0, 1) if row[4] < 0.5 else (1, 0):
            expected = steps[number](expected, 0.7 + 0.6 * float(row[5 + number]))
        assert (found.int() - expected.int()).abs().max() <= 1  # rounding decides, rarely
    assert RandomWindow().draws == 4
    with pytest.raises(ValueError, match="jitter must be"):
        RandomWindow(jitter=0.0)
