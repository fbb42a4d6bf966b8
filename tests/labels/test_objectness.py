"""Objectness by box arithmetic against rendered masks, and the labels that follow from it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from sfumato.augment import cutmix, ricap
from sfumato.labels import (
    ObjectnessLabel,
    box_objectness,
    cross_entropy_loss,
    mask_objectness,
    objectness_labels,
    window_objectness,
)

RELAXED = settings(max_examples=40)
SEEDS = st.integers(0, 9999)


def random_boxes(count: int, each: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(count, each, 2, 2, generator=generator) * (1.4 * size) - 0.2 * size
    return torch.cat((ends.amin(2), ends.amax(2)), -1)


def share_of_points(boxes: Tensor, corners: Tensor, steps: int) -> Tensor:
    """Share of a fine grid of points in a parallelogram that lie in some box."""
    at = (torch.arange(steps) + 0.5) / steps
    across, down = torch.meshgrid(at, at, indexing="xy")
    origin, u, v = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    points = origin[:, None] + across.reshape(1, -1, 1) * u[:, None]
    points = (points + down.reshape(1, -1, 1) * v[:, None])[:, :, None]  # (N, P, 1, 2)
    inside = (points >= boxes[:, None, :, :2]) & (points < boxes[:, None, :, 2:])
    return inside.all(-1).any(-1).double().mean(1)


class TestBoxes:
    def test_identity_crop_gives_the_share_of_the_box(self) -> None:
        boxes = torch.tensor([[[2.0, 3.0, 7.0, 5.0]], [[0.0, 0.0, 20.0, 10.0]]])
        assert box_objectness(boxes, (10, 20)).tolist() == pytest.approx([10 / 200, 1.0])

    @RELAXED
    @given(SEEDS, st.integers(1, 6))
    def test_equals_the_pixels_of_a_rendered_mask(self, seed: int, each: int) -> None:
        boxes = random_boxes(5, each, 24, seed).round()
        masks = torch.zeros(5, 24, 30, dtype=torch.bool)
        for mask, several in zip(masks, boxes, strict=True):
            for x1, y1, x2, y2 in several.long().clamp_min(0).tolist():
                mask[y1:y2, x1:x2] = True
        assert torch.allclose(box_objectness(boxes, (24, 30)), mask_objectness(masks), atol=1e-6)

    @RELAXED
    @given(SEEDS, st.integers(1, 4))
    def test_order_copies_and_padding_do_not_matter(self, seed: int, each: int) -> None:
        boxes = random_boxes(4, each, 16, seed)
        more = torch.cat((boxes.flip(1), boxes, torch.zeros(4, 2, 4)), 1)
        expected = box_objectness(boxes, (16, 16))
        assert torch.allclose(box_objectness(more, (16, 16)), expected, atol=1e-6)

    def test_reversed_and_absent_boxes_cover_nothing(self) -> None:
        boxes = torch.tensor([[[8.0, 8.0, 2.0, 2.0], [9.0, 1.0, 3.0, 5.0]]])
        assert box_objectness(boxes, (16, 16)).tolist() == [0.0]
        assert box_objectness(torch.zeros(3, 0, 4), (16, 16)).tolist() == [0.0] * 3

    @pytest.mark.parametrize("boxes", [torch.zeros(2, 4), torch.zeros(2, 1, 5)])
    def test_wrong_shape(self, boxes: Tensor) -> None:
        with pytest.raises(ValueError, match=r"boxes must be \(N, K, 4\)"):
            box_objectness(boxes, (8, 8))


class TestWindow:
    @RELAXED
    @given(SEEDS, st.integers(1, 4), st.floats(-math.pi, math.pi), st.booleans())
    def test_equals_the_share_of_a_grid_of_points(
        self, seed: int, each: int, angle: float, mirrored: bool
    ) -> None:
        boxes = random_boxes(2, each, 16, seed)
        x, y = torch.tensor([-5.0, 5.0, 5.0, -5.0]), torch.tensor([-4.0, -4.0, 4.0, 4.0])
        x = -x if mirrored else x
        turned = (
            math.cos(angle) * x + math.sin(angle) * y,
            math.cos(angle) * y - math.sin(angle) * x,
        )
        corners = (torch.stack(turned, -1) + 8).expand(2, 4, 2)
        expected = share_of_points(boxes, corners, 200)
        found = window_objectness(boxes, corners).double()
        # A grid of 200 x 200 points misjudges at most about one row along each edge of a box.
        assert torch.allclose(found, expected, atol=0.02)

    @RELAXED
    @given(SEEDS, st.integers(1, 4))
    def test_unturned_window_equals_the_boxes(self, seed: int, each: int) -> None:
        boxes = random_boxes(3, each, 16, seed)
        corners = torch.tensor([[0.0, 0.0], [16.0, 0.0], [16.0, 16.0], [0.0, 16.0]]).expand(3, 4, 2)
        found = window_objectness(boxes, corners)
        assert torch.allclose(found, box_objectness(boxes, (16, 16)), atol=1e-5)

    def test_flat_window_is_refused(self) -> None:
        with pytest.raises(ValueError, match="enclose an area"):
            window_objectness(torch.zeros(1, 1, 4), torch.zeros(1, 4, 2))


def sample(label: int = 1) -> dict[str, Any]:
    boxes = tv_tensors.BoundingBoxes(
        torch.tensor([[4, 4, 20, 12], [10, 6, 28, 30]]), format="XYXY", canvas_size=(32, 32)
    )
    masks = torch.zeros(2, 32, 32, dtype=torch.bool)
    masks[0, 4:12, 4:20] = True
    masks[1, 6:30, 10:28] = True
    image = tv_tensors.Image(torch.zeros(3, 32, 32, dtype=torch.uint8))
    return {"image": image, "boxes": boxes, "masks": tv_tensors.Mask(masks), "label": label}


class TestSampleTransform:
    @RELAXED
    @given(SEEDS)
    def test_boxes_and_masks_agree_after_torchvision_crops(self, seed: int) -> None:
        torch.manual_seed(seed)
        crop = v2.RandomResizedCrop(32, scale=(0.1, 1.0), antialias=True)
        moved = v2.Compose([crop, v2.RandomHorizontalFlip()])(sample())
        by_box = ObjectnessLabel(5)(moved)["objectness"]
        by_mask = ObjectnessLabel(5, by="mask")(moved)["objectness"]
        # Nearest-pixel masks move an edge by up to a pixel, here at most four of them.
        assert abs(float(by_box - by_mask)) <= 4 / 32

    def test_label_follows_equation_5_and_6(self) -> None:
        found = ObjectnessLabel(5, beta=0.75)(sample(label=2))
        union = 16 * 8 + 18 * 24 - 10 * 6
        share = union / 1024
        expected = [0.75 * (1 - share) / 4] * 5
        expected[2] = 0.75 * share + 0.25
        assert float(found["objectness"]) == pytest.approx(share)
        assert found["soft_label"].tolist() == pytest.approx(expected)

    def test_uniform_when_nothing_is_left(self) -> None:
        cut = v2.functional.crop
        given = sample()
        moved = {**given, "boxes": cut(given["boxes"], 0, 29, 3, 3)}
        assert ObjectnessLabel(5)(moved)["soft_label"].tolist() == pytest.approx([0.2] * 5)
        others = ObjectnessLabel(5, absent="others")(moved)["soft_label"]
        assert others.tolist() == pytest.approx([0.25, 0.0, 0.25, 0.25, 0.25])

    def test_boxes_of_other_classes_do_not_count(self) -> None:
        mixed = {**sample(label=1), "box_labels": torch.tensor([1, 3])}
        for by in ("box", "mask"):
            found = ObjectnessLabel(5, by=by)(mixed)["objectness"]
            assert float(found) == pytest.approx(16 * 8 / 1024)

    def test_bad_samples(self) -> None:
        with pytest.raises(ValueError, match="needs 'masks'"):
            ObjectnessLabel(5, by="mask")({"boxes": 0, "label": 1})
        with pytest.raises(TypeError, match="BoundingBoxes"):
            ObjectnessLabel(5)({"boxes": torch.zeros(1, 4), "label": 1})


class TestLabels:
    def test_beta_0_is_exactly_cross_entropy(self) -> None:
        logits, target = torch.randn(8, 6), torch.randint(6, (8,))
        soft = objectness_labels(target, torch.rand(8), num_classes=6, beta=0.0, absent="uniform")
        assert torch.equal(soft, torch.nn.functional.one_hot(target, 6).float())
        expected = torch.nn.functional.cross_entropy(logits, target)
        assert float(cross_entropy_loss(logits, soft)) == pytest.approx(float(expected), abs=1e-6)

    @pytest.mark.parametrize("mix", [cutmix, ricap])
    def test_mixing_weighs_soft_labels_by_area(self, mix: Any) -> None:
        """Each image has one colour; the share of a colour is the weight of its label."""
        soft = objectness_labels(torch.arange(4), torch.rand(4), num_classes=5)
        colours = torch.arange(4.0)
        images = colours.view(4, 1, 1, 1).expand(4, 1, 16, 16).contiguous()
        mixed, labels = mix(images, soft, num_classes=5)
        for picture, label in zip(mixed, labels, strict=True):
            shares = torch.stack([(picture == colour).float().mean() for colour in colours])
            assert torch.allclose(label, shares @ soft, atol=1e-6)
