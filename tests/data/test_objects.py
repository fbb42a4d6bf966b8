"""Sets with one object an image, with none, and with a share of those mixed in."""

from __future__ import annotations

import pytest
import torch

from sfumato.data import ArrayDataset, context_only, scenes, single_objects, with_context


def several() -> ArrayDataset:
    """Grey noise with two, one and no boxes; the two of the first image overlap."""
    images = torch.randint(1, 255, (3, 3, 16, 16), dtype=torch.uint8)
    boxes = torch.zeros(3, 2, 4)
    boxes[0] = torch.tensor([[0.0, 0.0, 8.0, 8.0], [6.0, 6.0, 16.0, 16.0]])
    boxes[1, 0] = torch.tensor([2.0, 2.0, 5.0, 9.0])
    return ArrayDataset(images, torch.tensor([0, 1, 1]), ("a", "b"), boxes=boxes)


class TestSingleObjects:
    def test_one_sample_a_box_with_the_others_painted(self) -> None:
        data = several()
        alone = single_objects(data, fill=(0.0, 0.0, 0.0))
        assert alone.labels.tolist() == [0, 0, 1]
        assert alone.boxes is not None
        assert alone.boxes.shape == (3, 1, 4)
        first, second = alone.images[0], alone.images[1]
        assert torch.equal(first[:, :8, :8], data.images[0, :, :8, :8])  # the kept one is whole
        assert (first[:, 8:, 8:] == 0).all()
        assert torch.equal(second[:, 6:, 6:], data.images[0, :, 6:, 6:])
        assert (second[:, :6, :6] == 0).all()
        assert torch.equal(first[:, :6, 8:], data.images[0, :, :6, 8:])  # context stays
        assert torch.equal(alone.images[2], data.images[1])

    def test_classes_of_boxes(self) -> None:
        alone = single_objects(several(), box_labels=torch.tensor([[1, 0], [0, -1], [-1, -1]]))
        assert alone.labels.tolist() == [1, 0, 0]
        with pytest.raises(ValueError, match=r"box_labels must be \(3, 2\)"):
            single_objects(several(), box_labels=torch.zeros(3, 1))

    def test_needs_boxes(self) -> None:
        plain = ArrayDataset(
            torch.zeros(1, 1, 16, 16, dtype=torch.uint8), torch.tensor([0]), ("a",)
        )
        with pytest.raises(ValueError, match="no boxes"):
            single_objects(plain)


class TestContext:
    def test_every_box_is_filled_and_nothing_else(self) -> None:
        data = several()
        hidden = context_only(data, fill=(0.0, 0.0, 0.0))
        assert hidden.index.tolist() == [0, 1]  # the third image has no box
        painted = (hidden.images == 0).all(1)
        assert painted.sum((1, 2)).tolist() == [64 + 100 - 4, 3 * 7]
        assert torch.equal(hidden.images[0, :, :6, 8:], data.images[0, :, :6, 8:])
        assert hidden.context is not None
        assert hidden.context.all()

    @pytest.mark.parametrize("share", [0.0, 0.15, 0.5])
    def test_share(self, share: float) -> None:
        data = scenes.generate(200, size=16)
        mixed = with_context(data, share=share, seed=3)
        marks = torch.zeros(0) if mixed.context is None else mixed.context.float()
        assert len(mixed) == round(200 / (1 - share))
        assert float(marks.sum()) / len(mixed) == pytest.approx(share, abs=0.003)
        assert len(mixed.index.unique()) == len(mixed)
        assert torch.equal(mixed.images[:200], data.images)
        if share == 0.15:
            again = with_context(data, share=share, seed=3)
            assert torch.equal(mixed.images, again.images)
            assert not torch.equal(mixed.images, with_context(data, share=share, seed=4).images)

    def test_impossible_shares(self) -> None:
        for share in (0.9, 1.0):
            with pytest.raises(ValueError, match=r"use a share of at most 0\.5"):
                with_context(scenes.generate(20, size=16), share=share)
