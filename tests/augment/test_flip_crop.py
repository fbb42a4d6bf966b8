"""Batched flip, crop and rotation, and what moves with the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sfumato.augment import Augment

# A busy machine must not fail a law.
RELAXED = settings(max_examples=50)
SHAPES = st.tuples(st.integers(0, 4), st.sampled_from([1, 3]), st.integers(5, 9), st.integers(5, 9))
SEEDS = st.integers(0, 999)


def picture(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def draws(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))


def numbers(flip: bool, down: int, right: int, *, crop: int, turn: float = 0.5) -> Tensor:
    """The uniform numbers that lead to one chosen motion; `turn` from 0 to 1 spans the angles."""
    steps = 2 * crop + 1
    shift = [(value + crop + 0.5) / steps for value in (down, right)]
    return torch.tensor([[0.25 if flip else 0.75, *shift, turn]])


def by_loop(images: Tensor, uniforms: Tensor, crop: int, padding: str) -> Tensor:
    """Pad with numpy, cut a window, mirror: one sample at a time."""
    result = torch.empty_like(images)
    height, width = images.shape[-2:]
    mode: Any = "constant" if padding == "zeros" else "reflect"
    for number, image in enumerate(images):
        source = image.flip(-1) if uniforms[number, 0] < 0.5 else image
        padded = np.pad(source.numpy(), ((0, 0), (crop, crop), (crop, crop)), mode=mode)
        top, left = (2 * crop - int(u * (2 * crop + 1)) for u in uniforms[number, 1:3].tolist())
        result[number] = torch.from_numpy(padded[:, top : top + height, left : left + width].copy())
    return result


class TestFlipAndCrop:
    def test_hand_worked(self) -> None:
        image = torch.tensor([[[[1, 2, 3], [4, 5, 6]]]], dtype=torch.uint8)
        augment = Augment(crop=1)
        moved = augment.apply({"image": image}, numbers(False, 1, -1, crop=1))["image"]
        assert moved.tolist() == [[[[0, 0, 0], [2, 3, 0]]]]
        moved = augment.apply({"image": image}, numbers(True, 0, 1, crop=1))["image"]
        assert moved.tolist() == [[[[0, 3, 2], [0, 6, 5]]]]

    @RELAXED
    @given(SHAPES, SEEDS, st.integers(0, 4), st.sampled_from(["zeros", "reflect"]))
    def test_equals_a_loop_over_padded_images(
        self, shape: tuple[int, ...], seed: int, crop: int, padding: Any
    ) -> None:
        images, uniforms = picture(shape, seed), draws(shape[0], seed)
        moved = Augment(crop=crop, padding=padding).apply({"image": images}, uniforms)["image"]
        assert torch.equal(moved, by_loop(images, uniforms, crop, padding))

    @RELAXED
    @given(SHAPES, SEEDS)
    def test_off_is_identity(self, shape: tuple[int, ...], seed: int) -> None:
        images = picture(shape, seed)
        moved = Augment(flip=False, crop=0).apply({"image": images}, draws(shape[0], seed))["image"]
        assert torch.equal(moved, images)

    def test_source_is_left_alone(self) -> None:
        images = picture((8, 3, 6, 6))
        copy = images.clone()
        Augment(crop=2, rotation=20.0)(images)
        Augment(crop=2)(images)
        assert torch.equal(images, copy)

    def test_draws_cover_everything_evenly(self) -> None:
        augment = Augment(crop=2)
        motion = augment._motion(draws(5000), torch.device("cpu"))
        assert motion.flip.float().mean().item() == pytest.approx(0.5, abs=0.03)
        for shift in (motion.down, motion.right):
            share = (shift + 2).bincount().double() / 5000
            assert share.shape == (5,)
            assert share.sub(0.2).abs().max() < 0.03
        assert motion.angle.eq(0).all()
        edge = augment._motion(torch.full((1, 4), 1 - 2**-24), torch.device("cpu"))
        assert int(edge.down) == 2

    def test_float_images_and_layouts(self) -> None:
        images, uniforms = picture((4, 3, 8, 8)), draws(4)
        augment = Augment()
        expected = augment.apply({"image": images}, uniforms)["image"]
        for other in (images.float(), images.to(memory_format=torch.channels_last)):
            moved = augment.apply({"image": other}, uniforms)["image"]
            assert moved.dtype == other.dtype
            assert torch.equal(moved.to(torch.uint8), expected)

    def test_call_draws_from_the_generator(self) -> None:
        images = picture((4, 3, 8, 8))
        first, second = (Augment()(images, torch.Generator().manual_seed(5)) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(first, Augment().apply({"image": images}, draws(4, 5))["image"])


class TestRotation:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
    def test_quarter_turns_are_exact(self, dtype: torch.dtype) -> None:
        images = picture((1, 3, 7, 7)).to(dtype)
        augment = Augment(flip=False, crop=0, rotation=90.0)
        clockwise = augment.apply({"image": images}, numbers(False, 0, 0, crop=0, turn=1.0))
        expected = images.rot90(-1, (2, 3))
        assert clockwise["image"].dtype == dtype
        assert (clockwise["image"].float() - expected.float()).abs().max() < 0.1

    @RELAXED
    @given(SHAPES, SEEDS, st.sampled_from(["zeros", "reflect"]))
    def test_angle_near_zero_equals_the_gather(
        self, shape: tuple[int, ...], seed: int, padding: Any
    ) -> None:
        images, uniforms = picture(shape, seed), draws(shape[0], seed)
        plain = Augment(crop=3, padding=padding).apply({"image": images}, uniforms)["image"]
        turned = Augment(crop=3, padding=padding, rotation=1e-6)
        assert torch.equal(turned.apply({"image": images}, uniforms)["image"], plain)

    def test_half_turn_of_a_long_image(self) -> None:
        images = picture((1, 1, 4, 9)).float()
        augment = Augment(flip=False, crop=0, rotation=180.0)
        moved = augment.apply({"image": images}, numbers(False, 0, 0, crop=0, turn=1.0))["image"]
        torch.testing.assert_close(moved, images.rot90(2, (2, 3)), atol=1e-2, rtol=0)

    def test_flip_then_shift_then_turn(self) -> None:
        images = picture((1, 1, 9, 9)).float()
        augment = Augment(crop=2, rotation=90.0)
        uniforms = numbers(True, 1, -2, crop=2, turn=0.0)
        by_hand = torch.zeros_like(images)
        by_hand[..., 1:, :-2] = images.flip(-1)[..., :-1, 2:]
        moved = augment.apply({"image": images}, uniforms)["image"]
        torch.testing.assert_close(moved, by_hand.rot90(1, (2, 3)), atol=1e-2, rtol=0)

    def test_angles_stay_within_the_limit(self) -> None:
        angle = Augment(rotation=15.0)._motion(draws(5000), torch.device("cpu")).angle.rad2deg()
        assert 14.9 < angle.max() < 15.0
        assert -15.0 <= angle.min() < -14.9


def disc_scene(seed: int) -> tuple[Tensor, Tensor]:
    """A filled rectangle inside a 24 x 32 mask, and its box."""
    generator = torch.Generator().manual_seed(seed)
    x1, y1 = (int(torch.randint(0, limit, (), generator=generator)) for limit in (20, 14))
    width, height = (int(torch.randint(3, 10, (), generator=generator)) for _ in range(2))
    mask = torch.zeros(1, 24, 32, dtype=torch.bool)
    mask[0, y1 : y1 + height, x1 : x1 + width] = True
    return mask, torch.tensor([[[x1, y1, x1 + width, y1 + height]]], dtype=torch.float32)


def box_of(mask: Tensor) -> Tensor:
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    if not len(rows):
        return torch.zeros(4)
    edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    return torch.stack(edges).float()


class TestAnnotations:
    @RELAXED
    @given(SEEDS, st.integers(0, 8))
    def test_boxes_and_masks_follow_flip_and_crop(self, seed: int, crop: int) -> None:
        masks, boxes = disc_scene(seed)
        image = (masks[:, None] * 255).to(torch.uint8)
        sample = {"image": image, "masks": masks, "boxes": boxes}
        moved = Augment(crop=crop).apply(sample, draws(1, seed))
        assert torch.equal(moved["masks"][0], moved["image"][0, 0] == 255)
        assert torch.equal(moved["boxes"][0, 0], box_of(moved["masks"][0]))

    @RELAXED
    @given(SEEDS)
    def test_flipping_twice_gives_the_boxes_back(self, seed: int) -> None:
        masks, boxes = disc_scene(seed)
        sample = {"image": masks[:, None].to(torch.uint8), "boxes": boxes}
        flip = numbers(True, 0, 0, crop=0)
        augment = Augment(crop=0)
        once = augment.apply(sample, flip)["boxes"]
        assert torch.equal(once[..., 2] - once[..., 0], boxes[..., 2] - boxes[..., 0])
        assert torch.equal(augment.apply({**sample, "boxes": once}, flip)["boxes"], boxes)

    @RELAXED
    @given(SEEDS)
    def test_rotated_box_holds_the_rotated_mask(self, seed: int) -> None:
        masks, boxes = disc_scene(seed)
        sample = {"image": masks[:, None].to(torch.uint8), "masks": masks, "boxes": boxes}
        moved = Augment(crop=2, rotation=40.0).apply(sample, draws(1, seed))
        tight, box = box_of(moved["masks"][0]), moved["boxes"][0, 0]
        if tight.any():
            # Nearest sampling moves an edge by at most half a pixel each way.
            assert (box[:2] <= tight[:2] + 0.75).all()
            assert (box[2:] >= tight[2:] - 0.75).all()

    def test_missing_and_lost_boxes_are_zeros(self) -> None:
        boxes = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [6.0, 0.0, 8.0, 8.0], [0.0, 0.0, 3.0, 8.0]]])
        sample = {"image": picture((1, 3, 8, 8)), "boxes": boxes}
        moved = Augment(crop=3).apply(sample, numbers(False, 0, 3, crop=3))["boxes"]
        assert moved.tolist() == [[[0, 0, 0, 0], [0, 0, 0, 0], [3, 0, 6, 8]]]

    @pytest.mark.parametrize("rotation", [0.0, 30.0])
    def test_label_maps_move_with_the_image(self, rotation: float) -> None:
        labels = torch.randint(0, 5, (6, 16, 20), generator=torch.Generator().manual_seed(1))
        sample = {"image": (labels[:, None] * 50).to(torch.uint8), "label": labels}
        augment = Augment(crop=3, rotation=rotation)
        moved = augment.apply(sample, draws(6), void=11)["label"]
        assert moved.dtype == torch.int64
        assert set(moved.unique().tolist()) == {0, 1, 2, 3, 4, 11}
        threes = augment.apply({**sample, "masks": labels == 3}, draws(6), void=11)["masks"]
        assert torch.equal(moved == 3, threes)
        if not rotation:
            image = augment.apply(sample, draws(6), void=11)["image"][:, 0]
            assert torch.equal(image, torch.where(moved == 11, 0, 50 * moved).to(torch.uint8))

    def test_class_labels_and_the_rest_stay(self) -> None:
        sample = {
            "image": picture((4, 3, 8, 8)),
            "label": torch.arange(4),
            "index": torch.arange(4) + 9,
            "posterior": torch.rand(4, 2),
        }
        moved = Augment().apply(sample, draws(4))
        for key in ("label", "index", "posterior"):
            assert torch.equal(moved[key], sample[key])

    def test_objectness_is_measured_again(self) -> None:
        masks = torch.ones(1, 8, 8, dtype=torch.bool)
        sample = {"image": picture((1, 3, 8, 8)), "masks": masks, "objectness": torch.ones(1)}
        moved = Augment(crop=4).apply(sample, numbers(False, 2, 4, crop=4))
        assert moved["objectness"].tolist() == [6 * 4 / 64]
        kept = {"image": sample["image"], "objectness": torch.tensor([0.3])}
        assert Augment(crop=0).apply(kept, draws(1))["objectness"].tolist() == [pytest.approx(0.3)]


class TestMessages:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"flip": "yes"}, ValueError, "flip must be one of"),
            ({"crop": -1}, ValueError, "crop must be at least 0"),
            ({"crop": 1.5}, TypeError, "crop must be an integer"),
            ({"rotation": 181.0}, ValueError, r"rotation must be in \[0, 180\]"),
            ({"rotation": -1.0}, ValueError, r"rotation must be in \[0, 180\]"),
            ({"padding": "wrap"}, ValueError, "padding must be one of"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            Augment(**options)

    def test_reflection_needs_a_larger_image(self) -> None:
        with pytest.raises(ValueError, match="crop=4 can't be reflected in 4x9 images"):
            Augment(padding="reflect")(picture((1, 3, 4, 9)))

    def test_wrong_number_of_draws(self) -> None:
        with pytest.raises(ValueError, match=r"uniforms must have shape \(2, 4\), got \(3, 4\)"):
            Augment().apply({"image": picture((2, 3, 8, 8))}, draws(3))

    def test_label_maps_need_void(self) -> None:
        sample = {"image": picture((1, 3, 8, 8)), "label": torch.zeros(1, 8, 8).long()}
        with pytest.raises(ValueError, match="segmentation masks need a void label"):
            Augment().apply(sample, draws(1))
        for free in (Augment(crop=0), Augment(padding="reflect")):
            assert free.apply(sample, draws(1))["label"].eq(0).all()

    def test_objectness_needs_masks(self) -> None:
        sample = {"image": picture((1, 3, 8, 8)), "objectness": torch.ones(1)}
        with pytest.raises(ValueError, match="objectness can't follow crop or rotation"):
            Augment().apply(sample, draws(1))
