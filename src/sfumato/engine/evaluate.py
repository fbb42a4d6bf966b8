"""From predictions to the numbers that a run keeps."""

from __future__ import annotations

from typing import Any

import torch

from sfumato.engine.results import Predictions
from sfumato.engine.seeds import fold_seed
from sfumato.metrics import evaluate_predictions, reliability

RELIABILITY_BINS = 15


def evaluate(found: Predictions, *, resamples: int, seed: int) -> dict[str, Any]:
    """Every metric with its bootstrap interval, and the bins of the reliability diagram."""
    generator = torch.Generator().manual_seed(fold_seed(seed, "bootstrap"))
    values = evaluate_predictions(
        found.labels, logits=found.logits, resamples=resamples, generator=generator
    )
    bins = reliability(found.logits.softmax(1), found.labels, num_bins=RELIABILITY_BINS)
    return {
        **values,
        "samples": len(found.labels),
        "reliability": {
            "counts": bins.counts.tolist(),
            "confidence": bins.confidences.tolist(),
            "accuracy": bins.accuracies.tolist(),
        },
    }
