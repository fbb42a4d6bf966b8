"""Online label smoothing: the soft label of a class is the mean of its right predictions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, distributed

from sfumato._core.checks import (
    KeepsPrecision,
    check_floating,
    check_integer,
    check_number,
    to_float64_device,
)
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.correctness import are_many_processes
from sfumato.ops.softmax import SoftmaxSummary


def online_label_smoothing_loss(
    logits: Tensor,
    target: Tensor,
    *,
    soft_labels: Tensor | None = None,
    weight: float = 0.5,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy with the label and with a soft label of its class.

    The other classes share as the network's own right predictions of that class do, so that what
    looks alike stays alike.

        L = -weight log p_y - (1 - weight) sum_k S_yk log p_k

    Args:
        target: class indices (N, d1, ...); soft targets have no class y and are refused.
        soft_labels: (C, C) S, row y the soft label of class y; None for hard ones, which gives
            cross entropy.
        weight: alpha, of the hard label, in [0, 1]; 0.5 as released.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits, soft = torch.tensor([[2.0, 0.0, -1.0]]), torch.full((3, 3), 1 / 3)
        >>> online_label_smoothing_loss(logits, torch.tensor([0]))
        tensor(0.1698)
        >>> online_label_smoothing_loss(logits, torch.tensor([0]), soft_labels=soft)
        tensor(1.0032)

    Reference:
        Zhang et al., "Delving Deep into Label Smoothing", IEEE Transactions on Image Processing
        2021.
    """
    check_number("weight", weight, low=0.0, high=1.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax(table=_mixed(entries, soft_labels, weight))
    return reduce_entries(-softmax.label, softmax, reduction)


class OnlineLabelSmoothingLoss(LossModule, KeepsPrecision, function=online_label_smoothing_loss):
    """`online_label_smoothing_loss` with soft labels that it gathers in training.

    In training mode each call adds the probabilities of the entries that are predicted right to
    their class. `end_epoch` makes their means the soft labels of the next epoch; the first epoch
    has cross entropy. A class that was never right gets equal shares. Save the state dict with the
    checkpoint.

    Args:
        num_classes: C.

    Example:
        >>> loss = OnlineLabelSmoothingLoss(num_classes=2)
        >>> loss(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.7201)
        >>> loss.end_epoch()
        >>> loss.soft_labels
        tensor([[0.8808, 0.1192],
                [0.5000, 0.5000]])

    Reference:
        Zhang et al. 2021.

    Differs:
        In the first epoch the released code has zeros for soft labels, and so half of the cross
        entropy.
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True
    weight: float
    soft_labels: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        weight: float = 0.5,
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals())
        check_integer("num_classes", num_classes, low=2)
        self.register_buffer("soft_labels", torch.eye(num_classes))
        # In float32 a sum over the millions of pixels of an epoch would stop growing.
        self.register_buffer("sums", torch.zeros(num_classes, num_classes, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.float64))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        entries = self.entries(logits, target, soft=False)
        table = _mixed(entries, self.soft_labels, self.weight)
        softmax = entries.softmax(table=table, wants_predicted=self.training)
        if self.training:
            self._record(entries, softmax)
        return reduce_entries(-softmax.label, softmax, self.reduction)

    @torch.no_grad()
    def _record(self, entries: Entries, softmax: SoftmaxSummary) -> None:
        right = softmax.predicted == entries.indices
        if softmax.valid is not None:
            right &= softmax.valid
        # Zeros for the others, where a mask would give shapes that torch.compile can't know.
        probs = entries.logits.movedim(1, -1).softmax(-1).where(right.unsqueeze(-1), 0.0)
        probs, label, hits = (to_float64_device(x) for x in (probs, entries.safe_indices, right))
        self.sums.index_add_(0, label.flatten(), probs.flatten(0, -2).to(self.sums))
        self.counts.index_add_(0, label.flatten(), hits.flatten().to(self.counts))

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Make soft labels of what was gathered; call it once after each epoch."""
        if are_many_processes():
            # Where every process has seen the whole batch, both sides of the quotient grow alike.
            distributed.all_reduce(self.sums)
            distributed.all_reduce(self.counts)
        count = self.counts.unsqueeze(1)
        means = self.sums / count.clamp(min=1)
        # A class that was never right has no mean: equal shares say "nothing known".
        self.soft_labels.copy_(torch.where(count > 0, means, 1 / len(self.counts)))
        self.sums.zero_()
        self.counts.zero_()


def _mixed(entries: Entries, soft_labels: Tensor | None, weight: float) -> Tensor | None:
    """(C, C), the target of each class: its label and its soft label; None for hard ones."""
    if soft_labels is None:
        return None
    check_floating("soft_labels", soft_labels)
    classes = entries.num_classes
    if soft_labels.shape != (classes, classes):
        raise ValueError(
            f"soft_labels must have shape ({classes}, {classes}), a soft label for each class, "
            f"got {tuple(soft_labels.shape)}"
        )
    table = (1 - weight) * soft_labels.to(entries.like)
    return table + weight * torch.eye(classes, dtype=table.dtype, device=table.device)
