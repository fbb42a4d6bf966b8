"""Max suppression (MaxSup): label smoothing that takes from the predicted class, right or wrong."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number, to_float64
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    factor_like,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.cross_entropy import cross_entropy_fidelity
from sfumato.ops.softmax import SoftmaxSummary


def maxsup_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return how far the largest logit is above the mean of all.

        R = max_k z_k - (1 / C) sum_k z_k

    Args:
        target: only says which entries are ignored; None for none.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> maxsup_penalty(torch.tensor([[2.0, 0.0, -1.0]]))
        tensor(1.6667)

    Reference:
        Zhou et al., "MaxSup: Overcoming Representation Collapse in Label Smoothing", NeurIPS 2025.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax()
    return reduce_entries(_penalty(softmax, entries), softmax, reduction)


def maxsup_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy with a penalty on the largest logit, whether it is the label's or not.

    Label smoothing is cross entropy plus a (z_y - mean z), which makes mistakes more confident: it
    pulls the label's logit down. With max z for z_y the penalty acts on what is predicted.

        L = -sum_k q_k log p_k + weight (max_k z_k - (1 / C) sum_k z_k)

    Args:
        weight: alpha, at least 0; the authors raise it from 0.1 to 0.2, as `MaxSupLoss` does.
        class_weight: (C,), for the cross entropy only.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> maxsup_loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.3365)

    Reference:
        Zhou et al. 2025, see `maxsup_penalty`.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    return _loss(entries, weight, class_weight, reduction)


class MaxSupLoss(LossModule):
    """`maxsup_loss` with a weight that rises linearly from the first epoch to the last.

    Call `end_epoch` after each epoch, and save the state dict with the checkpoint.

    Args:
        weight: alpha in the first epoch, at least 0.
        last_weight: alpha in the last epoch, at least 0.
        epochs: of the whole training; a study tells it.

    Example:
        >>> loss = MaxSupLoss(epochs=3)
        >>> loss.end_epoch()
        >>> round(loss.current_weight, 3)
        0.15

    Differs:
        Of the released scripts two reach 0.2 in the last epoch, as here and in the paper, and one
        divides by the number of epochs and stays just below it.
    """

    is_of_single_entries: ClassVar[bool] = True
    weight: float
    last_weight: float
    epochs: int
    completed_epochs: Tensor

    def __init__(
        self,
        *,
        weight: float = 0.1,
        last_weight: float = 0.2,
        epochs: int = 1,
        class_weight: Tensor | None = None,
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals())
        check_number("weight", weight, low=0.0)
        check_number("last_weight", last_weight, low=0.0)
        check_integer("epochs", epochs, low=0)
        self.register_buffer("completed_epochs", torch.zeros((), dtype=torch.int64))

    @property
    def current_weight(self) -> float:
        """Alpha of the epoch that is being trained."""
        return float(self._weight())

    def _weight(self) -> Tensor:
        """Alpha as a tensor, because torch.compile can't read a number of the epochs."""
        share = (to_float64(self.completed_epochs) / max(1, self.epochs - 1)).clamp(max=1.0)
        return self.weight + (self.last_weight - self.weight) * share

    def end_epoch(self) -> None:
        """Count one more completed epoch; call it once after each."""
        self.completed_epochs += 1

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        entries = self.entries(logits, target)
        return _loss(entries, self._weight(), self.class_weight, self.reduction)


def _loss(
    entries: Entries, weight: float | Tensor, class_weight: Tensor | None, reduction: Reduction
) -> Tensor:
    fidelity = cross_entropy_fidelity(entries, class_weight=class_weight)
    penalty = _penalty(fidelity.softmax, entries)
    return fidelity.plus(factor_like(weight, penalty) * penalty, reduction)


def _penalty(softmax: SoftmaxSummary, entries: Entries) -> Tensor:
    # The normaliser is in both and cancels: log p of the top minus the mean of log p.
    return softmax.top - softmax.total / entries.num_classes
