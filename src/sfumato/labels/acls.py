"""Adaptive and conditional label smoothing (ACLS): its regulariser in all forms, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, get_args

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
from sfumato.labels.correctness import CorrectnessHistory
from sfumato.labels.cross_entropy import cross_entropy_fidelity
from sfumato.ops.softmax import SoftmaxSummary

Form = Literal["paper", "gradient", "released"]
Smoothing = Literal["adaptive", "constant"]
Condition = Literal["margin", "always", "ranking"]


class _Equation(NamedTuple):
    """The parameters of the regulariser, and its value for each entry."""

    margin: float
    predicted_weight: float
    other_weight: float
    form: Form
    smoothing: Smoothing
    condition: Condition

    def checked(self) -> _Equation:
        for name in ("margin", "predicted_weight", "other_weight"):
            check_number(name, getattr(self, name), low=0.0)
        for name, choices in (("form", Form), ("smoothing", Smoothing), ("condition", Condition)):
            check_choice(name, getattr(self, name), get_args(choices))
        return self

    @property
    def counted_from(self) -> float:
        """Without the condition every class counts, however near it is."""
        return self.margin if self.condition == "margin" else 0.0

    def values(
        self, softmax: SoftmaxSummary, entries: Entries, correctness: Tensor | None
    ) -> Tensor:
        others = entries.num_classes - 1
        values = self.predicted_weight * self._predicted(softmax)
        values = values.add(self._others(softmax, others), alpha=self.other_weight / others)
        # Eq. (12) is the derivative of half the squares of Eq. (13).
        is_half = self.form == "gradient" and self.smoothing == "adaptive"
        values = values / 2 if is_half else values  # Eq. (13)
        if self.condition == "ranking":
            hint = "Pass CorrectnessHistory.correctness(index)"
            if correctness is None:
                raise ValueError(
                    f'condition="ranking" needs correctness, one number per entry. {hint}'
                )
            correctness = checked_for_each("correctness", correctness, entries, hint=hint)
            return torch.where(is_ranked_wrongly(softmax, correctness), values, 0.0)
        if correctness is not None:
            raise ValueError(
                f'correctness is used by condition="ranking" only, got {self.condition!r}'
            )
        return values

    def _predicted(self, softmax: SoftmaxSummary) -> Tensor:
        if self.form == "released":
            distance = softmax.highest - self.margin
        elif self.form == "gradient":
            low = (softmax.highest - softmax.range).detach()
            distance = softmax.highest - low - self.margin
        else:
            distance = softmax.range - self.margin
        if self.condition == "margin":
            distance = distance.relu()  # Eq. (11)
        if self.smoothing == "adaptive":
            distance = distance.square()  # Eq. (10)
        return distance * softmax.top_ties if self.form == "released" else distance

    def _others(self, softmax: SoftmaxSummary, number: int) -> Tensor:
        """The sum over the classes below the top, which is held constant."""
        if self.condition == "margin":
            return softmax.squares if self.smoothing == "adaptive" else softmax.excess
        # Without relu, sums from margin 0 are shifted by the margin in closed form.
        margin = self.margin
        if self.smoothing == "constant":
            return softmax.excess - margin * number
        return softmax.squares - 2 * margin * softmax.excess + margin**2 * number


def acls_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    margin: float = 10.0,
    predicted_weight: float = 0.1,
    other_weight: float = 0.01,
    form: Form = "paper",
    smoothing: Smoothing = "adaptive",
    condition: Condition = "margin",
    correctness: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The regulariser of ACLS: smooth more the further apart the logits are, beyond a margin.

    With t the predicted class, x_t = z_t - min_k z_k - M and x_j = z_t - z_j - M,

        R = predicted_weight relu(x_t)^2 + other_weight / (C - 1) sum_{j != t} relu(x_j)^2

    The second sum holds z_t constant. All forms divide lambda_2 by C - 1, as the released code does
    and Eq. (12) and (13) do not; they differ in the first part:

        "paper"     Eq. (13): z_t goes down and the minimum goes up by the same amount, so the
                    gradient sums to zero over the classes;
        "gradient"  Eq. (12): the minimum is a constant and there is no factor 2, so the value is
                    half of R;
        "released"  the authors' code, which their results come from: x_t = z_t - M, the raw top
                    logit, and several predicted classes where logits tie.

    For the equations as they are printed, pass `other_weight` = lambda_2 (C - 1).

    Args:
        target: only says which entries are ignored; None for none.
        margin, predicted_weight, other_weight, form: as in `acls_loss`.
        smoothing: "adaptive" as above (Eq. 10); "constant" replaces the squares by relu(x): the
            conditional-only ablation of Table 5.
        condition: "margin" as above (Eq. 11); "always" has x in place of relu(x), which also pulls
            logits apart up to the margin: the adaptive-only ablation of Table 5; "ranking" does so
            only where confidence and correctness order an entry and the next differently: Table 6.
        correctness: (N, d1, ...) share of past epochs in which each entry was right, for "ranking".
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[14.0, 0.0, 2.0]])
        >>> acls_penalty(logits, margin=10.0)  # 0.1 * 4^2 + 0.01 * (4^2 + 2^2) / 2
        tensor(1.7000)

    Reference:
        Park et al. 2023 (ACLS), Eq. (10)-(13), Tables 2, 5 and 6.

    Differs:
        The second part is averaged over the C - 1 other classes as in the released code, for which
        0.1 and 0.01 were tuned; Eq. (13) sums it. The released code has two weights times alpha,
        0.1 x (1.0, 0.1), and counts ignored pixels. Eq. (12) is the derivative of Eq. (13) only up
        to a factor 2 and with the minimum constant: its gradient doesn't sum to zero over the
        classes, so that logits drift.
    """
    parameters = (margin, predicted_weight, other_weight, form, smoothing, condition)
    equation = _Equation(*parameters).checked()
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax(margin=equation.counted_from)
    return reduce_entries(equation.values(softmax, entries, correctness), softmax, reduction)


