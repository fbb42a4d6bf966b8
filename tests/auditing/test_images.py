"""Predictions that share images: intervals, thresholds and D-ECE, of rows and of sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet

from sfumato._core.text import Bar
from sfumato.auditing import totals
from sfumato.auditing.files import Reading, read_any, read_batches
from sfumato.auditing.judge import Target, audit, judge
from sfumato.auditing.page import images_sentence, sentences, warnings_of
from sfumato.auditing.totals import Model, Tallies, Wanted, part_sums, tallies_of_histogram
from sfumato.auditing.workers import jobs_of, tally
from sfumato.metrics import detection_calibration_error
from sfumato.predictions import class_risk_thresholds, risk_threshold

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
    found = audit([Model("model", tallies)], resamples=500, target=TARGET)
    model: dict[str, Any] = found["models"][0]
    return model


def test_sums_give_thresholds_and_errors_of_the_rows(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.auditing.workers.ROWS_PER_JOB", 700)
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
    by_class = class_risk_thresholds(score, matched, predicted=codes, **settings)
    for row, theirs in zip(model["thresholds"]["classes"], by_class.values(), strict=True):
        assert row["confidence"] == theirs.confidence
    metrics = model["metrics"]
    plain = detection_calibration_error(score, matched)
    assert metrics["d_ece"] == pytest.approx(float(plain))
    by_place = detection_calibration_error(
        score, matched, boxes=content["box"], num_bins=5, least=8
    )
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
    monkeypatch.setattr(totals, "IMAGES", 200)
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
    assert int(first.parts[3].sum()) == int(kept.sum())
    assert sorted(kept.tolist()) != sorted(sizes.values())[:200]
    judged = judge(
        Model("model", merged[0]), resamples=0, generator=torch.Generator(), target=TARGET
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
    (summed,) = audit([Model("maps", tallies)], resamples=0, target=Target(0.2))["models"]
    assert summed["thresholds"]["accept"] == accept


def test_counted_images_are_bets_too() -> None:
    rng = np.random.default_rng(2)
    counts = torch.from_numpy(rng.integers(0, 50, (300, 15))).double()
    correct = (counts * torch.linspace(0.5, 1, 15)).floor()
    mass = counts * (torch.arange(15) + 0.5) / 15
    tallies = tallies_of_histogram("a", counts, correct, mass)
    (model,) = audit([Model("a", tallies)], resamples=0, target=Target(0.2))["models"]
    assert model["images"] == 300
    assert model["thresholds"]["accept"]["images"] <= 300
    assert warnings_of({"models": [model]}) == []
    whole = tallies_of_histogram("a", counts.sum(0), correct.sum(0), mass.sum(0))
    found = audit([Model("a", whole)], resamples=0, target=Target(0.2))
    assert "a histogram without images" in warnings_of(found)[0]


FEW_IMAGES, EACH = 300, 9
METRICS = ("accuracy", "ece", "average_confidence", "d_ece")


@pytest.fixture
def detections(tmp_path: Path) -> dict[str, Path]:
    """Once one detection an image, and twice all of them nine times: as nine, and as of images."""
    rng = np.random.default_rng(0)
    score = rng.uniform(0.3, 1, FEW_IMAGES).astype(np.float32)
    matched = rng.random(FEW_IMAGES) < score - 0.2
    corner = rng.uniform(0, 0.5, (FEW_IMAGES, 2))
    arrays = {"score": score, "matched": matched, "box": np.hstack([corner, corner + 0.4])}
    several = {name: np.repeat(array, EACH, 0) for name, array in arrays.items()}
    number = np.arange(FEW_IMAGES).repeat(EACH)
    order = rng.permutation(len(number))  # the rows of an image need not follow each other
    grouped = {name: array[order] for name, array in (several | {"image_id": number}).items()}
    found = {}
    for name, content in (("single", arrays), ("several", several), ("grouped", grouped)):
        found[name] = tmp_path / f"{name}.npz"
        np.savez(found[name], **content)
    return found


def _widths(judged: dict[str, Any], names: tuple[str, ...] = METRICS) -> np.ndarray:
    ends = [judged["metrics"][f"{name}_interval"] for name in names] + [judged["gap"]["interval"]]
    return np.array([high - low for low, high in ends])


def test_copies_in_an_image_tell_nothing_new(detections: dict[str, Path]) -> None:
    single, several, grouped = (
        audit([read_any(path)])["models"][0] for path in detections.values()
    )
    assert grouped["metrics"]["ece"] == pytest.approx(single["metrics"]["ece"])
    assert _widths(grouped) == pytest.approx(_widths(single), rel=0.15)
    assert _widths(several) == pytest.approx(_widths(single) / 3, rel=0.3)
    assert (single["images"], several["images"], grouped["images"]) == (None, None, FEW_IMAGES)
    assert images_sentence(grouped) in sentences({"models": [grouped]})
    assert grouped["mistakes"]  # which can be looked up, as pixels can't


def test_sums_of_parts_draw_images_too(detections: dict[str, Path]) -> None:
    tallies = Tallies()
    for part in read_batches(detections["grouped"]):
        tallies.add(part)
    other = Tallies().merge(tallies)
    settings: dict[str, Any] = {"resamples": 1000}
    found = judge(Model("a", other), generator=torch.Generator().manual_seed(0), **settings)
    single = audit([read_any(detections["single"])])["models"][0]
    names = ("accuracy", "ece", "average_confidence")
    assert _widths(found, names) == pytest.approx(_widths(single, names), rel=0.2)


def test_two_models_are_compared_by_images(detections: dict[str, Path]) -> None:
    widths = []
    for name in ("several", "grouped"):
        first = read_any(detections[name])
        with np.load(detections[name]) as arrays:
            content = dict(arrays)
        content["score"] = content["score"] ** 2
        path = detections[name].with_name("squared.npz")
        np.savez(path, **content)
        (compared,) = audit([first, read_any(path)])["comparisons"]
        ece = compared["metrics"]["ece"]
        widths.append(ece["high"] - ece["low"])
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.3)


def test_one_image_has_no_interval(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("image,score,correct\nphoto,0.9,1\nphoto,0.4,0\nphoto,0.8,1\n")
    judged = audit([read_any(path)])["models"][0]
    assert "ece_interval" not in judged["metrics"]


def test_sums_of_pairs_that_occur() -> None:
    """Against a loop over images; all pairs of images and parts would not fit into memory."""
    unit = torch.tensor([5, 10**9, 5, 5, 10**9])
    part = torch.tensor([0, 1, 0, 10**4, 1])
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]).double()
    correct = torch.tensor([1, 0, 0, 1, 1]).bool()
    found = part_sums(part, 10**4 + 1, confidence, correct, unit)
    assert found[0].tolist() == pytest.approx([2, 1, 1.6, 0.6**2, 0.6 * 2, 4, 1, 0.3])
    assert found[1].tolist() == pytest.approx([2, 1, 1.3, 0.3**2, 0.3 * 2, 4, 1, 0.41])
    assert found[10**4].tolist() == pytest.approx([1, 1, 0.6, 0.4**2, -0.4, 1, 1, 0.24])
    assert float(found[:, 0].sum()) == 5


def test_sums_of_label_maps_draw_images(tmp_path: Path) -> None:
    """All pixels of an image are alike, so that there are as many facts as images."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (200, 3, 1, 1)).repeat(4, 2).repeat(4, 3).astype(np.float32)
    labels = rng.integers(0, 3, (200, 1, 1)).repeat(4, 1).repeat(4, 2)
    np.savez(tmp_path / "maps.npz", logits=logits, labels=labels)
    file = read_any(tmp_path / "maps.npz")
    tallies = Tallies()
    tallies.add(file)
    generator = torch.Generator().manual_seed(0)
    summed = judge(Model("a", tallies), resamples=1000, generator=generator)
    (rows,) = audit([file])["models"]
    names = ("accuracy", "ece", "nll", "brier")
    assert _widths(summed, names) == pytest.approx(_widths(rows, names), rel=0.2)
    assert summed["images"] == rows["images"] == 200
