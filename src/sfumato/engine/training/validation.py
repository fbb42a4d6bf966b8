"""What validation measures after every epoch of a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from sfumato.data import TensorLoader
from sfumato.engine.evaluation.predict import predict
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.progress import Bar
from sfumato.engine.training.notes import Note
from sfumato.metrics import evaluate_predictions
from sfumato.predictions.temperature import fit_likelihood

Measure = Callable[[nn.Module, TensorLoader, Fabric, Bar], dict[str, float]]


def measure_labels(
    model: nn.Module,
    loader: TensorLoader,
    fabric: Fabric,
    bar: Bar,
    *,
    scaled: bool = False,
    note: Note | None = None,
) -> dict[str, float]:
    """Accuracy, NLL and ECE of one label for each image; NaN where a logit is not finite.

    With `scaled` also the NLL after the temperature that suits these labels best: what is left of
    the loss once confidences are right (Berta et al., arXiv 2501.19195). `note` is called with
    logits and labels, which are finite.
    """
    found = predict(model, loader, fabric, bar)
    if not bool(torch.isfinite(found.logits).all()):
        return dict.fromkeys(("accuracy", "nll", "ece"), math.nan)
    if note is not None:
        note(found.logits, found.labels)
    values = evaluate_predictions(found.labels, logits=found.logits, splits=False)
    measured = {name: float(values[name]) for name in ("accuracy", "nll", "ece")}
    if scaled:
        rows = found.logits.double()
        cooled = rows / fit_likelihood(rows, found.labels)
        measured["scaled_nll"] = float(F.cross_entropy(cooled, found.labels))
    return measured
