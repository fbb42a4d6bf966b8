"""Audits of predictions that were only counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit_histograms import read_histogram
from sfumato.engine.runs.prediction_rows import PredictionFileError
from sfumato.metrics import calibration_error


def _counted(images: int = 8, bins: int = 30) -> tuple[dict[str, np.ndarray], float]:
    """A histogram of each image, and the calibration error of their pixels."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(images, 500, generator=generator, dtype=torch.float64)
    right = torch.rand(images, 500, generator=generator) < confidence**2
    place = (confidence * bins).long().clamp(max=bins - 1) + bins * torch.arange(images)[:, None]
    sums = {
        name: np.bincount(place.flatten(), weights=weights.flatten(), minlength=images * bins)
        for name, weights in (
            ("counts", torch.ones_like(confidence)),
            ("correct", right.double()),
            ("confidence", confidence),
        )
    }
    probs = torch.stack([confidence, 1 - confidence], 2).view(-1, 2)
    error = calibration_error(probs, (~right).long().flatten())
    return {name: each.reshape(images, bins) for name, each in sums.items()}, float(error)


def test_a_file_of_histograms(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    arrays, error = _counted()
    np.savez(tmp_path / "a.npz", **arrays)
    done = sfumato("audit", "a.npz", "--resamples", "5", "--target-risk", "0.3", "--quiet")
    assert done.status == 0, done.stderr
    model = json.loads((tmp_path / "audit" / "audit.json").read_text())["models"][0]
    assert model["samples"] == 4000
    assert model["metrics"]["ece"] == pytest.approx(error, abs=1e-9)
    assert "nll" not in model["metrics"]
    excess = (arrays["confidence"] - arrays["correct"]).sum(1) / 500
    assert model["gap"]["gap"] == pytest.approx(excess.mean())
    width = 2.364624 * excess.std(ddof=1) / np.sqrt(8)
    assert model["gap"]["interval"][1] == pytest.approx(excess.mean() + width)


def test_a_segmentation_run(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    bins = {"counts": [10, 0, 30], "confidence": [0.2, None, 0.9], "accuracy": [0.1, None, 0.8]}
    folder = tmp_path / "25403a2604ab"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"test": {"reliability": bins}}))
    done = sfumato("audit", "25403a2604ab", "--resamples", "0", "--quiet")
    assert done.status == 0, done.stderr
    model = json.loads((tmp_path / "audit" / "audit.json").read_text())["models"][0]
    assert model["metrics"]["accuracy"] == pytest.approx(25 / 40)
    assert model["metrics"]["ece"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": np.ones(3)}, "of one shape"),
        ({"correct": np.array([9.0, 0.0])}, "row 0, bin 0: 'correct' must not exceed"),
        ({"counts": np.zeros(2), "correct": np.zeros(2), "confidence": np.zeros(2)}, "holds no"),
    ],
)
def test_wrong_histograms(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {"counts": [2.0, 2.0], "correct": [1.0, 1.0], "confidence": [1.0, 1.5]}
    np.savez(tmp_path / "a.npz", **{**arrays, **change})
    with pytest.raises(PredictionFileError, match=message):
        read_histogram(tmp_path / "a.npz")


def test_other_files_are_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", confidence=[0.5], correct=[1])
    (tmp_path / "b.npz").write_bytes(b"no zip")
    for path in (tmp_path / "a.npz", tmp_path / "b.npz", tmp_path):
        assert read_histogram(path) is None
