"""Prediction sets: how often they hold the label, and how large they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato._core.arrays import to_labels, to_tensor


def set_coverage(sets: Any, target: Any) -> Tensor:
    """Share of the samples whose set holds the label.

    Args:
        sets: whether each class is in the set of each sample; boolean, (N, C).
        target: class indices, (N,).

    Example:
        >>> sets = torch.tensor([[True, True, False], [False, False, True]])
        >>> set_coverage(sets, torch.tensor([0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    held, _ = _held(sets, target)
    return held.mean()


def class_coverage(sets: Any, target: Any) -> Tensor:
    """`set_coverage` of the samples of each class, (C,); NaN for a class without samples.

    Sets that hold 90 % of all labels can hold 60 % of those of a rare class. Args as in
    `set_coverage`.
    """
    held, labels = _held(sets, target)
    size = to_tensor("sets", sets).shape[1]
    sums = torch.bincount(labels, weights=held, minlength=size)
    return sums / torch.bincount(labels, minlength=size)


def mean_set_size(sets: Any) -> Tensor:
    """Mean number of classes in a set.

    Args:
        sets: whether each class is in the set of each sample; boolean, (N, C).

    Example:
        >>> mean_set_size(torch.tensor([[True, True, False], [False, False, True]]))
        tensor(1.5000, dtype=torch.float64)
    """
    return _check_sets(sets).double().sum(1).mean()


def set_size_counts(sets: Any) -> Tensor:
    """Number of sets with 0, 1, ... C classes, (C + 1,). Args as in `mean_set_size`."""
    members = _check_sets(sets)
    return torch.bincount(members.sum(1), minlength=members.shape[1] + 1)


def _held(sets: Any, target: Any) -> tuple[Tensor, Tensor]:
    members = _check_sets(sets)
    labels = to_labels("target", target, len(members), members.shape[1]).to(members.device)
    return members.gather(1, labels.unsqueeze(1)).squeeze(1).double(), labels


def _check_sets(sets: Any) -> Tensor:
    members = to_tensor("sets", sets)
    if members.ndim != 2 or members.dtype != torch.bool:
        raise ValueError(
            f"sets must be boolean (N, C), got {members.dtype} {tuple(members.shape)}. "
            "ConformalPredictor.predict gives them."
        )
    return members
