"""Calibration of detections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.metrics import (
    DetectionCalibrationError,
    bootstrap_interval,
    detection_calibration_error,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "predictions"


def draw(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    confidence, start = rng.uniform(0.3, 1, n), rng.uniform(0, 0.6, (n, 2))
    boxes = np.concatenate([start, start + rng.uniform(0, 0.4, (n, 2))], 1)
    return confidence, rng.random(n) < confidence**2, boxes


def loop(features: np.ndarray, confidence: np.ndarray, hits: np.ndarray, bins: int) -> float:
    cells: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(features):
        cells.setdefault(tuple(min(int(v * bins), bins - 1) for v in row), []).append(i)
    gaps = [abs(hits[i].sum() - confidence[i].sum()) for i in map(np.array, cells.values())]
    return float(sum(gaps) / len(hits))


def test_against_a_loop() -> None:
    confidence, hits, boxes = draw()
    found = detection_calibration_error(confidence, hits, num_bins=7)
    assert float(found) == pytest.approx(loop(confidence[:, None], confidence, hits, 7))
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    features = np.concatenate([confidence[:, None], centre, size], 1)
    found = detection_calibration_error(confidence, hits, boxes=boxes, num_bins=3)
    assert float(found) == pytest.approx(loop(features, confidence, hits, 3))
    tensors = (torch.tensor(x) for x in (confidence, hits))
    same = detection_calibration_error(*tensors, boxes=torch.tensor(boxes), num_bins=[3] * 5)
    assert float(same) == float(found)


def test_cells_of_few_detections_can_be_left_out() -> None:
    confidence, hits = [0.9, 0.9, 0.1], [1, 0, 1]
    assert float(detection_calibration_error(confidence, hits, least=2)) == pytest.approx(0.4)
    assert detection_calibration_error(confidence, hits, least=3).isnan()


def test_a_stream_is_the_whole() -> None:
    confidence, hits, boxes = draw()
    for with_boxes in (False, True):
        metric = DetectionCalibrationError(num_bins=4, with_boxes=with_boxes, least=2)
        for part in np.array_split(np.arange(400), 3):
            metric.update(confidence[part], hits[part], boxes[part] if with_boxes else None)
        whole = detection_calibration_error(
            confidence, hits, boxes=boxes if with_boxes else None, num_bins=4, least=2
        )
        assert float(metric.compute()) == pytest.approx(whole, rel=1e-12)


def test_intervals_agree() -> None:
    confidence, hits, _ = draw(2000)
    metric = DetectionCalibrationError()
    metric.update(confidence, hits)
    generator = torch.Generator().manual_seed(0)
    streamed = metric.interval(resamples=500, generator=generator)
    exact = bootstrap_interval(
        detection_calibration_error,
        torch.tensor(confidence),
        torch.tensor(hits),
        resamples=500,
        generator=generator,
    )
    assert streamed == pytest.approx(exact, abs=0.004)
    assert streamed[0] < float(metric.compute()) < streamed[1]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real prediction files are not here")
def test_real_detector() -> None:
    with np.load(SHARED / "coco-faster-rcnn.npz") as file:
        score, matched, boxes = file["score"], file["matched"], file["box"]
    assert float(detection_calibration_error(score, matched)) == pytest.approx(0.1905, abs=5e-5)
    finer = detection_calibration_error(score, matched, boxes=boxes, num_bins=[20, 2, 2, 2, 2])
    assert float(finer) > 0.1905  # gaps of parts don't cancel


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="boxes must be shares of the image"):
        detection_calibration_error([0.5], [1], boxes=[[0, 0, 100, 50]], num_bins=5)
    with pytest.raises(ValueError, match="x1 <= x2"):
        detection_calibration_error([0.5], [1], boxes=[[0.9, 0, 0.1, 0.5]], num_bins=5)
    with pytest.raises(ValueError, match=r"boxes must be \(1, 4\)"):
        detection_calibration_error([0.5], [1], boxes=[[0.9, 0]], num_bins=5)
    with pytest.raises(ValueError, match="bins must be one number or 1 numbers"):
        detection_calibration_error([0.5], [1], num_bins=[2, 3])
    with pytest.raises(ValueError, match="more than 10,000,000"):
        detection_calibration_error([0.5], [1], boxes=[[0, 0, 1, 1]], num_bins=100)
    with pytest.raises(ValueError, match="boxes must be left out here"):
        DetectionCalibrationError().update([0.5], [1], [[0, 0, 1, 1]])
