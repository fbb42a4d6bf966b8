"""What a run measures on images without their object, and of confidence against objectness."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sfumato.data import ArrayDataset, TensorLoader
from sfumato.engine.evaluation.predict import predict_here
from sfumato.engine.runs.directory import Predictions
from sfumato.engine.runs.progress import progress_bar
from sfumato.labels import box_objectness
from sfumato.metrics import (
    average_confidence,
    calibration_error,
    mean_objectness_deviation,
    overconfidence,
    underconfidence,
)

OBJECTNESS_BINS = 10


def context_metrics(found: Predictions) -> dict[str, float]:
    """Accuracy and average, over- and underconfidence (table 1); low confidence is honest."""
    probs = found.logits.softmax(1)
    correct = probs.argmax(1) == found.labels
    return {
        "samples": len(found.labels),
        "accuracy": float(correct.double().mean()),
        "average_confidence": float(average_confidence(probs, found.labels)),
        "overconfidence": float(overconfidence(probs, found.labels)),
        "underconfidence": float(underconfidence(probs, found.labels)),
    }


def objectness_metrics(found: Predictions, objectness: Tensor) -> dict[str, Any]:
    """Mean objectness deviation, ECE at 15 and 100 bins, MCE, and confidence by objectness."""
    probs = found.logits.softmax(1)
    bins = (objectness * OBJECTNESS_BINS).long().clamp(max=OBJECTNESS_BINS - 1)
    counts = bins.bincount(minlength=OBJECTNESS_BINS)
    curve = {"objectness": objectness, "confidence": probs.amax(1)}
    curve["accuracy"] = (probs.argmax(1) == found.labels).float()
    means = {
        name: (bins.bincount(values.double(), OBJECTNESS_BINS) / counts).tolist()
        for name, values in curve.items()
    }
    return {
        "mean_objectness": float(objectness.double().mean()),
        "mean_objectness_deviation": float(mean_objectness_deviation(probs, objectness)),
        "ece_15": float(calibration_error(probs, found.labels, num_bins=15)),
        "ece_100": float(calibration_error(probs, found.labels, num_bins=100)),
        "mce": float(calibration_error(probs, found.labels, num_bins=15, norm="max")),
        "curve": {"counts": counts.tolist(), **means},
    }


def evaluate_context(predictor: nn.Module, loader: TensorLoader, *, show: bool) -> dict[str, float]:
    """Table 1 of the paper; one process does it alone.

    Args:
        predictor: gives logits.
        loader: of the context-only test images.
        show: whether to draw a progress bar.
    """
    with progress_bar("context-only images", len(loader), show=show) as bar:
        return context_metrics(predict_here(predictor, loader, bar))


def objectness_of(test: ArrayDataset) -> Tensor:
    """(N,) share of each whole image that its boxes cover, in the order of saved predictions.

    Raises:
        ValueError: images without boxes.
    """
    if test.boxes is None:
        raise ValueError("evaluate.context needs test images with boxes, and this data has none")
    order = test.index.argsort(stable=True)
    height, width = test.images.shape[-2:]
    return box_objectness(test.boxes, (height, width))[order].cpu()
