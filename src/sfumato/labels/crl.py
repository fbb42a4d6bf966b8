"""Correctness ranking loss (CRL), and its smoothing under the condition of ACLS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_number
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    checked_for_each,
    next_valid,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.correctness import CorrectnessHistory, check_one_index_each
from sfumato.labels.cross_entropy import cross_entropy_loss
from sfumato.ops.softmax import SoftmaxSummary


def conditional_confidence_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    margin: float = 10.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The confidence of entries whose logits are further apart than a margin.

    CRL smooths by the gradient of the confidence p_t, Eq. (20), where two samples are in the wrong
    order. Here the condition is that of ACLS, class by class: z_j takes part where z_t - z_j > M.

        R = 1[z_t - min_k z_k > M] p_t,   the logits that take no part held constant

        dR/dz_t = p_t (1 - p_t) 1[z_t - min_k z_k > M]
        dR/dz_j = -p_t p_j 1[z_t - z_j > M]                              (Eq. 11 and Eq. 20)

    Args:
        target: only says which entries are ignored; None for none.
        margin: M, at least 0.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
        >>> conditional_confidence_penalty(logits, margin=1.0, reduction="none")
        tensor([0.8808, 0.0000])

    Reference:
        ACLS, Table 6 ("CRL" with the margin condition), which names no equation of its own.
    """
    check_number("margin", margin, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    plain = entries.plain()
    scores = plain.logits
    top, predicted = scores.max(1, keepdim=True)
    stands_out = top - scores.amin(1, keepdim=True) > margin  # Eq. (11), j = t
    acts = (top - scores > margin).scatter(1, predicted, stands_out)  # Eq. (11)
    held = torch.where(acts, scores, scores.detach())
    confidence = held.log_softmax(1).gather(1, predicted).exp()
    values = torch.where(stands_out, confidence, 0.0).squeeze(1)  # its gradient is Eq. (20)
    return reduce_entries(values, plain, reduction)


ConfidenceKind = Literal["softmax", "margin", "entropy"]
RankingCondition = Literal["ranking", "margin"]


def ranking_penalty(
    logits: Tensor,
    target: Tensor,
    correctness: Tensor,
    *,
    confidence: ConfidenceKind = "softmax",
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Hinge on neighbours of a batch whose confidences are ordered against their correctness.

    Entry i is paired with the next valid entry j, the last with the first:

        L_CRL = 1/N sum_i max(0, -sign(h_i - h_j) (k_i - k_j) + |h_i - h_j|)            (Eq. 18)

    with h the correctness and k the confidence; pairs of equal correctness cost nothing.

    Args:
        target: class indices (N, d1, ...) or soft targets; tells only which entries are ignored.
        correctness: (N, d1, ...) in [0, 1], as `CorrectnessHistory` has it.
        confidence: k is "softmax": max p; "margin": the largest p minus the second largest;
            "entropy": minus the entropy divided by log C.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        >>> ranking_penalty(logits, torch.tensor([0, 0]), torch.tensor([0.2, 0.6]))
        tensor(0.5497)

    Reference:
        ACLS supplement, Eq. (18)-(21).

    Differs:
        Eq. (18) is a plain sum over pairs without the shift |h_i - h_j|; mean and shift as
        released. The shift keeps the term active until the confidences are as far apart as h.
    """
    check_choice("confidence", confidence, get_args(ConfidenceKind))
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax, values = _ranking(entries, correctness, confidence)
    return reduce_entries(values, softmax, reduction)


def crl_loss(
    logits: Tensor,
    target: Tensor,
    correctness: Tensor,
    *,
    weight: float = 1.0,
    confidence: ConfidenceKind = "softmax",
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus `weight` times `ranking_penalty`.

        L = L_CE + weight L_CRL                                                         (Eq. 18)

    Args:
        correctness, confidence: as in `ranking_penalty`.
        weight: lambda; 1 as released.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        >>> crl_loss(logits, torch.tensor([0, 0]), torch.tensor([0.2, 0.6]))
        tensor(0.7698)

    Reference:
        ACLS supplement, Eq. (18)-(21); `Differs:` in `ranking_penalty`.
    """
    check_number("weight", weight, low=0.0)
    check_choice("confidence", confidence, get_args(ConfidenceKind))
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax, ranking = _ranking(entries, correctness, confidence)
    return reduce_entries(weight * ranking - softmax.label, softmax, reduction)


class CRLLoss(LossModule):
    """`crl_loss` with its own `CorrectnessHistory`; call it with the data set indices of the batch.

    In training mode each call updates the history after the loss is computed. Call
    `loss.history.end_epoch()` after each epoch, and save the state dict with the checkpoint.

    Args:
        num_samples: size of the training set.
        weight: lambda.
        confidence: "softmax", "margin" or "entropy".
        condition: "ranking" (None is the same), or "margin" for `conditional_confidence_penalty`
            in its place, without a history: the ablation of ACLS, Table 6.
        margin: M of the condition "margin".

    Example:
        >>> loss = CRLLoss(num_samples=3)
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        >>> loss(logits, torch.tensor([0, 1]), torch.tensor([2, 0]))
        tensor(0.7201)
        >>> loss.history.counts
        tensor([0, 0, 1])
    """

    takes_soft_targets: ClassVar[bool] = False
    weight: float
    confidence: ConfidenceKind
    margin: float | None

    def __init__(
        self,
        num_samples: int,
        *,
        weight: float = 1.0,
        confidence: ConfidenceKind = "softmax",
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        condition: RankingCondition | None = None,
        margin: float | None = None,
    ) -> None:
        super().__init__(locals())
        check_number("weight", weight, low=0.0)
        check_choice("confidence", confidence, get_args(ConfidenceKind))
        _check_condition(condition, margin, confidence)
        self.history = CorrectnessHistory(num_samples)

    @staticmethod
    def remembers_samples(options: Mapping[str, object]) -> bool:
        """True if a loss with these options keeps a history of each sample."""
        return options.get("condition") != "margin"

    def forward(  # type: ignore[override]  # a history needs the samples' indices
        self, logits: Tensor, target: Tensor, index: Tensor
    ) -> Tensor:
        """Args: logits (N, C, ...), class indices (N, ...), data set indices shaped like them."""
        if self.margin is not None:
            return self._beyond_margin(logits, target, self.margin)
        entries = self.entries(logits, target, soft=False)
        correctness = self.history.correctness(index)
        check_one_index_each(index, entries.shape)
        softmax, ranking = _ranking(entries, correctness, self.confidence)
        if self.training:
            self.history.record(entries.logits, target, index, ignore_index=self.ignore_index)
        return reduce_entries(self.weight * ranking - softmax.label, softmax, self.reduction)

    def _beyond_margin(self, logits: Tensor, target: Tensor, margin: float) -> Tensor:
        names = ("class_dim", "ignore_index", "reduction")
        options = {name: getattr(self, name) for name in names}
        penalty = conditional_confidence_penalty(logits, target, margin=margin, **options)
        return cross_entropy_loss(logits, target, **options) + self.weight * penalty


def _check_condition(
    condition: RankingCondition | None, margin: float | None, confidence: ConfidenceKind
) -> None:
    if condition is not None:
        check_choice("condition", condition, get_args(RankingCondition))
    if (condition == "margin") != (margin is not None):
        raise ValueError(
            f"condition 'margin' and margin need each other, as condition='margin', margin=10.0; "
            f"got condition={condition!r}, margin={margin!r}"
        )
    if margin is not None:
        check_number("margin", margin, low=0.0)
        if confidence != "softmax":
            raise ValueError(
                f"condition 'margin' is defined for confidence='softmax', got {confidence!r}"
            )


def _measure(entries: Entries, kind: ConfidenceKind) -> tuple[SoftmaxSummary, Tensor]:
    """The numbers of every entry, and its confidence."""
    if kind == "margin":
        plain = entries.plain()
        first, second = plain.log_probs.topk(2, dim=1).values.exp().unbind(1)
        return plain, first - second
    softmax = entries.softmax()
    if kind == "softmax":
        return softmax, softmax.top.exp()
    return softmax, softmax.entropy / math.log(entries.num_classes)


def _ranking(
    entries: Entries, correctness: Tensor, kind: ConfidenceKind
) -> tuple[SoftmaxSummary, Tensor]:
    """The numbers of every entry, and its hinge with the next valid entry as its partner."""
    hint = "Pass history.correctness(index)"
    correctness = checked_for_each("correctness", correctness, entries, hint=hint)
    softmax, confidence = _measure(entries, kind)
    partner = next_valid(softmax.valid, confidence)
    lead = correctness - partner(correctness)  # H(n, m)
    gap = confidence - partner(confidence)
    # Without a lead there is nothing to rank.
    hinge = torch.where(lead != 0, lead.abs() - lead.sign() * gap, 0.0).relu()  # Eq. (18)
    return softmax, hinge
