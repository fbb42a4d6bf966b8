"""Adaptive and conditional label smoothing (ACLS): cross entropy with its regulariser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from sfumato.labels._entries import Reduction, check_reduction, prepare_entries
from sfumato.labels.acls_regulariser import Condition, Form, Smoothing, checked_equation, gated
from sfumato.labels.correctness import CorrectnessHistory
from sfumato.labels.cross_entropy import cross_entropy_fidelity


def acls_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    predicted_weight: float = 0.1,
    other_weight: float = 0.01,
    form: Form = "paper",
    smoothing: Smoothing = "adaptive",
    condition: Condition = "margin",
    correctness: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Adaptive and conditional label smoothing: cross entropy plus `acls_penalty`.

    It lowers the predicted class in proportion to how far its logit stands out, raises the others
    in proportion to how far they fall behind, and leaves alone what is within the margin.

        L = -sum_k q_k log p_k + acls_penalty

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        margin: M; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and PASCAL VOC.
        predicted_weight: lambda_1 of the predicted class; 0.1 everywhere.
        other_weight: lambda_2 of the other classes; 0.01 everywhere.
        form: "paper", "gradient" or "released".
        smoothing, condition, correctness: ablations, see `acls_penalty`.
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> import torch
        >>> acls_loss(torch.tensor([[14.0, 0.0, 2.0]]), torch.tensor([0]))
        tensor(1.7000)

    Reference:
        Park et al. 2023 (ACLS), Eq. (10)-(14). Forms, normalisation and `Differs:` in
        `acls_penalty`.
    """
    equation = checked_equation(margin, predicted_weight, other_weight, form, smoothing, condition)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    fidelity = cross_entropy_fidelity(
        entries, class_weight=class_weight, margin=equation.counted_from
    )
    values = equation.values(fidelity.softmax, entries.num_classes)
    values = gated(values, fidelity.softmax, entries, condition, correctness)
    return fidelity.plus(values, reduction)  # Eq. (14)


class ACLSLoss(nn.Module):
    """Adaptive and conditional label smoothing as a module; see `acls_loss`.

    Args:
        margin: M; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and PASCAL VOC.
        predicted_weight: lambda_1 of the predicted class; 0.1 everywhere.
        other_weight: lambda_2 of the other classes; 0.01 everywhere.
        form: "paper", "gradient" (Eq. 12 to the letter) or "released" (the authors' code).
        smoothing: "adaptive", or "constant" for the conditional-only ablation.
        condition: "margin", or "always" and "ranking" for the ablations.
        num_samples: size of the training set, for "ranking": the module then keeps a
            `CorrectnessHistory` and wants the data set indices of each batch. Without it
            "ranking" needs `correctness` in the call.
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".
    """

    is_of_single_entries: ClassVar[bool] = True
    is_conservative: ClassVar[bool] = False  # its gradient holds the predicted logit constant
    class_weight: Tensor | None

    def __init__(
        self,
        *,
        margin: float = 10.0,
        predicted_weight: float = 0.1,
        other_weight: float = 0.01,
        form: Form = "paper",
        smoothing: Smoothing = "adaptive",
        condition: Condition = "margin",
        num_samples: int | None = None,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        checked_equation(margin, predicted_weight, other_weight, form, smoothing, condition)
        check_reduction(reduction)
        self.margin = margin
        self.predicted_weight = predicted_weight
        self.other_weight = other_weight
        self.form: Form = form
        self.smoothing: Smoothing = smoothing
        self.condition: Condition = condition
        self.history: CorrectnessHistory | None = None
        if condition == "ranking" and num_samples is not None:
            self.history = CorrectnessHistory(num_samples)
        self.register_buffer("class_weight", class_weight)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    @staticmethod
    def remembers_samples(options: Mapping[str, object]) -> bool:
        """Whether a loss with these options keeps a history of each sample."""
        return options.get("condition") == "ranking"

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        correctness: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        """Args: logits (N, C, ...), target, and for "ranking" the correctness or indices (N, ...).

        A history is read before and, in training mode, updated after the loss is computed.
        """
        if self.history is not None and correctness is None:
            correctness = self.history.correctness(_known(index))
        loss = self._loss(logits, target, correctness)
        if self.history is not None and self.training:
            self.history.record(logits, target, _known(index), ignore_index=self.ignore_index)
        return loss

    def _loss(self, logits: Tensor, target: Tensor, correctness: Tensor | None) -> Tensor:
        return acls_loss(
            logits,
            target,
            margin=self.margin,
            predicted_weight=self.predicted_weight,
            other_weight=self.other_weight,
            form=self.form,
            smoothing=self.smoothing,
            condition=self.condition,
            correctness=correctness,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _known(index: Tensor | None) -> Tensor:
    if index is None:
        raise TypeError('condition="ranking" with num_samples needs index=, the data set indices')
    return index
