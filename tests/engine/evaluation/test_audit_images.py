"""Whole images in sums: thresholds and D-ECE of files of any size are those of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet

from sfumato.engine.evaluation import audit_images
from sfumato.engine.evaluation.audit import audit, judge_tallies
from sfumato.engine.evaluation.audit_histograms import tallies_of_histogram
from sfumato.engine.evaluation.audit_tallies import Summed, Tallies, Wanted
from sfumato.engine.evaluation.audit_thresholds import Target
from sfumato.engine.evaluation.audit_workers import jobs_of, tally
from sfumato.engine.runs.prediction_files import Reading, read_any
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import detection_calibration_error
from sfumato.predictions import class_risk_thresholds, risk_threshold
from sfumato.report.audit_sentences import images_sentence, sentences, warnings_of

IMAGES = 900
WANTED = Wanted(sample=True, per_class=True)
TARGET = Target(0.25, per_class=True, most_per_image=4)


def _content() -> dict[str, np.ndarray]:
    """Detections of images that err together, in any order of the rows."""
    rng = np.random.default_rng(0)
    image = np.arange(IMAGES).repeat(rng.integers(1, 12, IMAGES))
    score = rng.uniform(0.3, 1, len(image)).astype(np.float32)
    harder = rng.normal(0, 0.1, IMAGES)[image]
    corner = rng.uniform(0, 0.5, (len(image), 2))
    order = rng.permutation(len(image))
    content = {
        "image": np.array([f"{number}.jpg" for number in image]),
        "score": score,
        "predicted": np.where(image % 3 == 0, "cat", "dog"),
        "matched": rng.random(len(image)) < score + harder,
        "box": np.hstack([corner, corner + 0.4]),
    }
    return {name: column[order] for name, column in content.items()}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three files of small row groups, among which images are divided."""
    content = _content()
    paths = []
    for part, rows in enumerate(np.array_split(np.arange(len(content["score"])), 3)):
        columns = {name: column[rows].tolist() for name, column in content.items()}
        paths.append(tmp_path / f"part-{part}.parquet")
        parquet.write_table(arrow.table(columns), paths[-1], row_group_size=500)
    return paths


def _summed(paths: list[Path], workers: int = 1) -> dict[str, Any]:
    tallies = tally(jobs_of(paths), Reading(), WANTED, workers=workers, bar=Bar())
    found = audit([Summed("model", tallies)], resamples=500, target=TARGET)
    model: dict[str, Any] = found["models"][0]
    return model


