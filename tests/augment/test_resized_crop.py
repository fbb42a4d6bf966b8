"""Batched random resized crops: pixels, boxes, masks and the window they show move together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torchvision.transforms import v2

from sfumato.augment import Augment, ResizedCrop
from sfumato.labels import box_objectness, window_objectness

RELAXED = settings(max_examples=40)
SEEDS = st.integers(0, 9999)


def boxed(count: int, size: int, seed: int) -> dict[str, Tensor]:
    """White rectangles on black, with their boxes and masks."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(count, 1, 2, 2, generator=generator).mul(size).round()
    boxes = torch.cat((ends.amin(2), ends.amax(2).clamp_min(1)), -1)
    at = torch.arange(size) + 0.5
    across = (at > boxes[..., 0]) & (at < boxes[..., 2])
    down = (at > boxes[..., 1]) & (at < boxes[..., 3])
    masks = down[:, :, None] & across[:, None, :]
    image = masks[:, None].expand(-1, 3, -1, -1).to(torch.uint8) * 255
    return {"image": image, "boxes": boxes, "masks": masks}


def numbers(count: int, draws: int, seed: int) -> Tensor:
    return torch.rand(count, draws, generator=torch.Generator().manual_seed(seed))


class TestResizedCrop:
    @RELAXED
    @given(SEEDS)
    def test_objectness_is_that_of_the_rendered_mask(self, seed: int) -> None:
        size = 32
        sample = boxed(8, size, seed)
        moved = ResizedCrop().apply(sample, numbers(8, 6, seed))
        by_box = box_objectness(moved["boxes"], (size, size))
        by_mask = moved["masks"].float().mean((1, 2))
        # Within one row and one column of pixels of the crop.
        assert ((by_box - by_mask).abs() <= 2 / size).all()

    @RELAXED
    @given(SEEDS, st.sampled_from([15.0, 90.0, 180.0]))
    def test_turned_window_is_exact_within_a_pixel(self, seed: int, rotation: float) -> None:
        size = 48
        sample, uniforms = boxed(6, size, seed), numbers(6, 6, seed)
        crop = ResizedCrop(scale=(0.2, 1.0), rotation=rotation)
        by_mask = crop.apply(sample, uniforms)["masks"].float().mean((1, 2))
        by_box = window_objectness(sample["boxes"], crop.corners(uniforms, size, size))
        assert ((by_box - by_mask).abs() <= 2 / size).all()

    def test_pixels_equal_torchvision_where_windows_start_on_pixels(self) -> None:
        image = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
        crop = ResizedCrop(scale=(0.25, 0.25), ratio=(1.0, 1.0), flip=False)
        moved = crop.apply({"image": image}, torch.tensor([[0.9, 0.0, 0.0, 0.25, 0.5, 0.0]]))
        expected = v2.functional.resized_crop(image, 8, 4, 16, 16, [32, 32], antialias=False)
        # At its border a window blends with the pixels beyond it, which torchvision cuts off.
        inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
        assert (moved["image"].int() - expected.int())[inner].abs().max() <= 1

    def test_whole_image_is_the_identity(self) -> None:
        sample = boxed(4, 16, 0)
        crop = ResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=False)
        moved = crop.apply(sample, numbers(4, 6, 0))
        for key, value in sample.items():
            assert torch.allclose(moved[key].float(), value.float(), atol=1e-3), key

    @RELAXED
    @given(SEEDS)
    def test_windows_stay_inside_and_have_their_share(self, seed: int) -> None:
        crop = ResizedCrop(scale=(0.1, 0.4))
        corners = crop.corners(numbers(20, 6, seed), 24, 36)
        assert (corners >= -1e-4).all()
        assert (corners <= torch.tensor([36.0, 24.0]) + 1e-4).all()
        sides = corners.amax(1) - corners.amin(1)
        share = sides.prod(-1) / (24 * 36)
        assert ((share > 0.1 - 1e-4) & (share < 0.4 + 1e-4)).all()

    def test_a_box_that_leaves_becomes_zeros(self) -> None:
        sample = {
            "image": torch.zeros(1, 1, 16, 16, dtype=torch.uint8),
            "boxes": torch.tensor([[[0.0, 0.0, 3.0, 3.0]]]),
        }
        crop = ResizedCrop(scale=(0.25, 0.25), ratio=(1.0, 1.0))
        moved = crop.apply(sample, torch.tensor([[0.9, 0.0, 0.5, 0.999, 0.999, 0.5]]))
        assert moved["boxes"].tolist() == [[[0.0] * 4]]

    @pytest.mark.parametrize(
        "wrong",
        [{"scale": (0.0, 1.0)}, {"scale": (0.9, 0.1)}, {"ratio": (1.0,)}, {"rotation": -1.0}],
    )
    def test_bad_arguments(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ResizedCrop(**wrong)

    def test_wrong_numbers(self) -> None:
        with pytest.raises(ValueError, match=r"uniforms must have shape \(2, 6\)"):
            ResizedCrop().apply(boxed(2, 8, 0), torch.rand(2, 4))


@RELAXED
@given(SEEDS, st.sampled_from([0.0, 30.0]))
def test_shifting_augmentation_knows_its_window_too(seed: int, rotation: float) -> None:
    size = 48
    sample, uniforms = boxed(6, size, seed), numbers(6, 4, seed)
    augment = Augment(crop=8, rotation=rotation)
    by_mask = augment.apply(sample, uniforms)["masks"].float().mean((1, 2))
    by_box = window_objectness(sample["boxes"], augment.corners(uniforms, size, size))
    assert ((by_box - by_mask).abs() <= 2 / size).all()
