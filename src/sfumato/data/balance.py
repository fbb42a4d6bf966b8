"""Class weights against unequal frequencies of pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_class_indices, check_integer
from sfumato.data.file_tensor import FileTensor


def median_frequency_weights(
    labels: Tensor | FileTensor, num_classes: int, *, void: int | None = None
) -> Tensor:
    r"""Weights that let rare classes count as much as common ones.

        w_c = median(f) / f_c,   f_c = pixels of class c / pixels of all images that show c

    Void pixels count for neither. A class that never occurs gets weight 1: nothing is known.

    Args:
        labels: (N, H, W) label maps of the training set.
        num_classes: number of classes C.
        void: label of pixels that count for nothing.

    Returns:
        (C,) float32.

    Example:
        >>> labels = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [0, 0]]])
        >>> median_frequency_weights(labels, 2)  # f = 7/8 and 1/4, their median 9/16
        tensor([0.6429, 2.2500])

    Reference:
        Eigen and Fergus, ICCV 2015, section 6.3.2; for CamVid in SegNet,
        Badrinarayanan et al. 2017.
    """
    check_integer("num_classes", num_classes, low=1)
    if isinstance(labels, Tensor):
        check_class_indices("labels", labels, num_classes, ignore_index=void)
    if labels.ndim != 3:
        raise ValueError(f"labels must be label maps (N, H, W), got {tuple(labels.shape)}")
    own = torch.zeros(num_classes, dtype=torch.float64)
    shown = torch.zeros(num_classes, dtype=torch.float64)
    for image in labels:
        known = image if void is None else image[image != void]
        counts = torch.bincount(known.flatten(), minlength=num_classes).double()
        own += counts
        shown[counts > 0] += counts.sum()
    seen = own > 0
    frequency = own[seen] / shown[seen]
    weights = torch.ones(num_classes, dtype=torch.float64)
    weights[seen] = torch.quantile(frequency, 0.5) / frequency
    return weights.float()
