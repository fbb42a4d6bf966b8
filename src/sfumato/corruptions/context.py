"""Images without their object: does the model still claim to see it?

Reference: Krothapalli and Abbott, Adaptive Label Smoothing, 2020, table 1 and appendix: objects
are replaced by the pixel means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_class_indices, check_floating
from sfumato.corruptions.catalogue import check_corruptible


class ContextScores(NamedTuple):
    """On images without their object: accuracy, and mean confidence (low is honest)."""

    accuracy: float
    confidence: float


def remove_objects(images: Tensor, boxes: Tensor, *, fill: Sequence[float]) -> Tensor:
    """Fill the boxes with the mean colour, so that only the context is left.

    A pixel that a box touches is filled.

    Args:
        images: uint8, or floating point in [0, 1].
        boxes: x1, y1, x2, y2 in pixels, x2 and y2 exclusive; a missing box is all zeros.
        fill: one number in [0, 1] for each channel, the data set's mean.

    Shape:
        images (N, C, H, W) with 1 or 3 channels, boxes (N, B, 4); the result like the images.

    Example:
        >>> images = torch.zeros(1, 1, 16, 16)
        >>> boxes = torch.tensor([[[4.0, 4.0, 8.0, 12.0], [0.0, 0.0, 0.0, 0.0]]])
        >>> remove_objects(images, boxes, fill=(0.5,)).sum()
        tensor(16.)
    """
    check_corruptible(images)
    if boxes.ndim != 3 or boxes.shape[::2] != (len(images), 4):
        raise ValueError(
            f"boxes must be ({len(images)}, B, 4), some for each image, got {tuple(boxes.shape)}"
        )
    if len(fill) != images.shape[1] or not all(0.0 <= value <= 1.0 for value in fill):
        raise ValueError(
            f"fill must be {images.shape[1]} numbers in [0, 1], one for each channel, got {fill!r}"
        )
    covered = covered_by_boxes(boxes.to(images.device), *images.shape[-2:])
    colour = torch.tensor(fill, device=images.device).view(1, -1, 1, 1)
    if images.dtype == torch.uint8:
        colour = (255.0 * colour).round()
    return torch.where(covered[:, None], colour.to(images.dtype), images)


def covered_by_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """(N, H, W) true where a box touches the pixel."""
    x1, y1, x2, y2 = boxes.float()[..., None].unbind(dim=2)
    x = torch.arange(width, device=boxes.device)
    y = torch.arange(height, device=boxes.device)
    columns = (x >= x1.floor()) & (x < x2.ceil())  # (N, B, W)
    rows = (y >= y1.floor()) & (y < y2.ceil())  # (N, B, H)
    return (rows[..., None] & columns[..., None, :]).any(dim=1)


def context_scores(probs: Tensor, target: Tensor) -> ContextScores:
    """Accuracy and mean confidence on images without their object.

    Args:
        probs: probabilities.
        target: the class of the object that was removed.

    Shape:
        probs (N, K), target (N,). Both scores are nan for an empty batch.

    Example:
        >>> context_scores(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
        ContextScores(accuracy=0.5, confidence=0.625)
    """
    check_floating("probs", probs, hint="Pass probabilities")
    if probs.ndim != 2 or target.shape != probs.shape[:1]:
        raise ValueError(
            f"probs must be (N, K) with target (N,), got {tuple(probs.shape)} and "
            f"{tuple(target.shape)}"
        )
    check_class_indices("target", target, probs.shape[1])
    confidence, predicted = probs.max(dim=1)
    right = (predicted == target).float()
    return ContextScores(accuracy=float(right.mean()), confidence=float(confidence.mean()))
