"""Localisation numbers on maps whose right answer is known."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage
from torchvision.ops import box_iou

from sfumato.analysis import localisation_scores
from sfumato.analysis.attention import best_overlap, region_boxes


def _map_with_peak(x: int, y: int) -> torch.Tensor:
    maps = torch.zeros(16, 16)
    maps[y, x] = 1.0
    return maps


def test_pointing_game_counts_peaks_inside_any_box() -> None:
    maps = torch.stack([_map_with_peak(*p) for p in ((3, 3), (12, 3), (8, 8), (7, 8))])
    boxes = torch.zeros(4, 2, 4)
    boxes[:, 0] = torch.tensor([0.0, 0.0, 8.0, 8.0])  # pixels 0 to 7
    boxes[1, 1] = torch.tensor([10.0, 2.0, 14.0, 5.0])
    # inside the first; inside the second only; just outside both ways; just below
    assert localisation_scores(maps, boxes).pointing == 0.5


def test_best_threshold_separates_object_from_glow() -> None:
    maps = torch.full((1, 20, 20), 0.3)
    maps[0, 5:10, 4:14] = 0.8
    found = localisation_scores(maps, torch.tensor([[[4.0, 5.0, 14.0, 10.0]]]))
    assert found.iou == 1.0
    assert 0.3 < found.threshold <= 0.8
    assert found.box_accuracy == 1.0
    assert float(found.iou_by_threshold[0]) == pytest.approx(50 / 400)


def test_images_without_boxes_are_left_out() -> None:
    maps = torch.stack([_map_with_peak(3, 3)] * 2)
    boxes = torch.tensor([[[2.0, 2.0, 5.0, 5.0]], [[0.0, 0.0, 0.0, 0.0]]])
    found = localisation_scores(maps, boxes)
    assert (found.images, found.pointing) == (1, 1.0)


def test_region_boxes_against_scipy() -> None:
    masks = torch.rand(20, 13, 17, generator=torch.Generator().manual_seed(1)) < 0.35
    masks[0] = False
    found = region_boxes(masks)
    assert found[0].tolist() == [0, 0, 0, 0]
    for mask, box in zip(masks[1:].numpy(), found[1:], strict=True):
        labels, count = ndimage.label(mask, structure=[[1] * 3] * 3)
        sizes = ndimage.sum_labels(mask, labels, range(1, count + 1))
        largest = [n for n in range(count) if sizes[n] == max(sizes)]
        candidates = [ndimage.find_objects(labels)[n] for n in largest]
        assert [int(v) for v in box] in [
            [columns.start, rows.start, columns.stop, rows.stop] for rows, columns in candidates
        ]


def test_overlap_against_torchvision() -> None:
    corners = torch.rand(6, 4, 2, 2) * 20
    boxes = torch.cat([corners.amin(2), corners.amax(2)], -1)  # (6, 4, 4)
    found = best_overlap(boxes[:, 0], boxes[:, 1:])
    expected = torch.stack([box_iou(b[:1], b[1:]).amax() for b in boxes])
    torch.testing.assert_close(found, expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="boxes must hold at least one"):
        localisation_scores(torch.zeros(1, 4, 4), torch.zeros(1, 1, 4))
    with pytest.raises(ValueError, match=r"\(N, B, 4\)"):
        localisation_scores(torch.zeros(1, 4, 4), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="threshold"):
        localisation_scores(torch.zeros(1, 4, 4), torch.tensor([[[0.0, 0, 2, 2]]]), thresholds=())
