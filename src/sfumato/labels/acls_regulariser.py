"""The regulariser of adaptive and conditional label smoothing (ACLS), in all its forms."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_floating, check_number
from sfumato.labels._entries import (
    Entries,
    Reduction,
    check_reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels._neighbours import next_valid
from sfumato.ops.softmax import SoftmaxSummary

Form = Literal["paper", "gradient", "released"]
Smoothing = Literal["adaptive", "constant"]
Condition = Literal["margin", "always", "ranking"]


class Equation(NamedTuple):
    """The parameters of the regulariser, and its value for each entry."""

    margin: float
    predicted_weight: float
    other_weight: float
    form: Form
    smoothing: Smoothing
    condition: Condition

    @property
    def counted_from(self) -> float:
        """Without the condition every class counts, however near it is."""
        return self.margin if self.condition == "margin" else 0.0

    def values(self, softmax: SoftmaxSummary, num_classes: int) -> Tensor:
        predicted, others = self._predicted(softmax), self._others(softmax, num_classes)
        weight = self.other_weight / (num_classes - 1)
        values = torch.add(self.predicted_weight * predicted, others, alpha=weight)  # Eq. (13)
        # Eq. (12) is the derivative of half the squares of Eq. (13).
        is_half = self.form == "gradient" and self.smoothing == "adaptive"
        return values / 2 if is_half else values

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

    def _others(self, softmax: SoftmaxSummary, num_classes: int) -> Tensor:
        """The sum over the classes below the top, which is held constant."""
        if self.condition == "margin":
            return softmax.squares if self.smoothing == "adaptive" else softmax.excess
        margin, number = self.margin, num_classes - 1
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
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The regulariser of ACLS: smooth more the further apart the logits are, beyond a margin.

    With t the predicted class, x_t = z_t - min_k z_k - M and x_j = z_t - z_j - M,

        R = predicted_weight relu(x_t)^2 + other_weight / (C - 1) sum_{j != t} relu(x_j)^2

    The second sum holds z_t constant. The forms differ in how the first part is differentiated:

        "paper"     the value of Eq. (13): z_t goes down and the minimum goes up by the same amount,
                    so the gradient sums to zero over the classes;
        "gradient"  Eq. (12) to the letter: the minimum is a constant and there is no factor 2, so
                    the value is half of R;
        "released"  the authors' code: x_t = z_t - M, the raw top logit.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: only says which entries are ignored; None for none.
        margin: M, at least 0.
        predicted_weight: lambda_1, at least 0.
        other_weight: lambda_2, at least 0.
        form: see above.
        smoothing: "adaptive" as above (Eq. 10); "constant" replaces the squares by relu(x), whose
            gradient is a constant: the conditional-only ablation of Table 5.
        condition: "margin" as above (Eq. 11); "always" has x in place of relu(x), which also pulls
            logits apart up to the margin: the adaptive-only ablation of Table 5; "ranking" does so
            only where confidence and correctness disagree in order with the next entry of the
            batch: Table 6.
        correctness: (N, d1, ...) share of past epochs in which each entry was right, for "ranking".
        ignore_index: class index of entries to skip.
        reduction: "mean" over the entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". Add it to a fidelity term.

    Raises:
        TypeError, ValueError: bad logits, target or parameters; correctness without "ranking" or
            "ranking" without correctness.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[14.0, 0.0, 2.0]])
        >>> acls_penalty(logits, margin=10.0)  # 0.1 * 4^2 + 0.01 * (4^2 + 2^2) / 2
        tensor(1.7000)

    Reference:
        Park et al. 2023 (ACLS), Eq. (10)-(13), Tables 2, 5 and 6.

    Differs:
        Eq. (13) is a sum over the classes; the second part is averaged over the C - 1 other classes
        and all over the entries, as in the released code, for which 0.1 and 0.01 were tuned. The
        released code has two weights times alpha, 0.1 x (1.0, 0.1), and counts ignored pixels.
        Eq. (12) is the derivative of Eq. (13) only up to a factor 2 and with the minimum constant;
        its gradient doesn't sum to zero over the classes, so that logits drift.
    """
    equation = checked_equation(margin, predicted_weight, other_weight, form, smoothing, condition)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    softmax = entries.softmax(margin=equation.counted_from)
    values = equation.values(softmax, entries.num_classes)
    values = gated(values, softmax, entries, condition, correctness)
    return reduce_entries(values, softmax, reduction)


def checked_equation(
    margin: float,
    predicted_weight: float,
    other_weight: float,
    form: Form,
    smoothing: Smoothing,
    condition: Condition,
) -> Equation:
    """The regulariser with these parameters.

    Raises:
        TypeError, ValueError: one of them is not what `acls_penalty` takes.
    """
    check_number("margin", margin, low=0.0)
    check_number("predicted_weight", predicted_weight, low=0.0)
    check_number("other_weight", other_weight, low=0.0)
    check_choice("form", form, ("paper", "gradient", "released"))
    check_choice("smoothing", smoothing, ("adaptive", "constant"))
    check_choice("condition", condition, ("margin", "always", "ranking"))
    return Equation(margin, predicted_weight, other_weight, form, smoothing, condition)


def gated(
    values: Tensor,
    softmax: SoftmaxSummary,
    entries: Entries,
    condition: Condition,
    correctness: Tensor | None,
) -> Tensor:
    """The values, under "ranking" only where confidence and correctness disagree in order."""
    if condition != "ranking":
        if correctness is not None:
            raise ValueError(f'correctness is used by condition="ranking" only, got {condition!r}')
        return values
    if correctness is None:
        raise ValueError(
            'condition="ranking" needs correctness, one number per entry: '
            "pass CorrectnessHistory.correctness(index)"
        )
    check_floating("correctness", correctness)
    if correctness.shape != entries.shape:
        raise ValueError(
            f"correctness must have shape {tuple(entries.shape)}, one number per entry, "
            f"got {tuple(correctness.shape)}"
        )
    return torch.where(is_ranked_wrongly(softmax, correctness), values, 0.0)


def is_ranked_wrongly(softmax: SoftmaxSummary, correctness: Tensor) -> Tensor:
    """Where confidence and correctness order an entry and the next valid one differently.

    H(n, m) (p_n - p_m) < 0 with H(n, m) the difference in correctness; the last valid entry is
    compared with the first.
    """
    confidence = softmax.top.detach().exp()
    partner = next_valid(softmax.valid, confidence)
    history = correctness.to(confidence)
    lead, gap = history - partner(history), confidence - partner(confidence)
    return lead * gap < 0  # supplement Eq. (21)
