"""Images without their object."""

from __future__ import annotations

import math

import pytest
import torch

from sfumato.augment import remove_objects
from sfumato.metrics import context_scores


def test_boxes_are_filled_and_the_rest_is_kept() -> None:
    images = torch.randint(0, 256, (2, 3, 16, 20), dtype=torch.uint8)
    boxes = torch.tensor(
        [[[2.0, 3.0, 6.0, 5.0], [10.2, 0.0, 11.9, 2.5]], [[0.0, 0.0, 0.0, 0.0]] * 2]
    )
    result = remove_objects(images, boxes, fill=(0.5, 0.0, 1.0))
    assert result.dtype == torch.uint8
    for n in range(2):
        for y in range(16):
            for x in range(20):
                inside = n == 0 and ((2 <= x < 6 and 3 <= y < 5) or (10 <= x < 12 and y < 3))
                expected = [128, 0, 255] if inside else images[n, :, y, x].tolist()
                assert result[n, :, y, x].tolist() == expected


def test_floating_point_and_boxes_beyond_the_image() -> None:
    images = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    boxes = torch.tensor([[[-5.0, -5.0, 100.0, 100.0]]])
    result = remove_objects(images, boxes, fill=[0.25])
    assert result.dtype == torch.float64
    assert result.unique().tolist() == [0.25]
    assert torch.equal(remove_objects(images, boxes[:, :0], fill=[0.25]), images)


def test_scores() -> None:
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])
    scores = context_scores(probs, torch.tensor([0, 1, 0]))
    assert scores.accuracy == pytest.approx(1 / 3)
    assert scores.confidence == pytest.approx((0.75 + 0.5 + 0.875) / 3)
    empty = context_scores(probs[:0], torch.zeros(0, dtype=torch.int64))
    assert math.isnan(empty.accuracy)


def test_bad_input_is_named() -> None:
    images = torch.rand(2, 3, 16, 16)
    with pytest.raises(ValueError, match=r"boxes must be \(2, B, 4\), some for each image"):
        remove_objects(images, torch.zeros(2, 4), fill=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match=r"fill must be 3 numbers in \[0, 1\]"):
        remove_objects(images, torch.zeros(2, 1, 4), fill=(127.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="fill must be 3 numbers"):
        remove_objects(images, torch.zeros(2, 1, 4), fill=(0.5,))
    with pytest.raises(ValueError, match=r"probs must be \(N, K\) with target \(N,\)"):
        context_scores(torch.rand(3, 2), torch.zeros(2, dtype=torch.int64))
