"""Audits of predictions that were only counted: histograms of confidence, as segmentation keeps.

A file of a histogram holds `counts`, `correct` and `confidence` (its sum), each (B,) or (U, B) with
a row for each image, in any bins. The calibration error is exact where the bins nest in 15 of equal
width; other bins count as a whole where their mean confidence falls.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato._core.confidence_bins import edge_slack
from sfumato.engine.evaluation.audit_tallies import Tallies
from sfumato.engine.runs.prediction_rows import PredictionFileError
from sfumato.metrics.fine_cells import cell_index

_NAMES = ("counts", "correct", "confidence")


def read_histogram(path: Path) -> Tallies | None:
    """The tallies of a histogram file, or of a run that kept one; None for any other file."""
    if path.is_dir():
        return _of_run(path)
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as content:
            if not set(_NAMES) <= set(content.files):
                return None
            arrays = [torch.from_numpy(content[name].astype(np.float64)) for name in _NAMES]
    except Exception:
        return None  # broken: whoever reads files of predictions says how
    return tallies_of_histogram(str(path), *arrays)


def tallies_of_histogram(
    where: str, counts: Tensor, correct: Tensor, confidence: Tensor
) -> Tallies:
    """Tallies of counts, right ones and summed confidences, (B,) or (U, B) each.

    Raises:
        PredictionFileError: other shapes, more right ones than there are, confidences outside
            [0, 1], nothing counted.
    """
    counts, correct, confidence = (torch.atleast_2d(each) for each in (counts, correct, confidence))
    _check(where, counts, correct, confidence)
    found = Tallies()
    found.has_scores, found.slack = False, edge_slack(torch.float32)
    total, hits, mass = (each.sum(0) for each in (counts, correct, confidence))
    filled = total > 0
    total, hits, mass = total[filled], hits[filled], mass[filled]
    mean = (mass / total).clamp(0, 1)
    place = 2 * cell_index(mean, found.cells, dtype=torch.float32)
    for offset, count in ((0, total - hits), (1, hits)):
        found.sums.index_add_(0, place + offset, torch.stack([count, count * mean], 1))
    if len(counts) > 1:  # a bin counts as a whole where its mean confidence falls
        overall_mean = confidence.sum(0) / counts.sum(0).clamp(min=1)
        found.images.add_counts(overall_mean.clamp(0, 1), counts, counts - correct)
    found.overall += _units(counts.sum(1), correct.sum(1), confidence.sum(1))
    return found


def _units(count: Tensor, hits: Tensor, mass: Tensor) -> Tensor:
    """Sums over images; of one image alone, no interval can be told."""
    kept = count > 0
    count, hits, excess = count[kept], hits[kept], (mass - hits)[kept]
    columns = (count, hits, hits + excess, excess**2, excess * count, count**2, kept[kept].double())
    return torch.stack([each.sum() for each in columns])


def _check(where: str, counts: Tensor, correct: Tensor, confidence: Tensor) -> None:
    if not counts.shape == correct.shape == confidence.shape or counts.ndim != 2:
        shapes = ", ".join(str(tuple(each.shape)) for each in (counts, correct, confidence))
        raise PredictionFileError(
            f"{where}: 'counts', 'correct' and 'confidence' of a histogram must be (B,) or (U, B) "
            f"of one shape, got {shapes}"
        )
    slack = 1e-6 * counts + 1e-6
    bad = (correct < 0) | (correct > counts) | (confidence < 0) | (confidence > counts + slack)
    if bool((bad | confidence.isnan()).any()):
        row, column = (bad | confidence.isnan()).nonzero()[0].tolist()
        raise PredictionFileError(
            f"{where}, row {row}, bin {column}: 'correct' must not exceed 'counts', nor "
            "'confidence', the sum over the bin"
        )
    if not float(counts.sum()):
        raise PredictionFileError(f"{where}: holds no prediction")


def _of_run(path: Path) -> Tallies | None:
    """A segmentation run keeps no predictions, but the bins of its reliability diagram."""
    metrics = path / "metrics.json"
    if (path / "predictions").is_dir() or not metrics.is_file():
        return None
    try:
        bins = json.loads(metrics.read_text(encoding="utf-8"))["test"]["reliability"]
        counts = torch.tensor(bins["counts"], dtype=torch.float64)
        shares = [[each or 0.0 for each in bins[key]] for key in ("accuracy", "confidence")]
    except (ValueError, KeyError, TypeError):
        return None
    accuracy, confidence = (torch.tensor(each, dtype=torch.float64) for each in shares)
    hits = (counts * accuracy).round()
    return tallies_of_histogram(str(metrics), counts, hits, counts * confidence)
