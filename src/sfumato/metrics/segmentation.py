"""Overlap of predicted and labelled regions."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.arrays import numpy_to_tensor
from sfumato._core.checks import check_choice
from sfumato.metrics.classwise import Reduction
from sfumato.metrics.scored_samples import check_shapes, entries_that_count


def mean_iou(
    predictions: Tensor,
    target: Tensor,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean over classes of intersection over union, TP / (TP + FP + FN).

    Classes that occur neither in the labels nor in the predictions are left out of the mean.

    Args:
        predictions: logits or probabilities; only the largest entry of each pixel matters.
        target: class indices.
        reduction: "mean", or "none" for one value per class, (C,); NaN for absent classes.
        ignore_index: label of pixels that count for nothing.
        validate: check that labels are in range.

    Shape:
        predictions: (N, C, H, W) or (N, C); target: (N, H, W) or (N,).

    Example:
        >>> predictions = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> mean_iou(predictions, torch.tensor([0, 0, 1, 1]))
        tensor(0.5833, dtype=torch.float64)
    """
    check_choice("reduction", reduction, ("mean", "none"))
    matrix = confusion_matrix(predictions, target, ignore_index=ignore_index, validate=validate)
    return iou_of_matrix(matrix, reduction)


def confusion_matrix(
    predictions: Tensor, target: Tensor, *, ignore_index: int = -100, validate: bool = True
) -> Tensor:
    """Counts of (label, predicted class), (C, C), int64. Args as in `mean_iou`.

    Example:
        >>> confusion_matrix(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
        tensor([[1, 0],
                [1, 0]])
    """
    predictions, target = numpy_to_tensor(predictions), numpy_to_tensor(target)
    check_shapes("predictions", predictions, target)
    num_classes = predictions.shape[1]
    valid = entries_that_count(target, num_classes, ignore_index=ignore_index, validate=validate)
    pairs = target.long() * num_classes + predictions.argmax(1)
    pairs = pairs.flatten() if valid is None else pairs[valid]
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def iou_of_matrix(matrix: Tensor, reduction: Reduction) -> Tensor:
    counts = matrix.double()
    overlap = counts.diagonal()
    iou = overlap / (counts.sum(0) + counts.sum(1) - overlap)
    return iou.nanmean() if reduction == "mean" else iou