def is_ranked_wrongly(softmax: SoftmaxSummary, correctness: Tensor) -> Tensor:
    """True where confidence and correctness order an entry and the next valid one differently."""
    confidence = softmax.top.detach().exp()
    partner = next_valid(softmax.valid, confidence)
    # Only the order of the two matters; ties on either side give 0 and are not counted as wrong.
    lead, gap = correctness - partner(correctness), confidence - partner(confidence)
    return lead * gap < 0  # supplement Eq. (21)


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
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Adaptive and conditional label smoothing: cross entropy plus `acls_penalty`.

        L = -sum_k q_k log p_k + acls_penalty

    Args:
        margin: M; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and PASCAL VOC.
        predicted_weight: lambda_1 of the predicted class; 0.1 everywhere.
        other_weight: lambda_2 of the other classes, divided by C - 1; 0.01 everywhere.
        form: "paper" (Eq. 13), "gradient" (Eq. 12) or "released" (the authors' code, which their
            results come from), see `acls_penalty`.
        smoothing, condition, correctness: ablations, see `acls_penalty`.
        class_weight: (C,), for the cross entropy only.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> acls_loss(torch.tensor([[14.0, 0.0, 2.0]]), torch.tensor([0]))
        tensor(1.7000)

    Reference:
        Park et al. 2023 (ACLS), Eq. (10)-(14); forms and `Differs:` in `acls_penalty`.
    """
    parameters = (margin, predicted_weight, other_weight, form, smoothing, condition)
    equation = _Equation(*parameters).checked()
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    fidelity = cross_entropy_fidelity(
        entries, class_weight=class_weight, margin=equation.counted_from
    )
    values = equation.values(fidelity.softmax, entries, correctness)
    return fidelity.plus(values, reduction)  # Eq. (14)


class ACLSLoss(LossModule, function=acls_loss):
    """Adaptive and conditional label smoothing as a module; see `acls_loss`.

    Args:
        smoothing: "adaptive", or "constant" for the conditional-only ablation.
        condition: "margin", or "always" and "ranking" for the ablations.
        num_samples: size of the training set, for "ranking": the module then keeps a
            `CorrectnessHistory` and wants the data set indices of each batch. Without it
            "ranking" needs `correctness` in the call.
    """

    is_of_single_entries: ClassVar[bool] = True
    is_conservative: ClassVar[bool] = False  # its gradient holds the predicted logit constant
    margin: float
    predicted_weight: float
    other_weight: float
    form: Form
    smoothing: Smoothing
    condition: Condition

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
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals())
        self.history: CorrectnessHistory | None = None
        if condition == "ranking" and num_samples is not None:
            self.history = CorrectnessHistory(num_samples)

    def _check(self, **more: Tensor | None) -> None:
        # An empty batch has an empty correctness.
        super()._check(correctness=torch.empty(0) if self.condition == "ranking" else None)

    @staticmethod
    def remembers_samples(options: Mapping[str, object]) -> bool:
        """True if a loss with these options keeps a history of each sample."""
        return options.get("condition") == "ranking"

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        correctness: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        """Args: logits, target, and for "ranking" the correctness or the indices, (N, ...)."""
        if self.history is not None and correctness is None:
            correctness = self.history.correctness(_known(index))
        loss = acls_loss(logits, target, correctness=correctness, **self._options())
        # After the loss: an epoch is judged by what earlier epochs knew.
        if self.history is not None and self.training:
            moved = logits.movedim(self.class_dim, 1)
            self.history.record(moved, target, _known(index), ignore_index=self.ignore_index)
        return loss


def _known(index: Tensor | None) -> Tensor:
    if index is None:
        raise TypeError('condition="ranking" with num_samples needs index=, the data set indices')
    return index