def test_sums_give_thresholds_and_errors_of_the_rows(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.engine.evaluation.audit_workers.ROWS_PER_JOB", 700)
    content = _content()
    score, matched = content["score"], content["matched"]
    model = _summed(shards)
    settings = {"target_risk": 0.25, "images": content["image"], "most_per_image": 4}
    exact = risk_threshold(score, matched, **settings)
    assert exact.confidence is not None
    accept = model["thresholds"]["accept"]
    for name in ("confidence", "coverage", "accepted", "errors", "images"):
        assert accept[name] == getattr(exact, name)
    assert accept["risk_bound"] == pytest.approx(exact.risk_bound)
    codes = (content["predicted"] == "dog").astype(int)
    by_class = class_risk_thresholds(score, matched, codes, **settings)
    for row, theirs in zip(model["thresholds"]["classes"], by_class.values(), strict=True):
        assert row["confidence"] == theirs.confidence
    metrics = model["metrics"]
    plain = detection_calibration_error(score, matched)
    assert metrics["d_ece"] == pytest.approx(float(plain))
    by_place = detection_calibration_error(score, matched, boxes=content["box"], bins=5, least=8)
    assert metrics["d_ece_by_place"] == pytest.approx(float(by_place))
    assert model["images"] == IMAGES
    assert "one with more than 4 accepted ones counts as 4" in " ".join(
        sentences({"models": [model]})
    )


def test_intervals_are_those_of_images_wherever_their_rows_stand(
    shards: list[Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", **_content())
    (rows,) = audit([read_any(tmp_path / "rows.npz")], resamples=500)["models"]
    summed = _summed(shards)
    for ours, theirs in (
        (summed["gap"]["interval"], rows["gap"]["interval"]),
        *(
            (summed["metrics"][key], rows["metrics"][key])
            for key in ("d_ece_interval", "d_ece_by_place_interval")
        ),
    ):
        assert ours[1] - ours[0] == pytest.approx(theirs[1] - theirs[0], rel=0.15)
    shown = summed["curve"]
    risk = np.divide(shown["wrong"], shown["kept"])
    assert (np.array(shown["bound"]) >= risk).all()
    middle = len(risk) // 2
    naive = 1.645 * np.sqrt(risk[middle] * (1 - risk[middle]) / shown["kept"][middle])
    assert shown["bound"][middle] > risk[middle] + naive  # as if rows were independent


def test_two_processes_find_the_same(shards: list[Path]) -> None:
    one, two = _summed(shards), _summed(shards, workers=2)
    assert one["thresholds"] == two["thresholds"]
    assert one["metrics"] == two["metrics"]


def test_a_sample_of_images_merges_in_any_order(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_images, "IMAGES", 200)
    parts = [
        tally([job], Reading(), WANTED, bar=Bar()) for path in shards for job in jobs_of([path])
    ]
    merged = [Tallies(WANTED), Tallies(WANTED)]
    for part in parts:
        merged[0].merge(part)
    for part in reversed(parts):
        merged[1].merge(part)
    first, second = (each.images for each in merged)
    assert first.size == second.size == 200
    assert first.images == pytest.approx(IMAGES, rel=0.25)
    assert not first.is_whole
    counts = [
        sorted(zip(*(part.tolist() for part in each.parts[:4]), strict=True))
        for each in (first, second)
    ]
    assert counts[0] == counts[1]
    # Each image that is in it is in it with all its rows.
    content = _content()
    sizes = {name: int((content["image"] == name).sum()) for name in set(content["image"])}
    kept = first.parts[0].unique(return_counts=True)[1]
    assert first.total == int(kept.sum())
    assert sorted(kept.tolist()) != sorted(sizes.values())[:200]
    judged = judge_tallies(
        "model", merged[0], resamples=0, generator=torch.Generator(), target=TARGET
    )
    assert "(200 random ones)" in images_sentence(judged)


def test_pixels_of_an_image_are_one_bet(tmp_path: Path) -> None:
    """Maps whose pixels are all alike: as many facts as images, however many pixels."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (400, 3, 1, 1)).repeat(4, 2).repeat(4, 3).astype(np.float32)
    best = logits[:, :, 0, 0].argmax(1)
    labels = np.where(rng.random(400) < 0.9, best, (best + 1) % 3)
    np.savez(
        tmp_path / "maps.npz",
        logits=logits,
        labels=labels[:, None, None] + np.zeros((1, 4, 4), int),
    )
    file = read_any(tmp_path / "maps.npz")
    (model,) = audit([file], resamples=0, target=Target(0.2))["models"]
    confidence = torch.from_numpy(logits[:, :, 0, 0]).softmax(1).amax(1)
    exact = risk_threshold(
        confidence, best == labels, target_risk=0.2, images=np.arange(400), most_per_image=1
    )
    accept = model["thresholds"]["accept"]
    assert exact.confidence is not None
    assert accept["confidence"] == exact.confidence
    assert accept["accepted"] == 16 * exact.accepted
    assert accept["risk_bound"] == pytest.approx(exact.risk_bound)
    tallies = Tallies()
    tallies.add(file)
    (summed,) = audit([Summed("maps", tallies)], resamples=0, target=Target(0.2))["models"]
    assert summed["thresholds"]["accept"] == accept


def test_counted_images_are_bets_too() -> None:
    rng = np.random.default_rng(2)
    counts = torch.from_numpy(rng.integers(0, 50, (300, 15))).double()
    correct = (counts * torch.linspace(0.5, 1, 15)).floor()
    mass = counts * (torch.arange(15) + 0.5) / 15
    tallies = tallies_of_histogram("a", counts, correct, mass)
    (model,) = audit([Summed("a", tallies)], resamples=0, target=Target(0.2))["models"]
    assert model["images"] == 300
    assert model["thresholds"]["accept"]["images"] <= 300
    assert warnings_of({"models": [model]}) == []
    whole = tallies_of_histogram("a", counts.sum(0), correct.sum(0), mass.sum(0))
    found = audit([Summed("a", whole)], resamples=0, target=Target(0.2))
    assert "a histogram without images" in warnings_of(found)[0]
