"""Post-hoc logit normalisation: restores the order of confidences that label smoothing spoils.

Towards Understanding Why Label Smoothing Degrades Selective Classification and How to Fix It, Xia
et al., ICLR 2025 (arXiv 2403.14715), after How to Fix a Broken Confidence Estimator, Cattelan and
Silva, UAI 2024 (MaxLogit-pNorm).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import KeepsPrecision, check_logit_values, check_number, to_tensor
from sfumato.predictions.scalers import NOT_FITTED, check_logits, held_out_rows

ORDERS = tuple(float(order) for order in range(10))
_SOFTMAX = -1.0  # stored in place of an order where softmax ranks best


def normalise_logits(logits: Tensor, *, order: float) -> Tensor:
    """Centred logits divided by their p-norm; their maximum is the confidence.

    z' = (z - mean(z)) / ||z - mean(z)||_p. Label smoothing holds the largest logit down most where
    the prediction is right, so the maximum softmax ranks predictions badly; the norm carries what
    was lost.

    Args:
        logits: (N, C) or (N, C, d1, ...), and so is the result; where they are all equal it is 0.
        order: p of the norm; 0 centres only.

    Example:
        >>> normalise_logits(torch.tensor([[5.0, 1.0, 0.0]]), order=2)
        tensor([[ 0.8018, -0.2673, -0.5345]])

    Reference:
        Xia et al. 2025, Sec. 5; Cattelan and Silva 2024 (p chosen by area under risk-coverage).
    """
    check_logits(logits)
    check_number("order", order, low=0.0)
    centred = logits - logits.mean(1, keepdim=True)
    if order == 0:
        return centred
    if logits.shape[1] < 3:
        raise ValueError(
            f"logits must have at least 3 classes, got {tuple(logits.shape)}: normalised logits of "
            "two classes are the same for all samples. Use order=0 or the softmax."
        )
    tiny = torch.finfo(logits.dtype).tiny
    # The largest entry is divided out first: powers of big logits would overflow.
    unit = centred / centred.abs().amax(1, keepdim=True).clamp_min(tiny)
    return unit / torch.linalg.vector_norm(unit, order, 1, keepdim=True).clamp_min(tiny)


class LogitNormaliser(KeepsPrecision):
    """Turns logits into scores whose maximum ranks predictions by how likely they are right.

    `fit` takes the order with the smallest area under the risk-coverage curve on held-out data, of
    0, 1, ... 9 and the softmax itself (which networks trained with hard labels may need). Scores
    order predictions for selective classification; they are no probabilities, and the predicted
    class stays.

    Args:
        order: p of the norm, to use without `fit`; see `normalise_logits`.

    Example:
        >>> scorer = LogitNormaliser(order=2)
        >>> scorer.confidence(torch.tensor([[5.0, 1.0, 0.0], [5.0, 4.0, 0.0]]))
        tensor([0.8018, 0.5345])

    Reference:
        `normalise_logits`. Differs: order 0, in the released code of Cattelan and Silva a division
        by the number of classes, leaves the centred logits as they are; the ranking is the same.
    """

    _order: Tensor
    _known_order: float  # the same as a plain number: it decides which operations are done

    def __init__(self, order: float | None = None) -> None:
        super().__init__()
        if order is not None:
            check_number("order", order, low=0.0)
        self._known_order = math.nan if order is None else float(order)
        value = torch.tensor(self._known_order, dtype=torch.float64, device="cpu")
        self.register_buffer("_order", value)
        self.register_load_state_dict_post_hook(LogitNormaliser._note_order)

    @property
    def order(self) -> float | None:
        """The order p of the norm; None where the softmax ranked best."""
        if math.isnan(self._known_order):
            raise ValueError(
                "the order is not known yet: call fit(logits=..., target=...) first, or give order="
            )
        return None if self._known_order == _SOFTMAX else self._known_order

    def fit(
        self,
        logits: Any,
        target: Any,
        *,
        ignore_index: int = -100,
        any_logits: bool = False,
    ) -> LogitNormaliser:
        """Find the order on held-out logits; returns itself. The softmax wins among equals.

        Args:
            logits, target: raw scores, (N, C, ...), and class indices, (N, ...).
            ignore_index: label of entries that count for nothing.
            any_logits: accept logits that look like probabilities.
        """
        scores = to_tensor("logits", logits)
        if not any_logits:
            check_logit_values("logits", scores)
        target = to_tensor("target", target).to(scores.device)
        rows, labels = held_out_rows(scores, target, ignore_index)
        wrong = (rows.argmax(1) != labels).double()
        # Two normalised classes are the same for every sample.
        orders = ORDERS if rows.shape[1] > 2 else (0.0,)
        tried = (None, *orders)
        areas = [float(_risk_coverage_area(_scores(rows, p).amax(1), wrong)) for p in tried]
        self._order.fill_((_SOFTMAX, *orders)[areas.index(min(areas))])
        self._note_order()
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """The scores, like `logits`: normalised logits, or log probabilities for the softmax."""
        check_logits(logits)
        return _scores(logits, self.order)

    def confidence(self, logits: Tensor) -> Tensor:
        """The largest score of each prediction, (N, ...)."""
        return self(logits).amax(1)

    def _note_order(self, *_rest: Any) -> None:
        self._known_order = float(self._order)

    def extra_repr(self) -> str:
        value = self._known_order
        if math.isnan(value):
            return NOT_FITTED
        return f"order={'softmax' if value == _SOFTMAX else f'{value:g}'}"


def _scores(logits: Tensor, order: float | None) -> Tensor:
    return logits.log_softmax(1) if order is None else normalise_logits(logits, order=order)


def _risk_coverage_area(confidence: Tensor, wrong: Tensor) -> Tensor:
    """Mean over k of the error among the k most confident; equals count as their average."""
    ordered, order = confidence.sort(descending=True)
    _, group, sizes = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    errors = wrong.new_zeros(len(sizes)).index_add_(0, group, wrong[order]) / sizes
    kept = torch.arange(1, len(wrong) + 1, device=wrong.device)
    return (errors[group].cumsum(0) / kept).mean()
