"""How well activation maps find the object: against boxes, without any training for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import check_number

_THRESHOLDS = tuple(step / 20 for step in range(1, 20))


@dataclass(frozen=True)
class Localisation:
    """How a set of maps agrees with the boxes.

    Args:
        threshold: the threshold at which the mean IoU is largest.
        iou: mean IoU there, of the box around the largest bright region with the best true box.
        box_accuracy: largest share, over thresholds, of images whose IoU reaches 0.5 (Choe et al.'s
            MaxBoxAcc).
        pointing: share of images whose brightest point lies in a true box (pointing game).
        iou_by_threshold: (T,), mean IoU at each threshold.
        images: how many images had a box, and count.
    """

    threshold: float
    iou: float
    box_accuracy: float
    pointing: float
    iou_by_threshold: Tensor
    images: int


def localisation_scores(
    maps: Tensor, boxes: Tensor, *, thresholds: Sequence[float] = _THRESHOLDS
) -> Localisation:
    """Measure maps against true boxes: IoU at the best threshold, and the pointing game.

    One threshold serves all images, as it would in use. Images without any box are left out.

    Args:
        maps: (N, H, W) in [0, 1], as `ActivationMaps.maps`.
        boxes: (N, B, 4) as x1, y1, x2, y2 in pixels; a missing box is all zeros.
        thresholds: in [0, 1]; a region is where a map is at least this bright.

    Raises:
        ValueError: shapes that do not fit, or no box at all.

    Example:
        >>> maps = torch.zeros(1, 8, 8)
        >>> maps[0, 2:4, 2:6] = 1.0
        >>> found = localisation_scores(maps, torch.tensor([[[2.0, 2.0, 6.0, 4.0]]]))
        >>> found.iou, found.pointing
        (1.0, 1.0)

    Reference:
        Zhang et al., Top-down Neural Attention by Excitation Backprop, ECCV 2016 (pointing game);
        Choe et al., Evaluating Weakly Supervised Object Localization Methods Right, CVPR 2020.
    """
    maps, boxes = _with_boxes(maps, boxes)
    if not thresholds:
        raise ValueError("thresholds must hold at least one number, got none")
    for value in thresholds:
        check_number("threshold", value, low=0.0, high=1.0)
    overlaps = torch.stack(
        [best_overlap(region_boxes(maps >= value), boxes) for value in thresholds]
    )  # (T, N)
    means = overlaps.mean(1)
    best = int(means.argmax())
    return Localisation(
        threshold=float(thresholds[best]),
        iou=float(means[best]),
        box_accuracy=float((overlaps >= 0.5).double().mean(1).max()),
        pointing=float(hits(maps, boxes).double().mean()),
        iou_by_threshold=means,
        images=len(maps),
    )


def hits(maps: Tensor, boxes: Tensor) -> Tensor:
    """(N,) booleans: whether the centre of the brightest pixel lies in one of the boxes."""
    width = maps.shape[2]
    place = maps.flatten(1).argmax(1)
    x, y = (place % width).float() + 0.5, (place // width).float() + 0.5
    left, top, right, bottom = boxes.unbind(2)
    x, y = x[:, None], y[:, None]
    return ((left <= x) & (x <= right) & (top <= y) & (y <= bottom)).any(1)


def region_boxes(masks: Tensor) -> Tensor:
    """The tightest boxes (N, 4) around the largest region of each (N, H, W) mask; zeros if empty.

    Pixels that touch by a side or a corner are one region.
    """
    largest = _largest_region(masks)
    spans = []
    for axis in (1, 2):
        occupied = largest.any(axis)  # over rows: columns that are occupied
        first = occupied.int().argmax(1)
        last = occupied.shape[1] - occupied.flip(1).int().argmax(1)
        spans.append((first, last))
    (left, right), (top, bottom) = spans
    found = torch.stack([left, top, right, bottom], 1).float()
    return found * largest.flatten(1).any(1)[:, None]


def best_overlap(found: Tensor, boxes: Tensor) -> Tensor:
    """(N,): IoU of each found box (N, 4) with the best of its image's boxes (N, B, 4)."""
    corner = torch.maximum(found[:, None, :2], boxes[..., :2])
    far = torch.minimum(found[:, None, 2:], boxes[..., 2:])
    shared = (far - corner).clamp_min(0).prod(-1)
    area = (found[:, 2:] - found[:, :2]).prod(-1)[:, None]
    union = area + (boxes[..., 2:] - boxes[..., :2]).prod(-1) - shared
    return torch.where(union > 0, shared / union.clamp_min(1e-9), 0.0).amax(1)


def _largest_region(masks: Tensor) -> Tensor:
    """The largest connected region of each mask, by spreading the highest pixel number."""
    height, width = masks.shape[1:]
    numbers = torch.arange(1, height * width + 1, device=masks.device, dtype=torch.float64)
    inside = masks.double()
    labels = numbers.view(1, height, width) * inside
    while True:
        spread = F.max_pool2d(labels[:, None], 3, 1, 1)[:, 0] * inside
        if torch.equal(spread, labels):
            break
        labels = spread
    flat = labels.flatten(1).long()
    counts = torch.zeros(len(masks), height * width + 1, dtype=torch.long, device=masks.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    counts[:, 0] = 0
    return (labels == counts.argmax(1)[:, None, None]) & masks


def _with_boxes(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    if maps.ndim != 3 or boxes.ndim != 3 or boxes.shape[2] != 4 or len(maps) != len(boxes):
        raise ValueError(
            f"maps must be (N, H, W) and boxes (N, B, 4), got {tuple(maps.shape)} and "
            f"{tuple(boxes.shape)}"
        )
    present = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    some = present.any(1)
    if not bool(some.any()):
        raise ValueError("boxes must hold at least one box of positive area, got none")
    boxes = torch.where(present[..., None], boxes, -1.0)  # a missing box overlaps nothing
    return maps[some], boxes[some]
