"""Entropy confidence penalty (ECP): reward predictions for their entropy."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.labels._entries import (
    LossModule,
    Reduction,
    arguments_of,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.cross_entropy import cross_entropy_fidelity


def entropy_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Minus the entropy of the predictions, divided by the number of classes: -log(C) / C to 0.

        R = (1 / C) sum_k p_k log p_k

    Args:
        target: only says which entries are ignored; None for none.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> import torch
        >>> entropy_penalty(torch.zeros(1, 4))
        tensor(-0.3466)

    Reference:
        Pereyra et al. 2017.

    Differs:
        The average is over N x C, as in the code of MbLS, with which its weight 0.1 was tuned: the
        entropy proper is C times larger. That code clamps probabilities at 1e-10.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax()
    return reduce_entries(softmax.entropy / entries.num_classes, softmax, reduction)


def ecp_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy with a penalty on confident, low-entropy predictions.

        L = -sum_k q_k log p_k + weight * entropy_penalty

    Args:
        weight: of the penalty, at least 0; 0.1 in MbLS and ACLS on every data set.
        class_weight: (C,), for the cross entropy only.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> import torch
        >>> ecp_loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1524)

    Reference:
        Pereyra et al. 2017; normalised as in the code of MbLS, see `entropy_penalty`.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    fidelity = cross_entropy_fidelity(entries, class_weight=class_weight)
    penalty = fidelity.softmax.entropy * (weight / entries.num_classes)
    return fidelity.plus(penalty, reduction)


class ECPLoss(LossModule):
    """Cross entropy with a penalty on low entropy as a module; see `ecp_loss`."""

    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(ecp_loss)
    def __init__(self) -> None: ...
