"""Soft targets (N, C, ...): smoothed, tempered and objectness-weighted labels."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from sfumato._core.checks import (
    check_choice,
    check_class_indices,
    check_integer,
    check_number,
    is_traced,
)

SmoothingOver = Literal["all", "others"]
Amount = TypeVar("Amount", float, Tensor)


def smoothing_masses(
    amount: Amount, num_classes: int, over: SmoothingOver
) -> tuple[Amount, Amount]:
    """Factor h of the old label and mass u for every class: new = h * old + u.

    "all" spreads the amount over all C classes, the label's included; "others" over the C - 1
    others: (1 - a) y + (1 - y) a / (C - 1) = (1 - a - u) y + u with u = a / (C - 1).
    """
    if over == "all":
        return 1.0 - amount, amount / num_classes
    each = amount / (num_classes - 1)
    return 1.0 - amount - each, each


def smooth_labels(
    target: Tensor,
    amount: float | Tensor,
    *,
    num_classes: int | None = None,
    over: SmoothingOver = "all",
) -> Tensor:
    """Move part of each label's mass to the other classes.

        over="all":     q_k = (1 - a) y_k + a / C
        over="others":  q_k = (1 - a) y_k + (1 - y_k) a / (C - 1)

    Args:
        target: class indices (N, ...) or soft labels (N, C, ...), e.g. after mixup.
        amount: smoothing a in [0, 1]; a number, or (N,) or (N, ...) one per sample or entry.
        num_classes: C; needed for class indices, read from soft labels.
        over: "all" C classes or the C - 1 "others".

    Returns:
        Soft labels (N, C, ...), in the precision of soft `target`, else of a tensor `amount`,
        else the default one.

    Example:
        >>> smooth_labels(torch.tensor([2]), 0.1, num_classes=5)
        tensor([[0.0200, 0.0200, 0.9200, 0.0200, 0.0200]])
        >>> smooth_labels(torch.tensor([2]), 0.1, num_classes=5, over="others")
        tensor([[0.0250, 0.0250, 0.9000, 0.0250, 0.0250]])

    Reference:
        Szegedy et al. 2016. "all": ACLS (Park et al. 2023) Eq. (4), mollification (Heinonen et al.
        2025) Eq. (8). "others": adaptive label smoothing (Krothapalli & Abbott 2020) Eq. (5).
    """
    check_choice("over", over, ("all", "others"))
    labels = _soft_labels(target, num_classes, like=amount)
    factor, mass = smoothing_masses(_per_entry("amount", amount, labels), labels.shape[1], over)
    return (labels * factor + mass).to(labels.dtype)  # Eq. (4), (5), (8)


def temper_labels(
    target: Tensor, amount: float | Tensor, *, num_classes: int | None = None
) -> Tensor:
    """Scale labels down without giving the mass to other classes.

        q_k = (1 - g) y_k

    With cross entropy this weighs the sample by 1 - g: the likelihood is flattened but keeps its
    mode at the label, where label smoothing moves the mode.

    Args:
        target, num_classes: as in `smooth_labels`.
        amount: decay g in [0, 1]; a number, or (N,) or (N, ...) one per sample or entry.

    Example:
        >>> temper_labels(torch.tensor([0, 1]), torch.tensor([0.0, 0.75]), num_classes=3)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.2500, 0.0000]])

    Reference:
        Heinonen et al. 2025 (supervised mollification), Eq. (7).
    """
    labels = _soft_labels(target, num_classes, like=amount)
    decay = _per_entry("amount", amount, labels)
    return labels * (1.0 - decay)  # Eq. (7)


def objectness_labels(
    target: Tensor,
    objectness: Tensor,
    *,
    num_classes: int | None = None,
    beta: float = 1.0,
    absent: Literal["others", "uniform"] = "uniform",
) -> Tensor:
    """Smooth each label by how little of the image its object covers.

    A crop that shows only context should not be labelled with certainty. With a = 1 - objectness,

        q_k = beta [(1 - a) y_k + (1 - y_k) a / (C - 1)] + (1 - beta) y_k

    which is smoothing over the others by the amount beta * a.

    Args:
        target: class indices (N,) or soft labels (N, C).
        objectness: (N,) share w h / (W H) of the image covered by the object's box, in [0, 1].
        num_classes: C; needed for class indices.
        beta: 1 full adaptive smoothing, 0 hard labels; 0.75 leaves at least 0.25 on the label.
            Above (C - 1) / C the label of a small object falls below the other classes.
        absent: the adaptive part of the label where the objectness is exactly 0: "uniform", 1 / C
            on every class, as for the paper's images of context alone; or "others", Eq. (5) to the
            letter, 1 / (C - 1) on each class but the label.

    Example:
        >>> objectness_labels(torch.tensor([0, 0]), torch.tensor([1.0, 0.4]), num_classes=4)
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.4000, 0.2000, 0.2000, 0.2000]])

    Reference:
        Krothapalli & Abbott 2020 (adaptive label smoothing), Eq. (5) and (6).

    Differs:
        Eq. (6) as printed has a wrong sign before its second term; the soft label above it, from
        which it follows, is what is computed here.
    """
    check_number("beta", beta, low=0.0, high=1.0)
    labels = _soft_labels(target, num_classes, like=objectness)
    check_choice("absent", absent, ("others", "uniform"))
    share = _per_entry("objectness", objectness, labels)
    if absent == "uniform":  # Eq. (5) is uniform where a = (C - 1) / C
        share = torch.where(share == 0, 1.0 / labels.shape[1], share)
    amount = beta * (1.0 - share)
    factor, mass = smoothing_masses(amount, labels.shape[1], "others")
    return labels * factor + mass  # Eq. (5), (6)


def _soft_labels(target: Tensor, num_classes: int | None, *, like: float | Tensor) -> Tensor:
    """Soft labels (N, C, ...) of class indices or of soft labels."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if target.is_floating_point():
        if target.ndim < 2 or (num_classes is not None and target.shape[1] != num_classes):
            expected = "C" if num_classes is None else num_classes
            raise ValueError(
                f"soft target must have shape (N, {expected}, ...), got {tuple(target.shape)}"
            )
        check_integer("number of classes", target.shape[1], low=2)
        return target
    if num_classes is None:
        raise TypeError("num_classes must be given when target holds class indices")
    check_integer("num_classes", num_classes, low=2)
    if target.ndim < 1:
        raise ValueError("target must have a batch dimension, got a scalar; use target[None]")
    # A compiled or traced call can't branch on values.
    if not is_traced():
        check_class_indices("target", target, num_classes)
    dtype = like.dtype if isinstance(like, Tensor) else torch.get_default_dtype()
    return functional.one_hot(target.long(), num_classes).movedim(-1, 1).to(dtype)


def _per_entry(name: str, amount: float | Tensor, labels: Tensor) -> Tensor:
    """The amount in [0, 1], shaped to multiply (N, C, ...) labels."""
    if not isinstance(amount, Tensor):
        check_number(name, amount, low=0.0, high=1.0)
        return labels.new_tensor(amount)
    if not amount.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {amount.dtype}")
    entry_shape = labels.shape[:1] + labels.shape[2:]
    if amount.ndim and amount.shape not in (entry_shape, entry_shape[:1]):
        raise ValueError(
            f"{name} must be a number, ({labels.shape[0]},) or {tuple(entry_shape)}, "
            f"got shape {tuple(amount.shape)}"
        )
    if not is_traced() and bool(((amount < 0) | ~(amount <= 1)).any()):
        raise ValueError(
            f"{name} must be in [0, 1], got values in "
            f"[{float(amount.min()):g}, {float(amount.max()):g}]"
        )
    if amount.shape == entry_shape and amount.ndim:
        return amount.unsqueeze(1)
    return amount.reshape(-1, *(1,) * (labels.ndim - 1)) if amount.ndim else amount
