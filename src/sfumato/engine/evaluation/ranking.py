"""Confidences that rank predictions without being probabilities, measured as others are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.evaluation.split_metrics import measure_split
from sfumato.engine.runs.directory import Predictions
from sfumato.predictions import LogitNormaliser

_OF_RANKS = ("aurc", "augrc", "accuracy_at_80")


def measure_normalised(
    held_out: Predictions, test: Predictions, replicates: Replicates
) -> dict[str, Any]:
    """Selective metrics of the test set when normalised logits say which predictions to keep.

    Label smoothing makes softmax a bad judge of that; what a norm of the logits knows better is
    chosen on held-out predictions, softmax included (Xia et al., ICLR 2025).
    """
    scorer = LogitNormaliser().fit(held_out.logits, held_out.labels)
    ranked = Predictions(ranked_logits(scorer(test.logits)), test.labels, test.index)
    values = measure_split(ranked, replicates=replicates, split="normalised", names=_OF_RANKS)
    del values["ece_floor"]  # says nothing of ranks
    return values if scorer.order is None else {"order": scorer.order, **values}


def ranked_logits(scores: Tensor) -> Tensor:
    """Logits of the same classes whose largest probability is ordered as the largest score is.

    Args:
        scores: (N, C), normalised logits or log probabilities, whose maximum is at least -log C.

    Example:
        >>> ranked_logits(torch.tensor([[0.8, -0.3, -0.5]])).softmax(1).max().item() > 1 / 3
        True
    """
    highest, predicted = scores.double().max(1, keepdim=True)
    lead = highest + math.log(scores.shape[1])
    return torch.zeros_like(scores, dtype=torch.float64).scatter(1, predicted, lead)
