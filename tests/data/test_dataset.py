"""The contract of in-memory sets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfumato.data import ArrayDataset


def make(count: int = 4, **fields: Any) -> ArrayDataset:
    images = torch.arange(count * 12, dtype=torch.uint8).reshape(count, 3, 2, 2)
    labels = torch.arange(count) % 2
    return ArrayDataset(**{"images": images, "labels": labels, "classes": ("a", "b"), **fields})


def test_sample_and_batch_agree() -> None:
    data = make(boxes=torch.rand(4, 1, 4), masks=torch.rand(4, 2, 2) > 0.5)
    batch = data.batch(torch.tensor([2, 0]))
    assert set(batch) == {"image", "label", "index", "boxes", "masks"}
    for key, value in data[2].items():
        assert torch.equal(batch[key][0], value)


def test_subset_keeps_the_index_into_the_source() -> None:
    part = make(objectness=torch.rand(4)).subset(torch.tensor([3, 1])).subset(torch.tensor([1]))
    assert part.index.tolist() == [1]
    assert part.labels.tolist() == [1]
    assert part.objectness is not None
    assert len(part) == 1


def test_empty_subset() -> None:
    part = make(posterior=torch.rand(4, 2).softmax(1)).subset(torch.empty(0, dtype=torch.int64))
    assert len(part) == 0
    assert part.batch(torch.empty(0, dtype=torch.int64))["image"].shape == (0, 3, 2, 2)


def test_label_maps_with_void() -> None:
    labels = torch.tensor([[[0, 1], [11, 1]]]).expand(4, 2, 2)
    assert make(labels=labels, void=11).labels.shape == (4, 2, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": torch.rand(4, 3, 2, 2)}, r"images must be uint8 \(N, C, H, W\), got torch.flo"),
        (
            {"labels": torch.tensor([0, 1, 2, 0])},
            r"labels must be class indices in \[0, 2\), got 2",
        ),
        ({"labels": torch.tensor([0, 1])}, "labels has 2 entries for 4 images"),
        ({"labels": torch.zeros(4, dtype=torch.uint8)}, r"labels must be int64 .* got torch.uint8"),
        ({"labels": torch.zeros(4, 3, 3).long()}, r"labels must be int64 \(N,\) or \(N, 2, 2\)"),
        ({"boxes": torch.zeros(4, 4)}, r"boxes must be \(N, B, 4\), got \(4, 4\)"),
        ({"masks": torch.zeros(4, 5, 2) > 0}, r"masks must be \(N, 2, 2\), got \(4, 5, 2\)"),
        ({"index": torch.arange(3)}, "index has 3 entries"),
    ],
)
def test_bad_input(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)


def test_posterior_must_be_probabilities_of_the_classes() -> None:
    with pytest.raises(ValueError, match=r"posterior must be \(4, 2\).*got \(4, 3\)"):
        make(posterior=torch.full((4, 3), 1 / 3))
    rows = torch.tensor([[0.5, 0.5], [0.9, 0.2], [1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"sum to one .*for sample 1"):
        make(posterior=rows)
    with pytest.raises(ValueError, match="for sample 0"):
        make(posterior=torch.tensor([[1.5, -0.5]]).repeat(4, 1))
