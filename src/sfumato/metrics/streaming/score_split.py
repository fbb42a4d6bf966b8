"""Calibration and refinement of a stream: mean scores after each of the fixed temperatures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sfumato._core.checks import check_choice
from sfumato.metrics.score_split import (
    LOG_TEMPERATURES,
    SCORES,
    Score,
    ScoreSplit,
    split_of_losses,
    sum_losses,
)
from sfumato.metrics.scored_samples import flat_rows


class StreamingScoreSplit(Metric):
    """`score_split` of a stream, exactly: 33 sums.

    Args:
        score: "nll" or "brier".
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update.
        kwargs: `torchmetrics.Metric` options.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    score_sums: Tensor

    def __init__(
        self,
        *,
        score: Score = "nll",
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("score", score, SCORES)
        self.score: Score = score
        self.from_logits, self.ignore_index, self.validate = from_logits, ignore_index, validate
        zeros = torch.zeros(len(LOG_TEMPERATURES) + 1, dtype=torch.float64)  # the last counts
        self.add_state("score_sums", zeros, dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        rows, labels = flat_rows(
            predictions,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
            softmax=False,
        )
        sums = sum_losses(rows, labels, are_logits=self.from_logits)
        self.score_sums[:-1] += sums[0, SCORES.index(self.score)]
        self.score_sums[-1] += len(labels)

    def compute(self) -> ScoreSplit:
        """The parts of everything seen so far."""
        return split_of_losses(self.score_sums[:-1] / self.score_sums[-1])
