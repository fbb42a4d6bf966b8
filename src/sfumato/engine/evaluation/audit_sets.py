"""Prediction sets of audited predictions: fitted on one half of the rows, measured on the other."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._core.binomial import clopper_pearson_upper
from sfumato.engine.evaluation.audit_scaling import shared_logits
from sfumato.engine.runs.prediction_rows import PredictionFile
from sfumato.metrics import class_coverage, mean_set_size, set_coverage
from sfumato.predictions import ConformalPredictor, TemperatureScaler

_ENTRIES = 4_000_000  # that are sorted; beyond, rows are drawn
_FEWEST = 200
_LONGEST = 12  # sizes that have a bar of their own
_METHODS: tuple[tuple[str, str, bool], ...] = (
    ("THR", "thr", False),
    ("THR per class", "thr", True),
    ("APS", "aps", False),
    ("RAPS", "raps", False),
)


def sets_of(file: PredictionFile, *, alpha: float = 0.1, seed: int = 0) -> dict[str, Any] | None:
    """Coverage and sizes of THR, APS and RAPS sets, as the model is and after a temperature.

    Args:
        file: predictions in memory.
        alpha: how often a set may miss the label.
        seed: of the division into halves.

    Returns:
        `alpha`, `temperature`, `rows`, one for each kind of sets, and `by_class`, the coverage of
        plain THR sets and of those per class with its interval; None for label maps and for fewer
        than 200 predictions, of which a half says too little.
    """
    count = len(file)
    if file.predictions.ndim != 2 or count < _FEWEST:
        return None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = order[: max(_FEWEST, _ENTRIES // file.predictions.shape[1])]
    fitted, shown = (_chosen(file, half) for half in order.tensor_split(2))
    temperature, before, after = _scaled(fitted, shown)
    rows, by_class = [], []
    for form, (ours, theirs) in (("", before), (", scaled", after)):
        for name, method, per_class in _METHODS:
            predictor = ConformalPredictor(method, alpha, per_class)  # type: ignore[arg-type]
            sets = predictor.fit(ours, fitted.labels).predict(theirs)
            rows.append({"name": f"{name}{form}", **_measured(sets, shown.labels)})
            if method == "thr" and not form:
                by_class.append({"name": name, **_by_class(sets, shown.labels, file.classes)})
    return {"alpha": alpha, "temperature": temperature, "rows": rows, "by_class": by_class}


Pair = tuple[Tensor, Tensor]


def _scaled(fitted: PredictionFile, shown: PredictionFile) -> tuple[float, Pair, Pair]:
    """The temperature of the first half; probabilities of both halves, without and with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the fit warns of is said where scaling is advised
        theirs, ours, _ = shared_logits(shown, fitted)
        scaler = TemperatureScaler().fit(ours, fitted.labels)
    plain = (fitted.probabilities, shown.probabilities)
    warm = (scaler(ours).double().softmax(1), scaler(theirs).double().softmax(1))
    return scaler.temperature, plain, warm


def _measured(sets: Tensor, labels: Tensor) -> dict[str, Any]:
    sizes = sets.sum(1)
    shares = torch.bincount(sizes.clamp(max=_LONGEST), minlength=_LONGEST + 1) / len(sizes)
    by_class = class_coverage(sets, labels)
    return {
        "coverage": float(set_coverage(sets, labels)),
        "mean_size": float(mean_set_size(sets)),
        "worst_class": float(by_class[~by_class.isnan()].min()),
        "single": float((sizes == 1).double().mean()),
        "empty": float((sizes == 0).double().mean()),
        "sizes": shares[: int(sizes.max().clamp(max=_LONGEST)) + 1].tolist(),
    }


def _by_class(sets: Tensor, labels: Tensor, classes: Sequence[str] | None) -> dict[str, Any]:
    """How often the sets hold the label, of each class that occurs, with a 95 % interval."""
    count = torch.bincount(labels, minlength=sets.shape[1])
    held = torch.bincount(labels[sets[torch.arange(len(labels)), labels]], minlength=len(count))
    seen = count.nonzero().flatten()
    count, held = count[seen], held[seen]
    columns = {
        "coverage": held / count,
        "low": 1 - clopper_pearson_upper(count - held, count, 0.025),
        "high": clopper_pearson_upper(held, count, 0.025),
    }
    names = [classes[number] if classes else str(number) for number in seen.tolist()]
    rounded = {name: column.double().round(decimals=4) for name, column in columns.items()}
    return {"classes": names, **{name: column.tolist() for name, column in rounded.items()}}


def _chosen(file: PredictionFile, rows: Tensor) -> PredictionFile:
    kind = "probs" if file.logits is None else "logits"
    return PredictionFile(file.name, file.labels[rows], **{kind: file.predictions[rows]})  # type: ignore[arg-type]
