"""Predictions of one image are not independent: intervals of an audit are over images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit import audit, judge_tallies
from sfumato.engine.evaluation.audit_sums import part_sums
from sfumato.engine.evaluation.audit_tallies import Tallies
from sfumato.engine.runs.prediction_files import read_any, read_batches
from sfumato.report.audit_sentences import images_sentence, sentences

IMAGES, EACH = 300, 9
METRICS = ("accuracy", "ece", "average_confidence", "d_ece")


@pytest.fixture
def detections(tmp_path: Path) -> dict[str, Path]:
    """Once one detection an image, and twice all of them nine times: as nine, and as of images."""
    rng = np.random.default_rng(0)
    score = rng.uniform(0.3, 1, IMAGES).astype(np.float32)
    matched = rng.random(IMAGES) < score - 0.2
    corner = rng.uniform(0, 0.5, (IMAGES, 2))
    arrays = {"score": score, "matched": matched, "box": np.hstack([corner, corner + 0.4])}
    several = {name: np.repeat(array, EACH, 0) for name, array in arrays.items()}
    number = np.arange(IMAGES).repeat(EACH)
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
    assert (single["images"], several["images"], grouped["images"]) == (None, None, IMAGES)
    assert images_sentence(grouped) in sentences({"models": [grouped]})
    assert grouped["mistakes"]  # which can be looked up, as pixels can't


def test_sums_of_parts_draw_images_too(detections: dict[str, Path]) -> None:
    tallies = Tallies()
    for part in read_batches(detections["grouped"]):
        tallies.add(part)
    other = Tallies().merge(tallies)
    settings: dict[str, Any] = {"resamples": 1000}
    found = judge_tallies("a", other, generator=torch.Generator().manual_seed(0), **settings)
    single = audit([read_any(detections["single"])])["models"][0]
    names = ("accuracy", "ece", "average_confidence")
    assert _widths(found, names) == pytest.approx(_widths(single, names), rel=0.2)


def test_two_models_are_compared_by_images(detections: dict[str, Path]) -> None:
    widths = []
    for name in ("several", "grouped"):
        first = read_any(detections[name])
        content = dict(np.load(detections[name]))
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
    assert found[0].tolist() == pytest.approx([2, 1, 1.6, 0.6**2, 0.6 * 2, 4, 1])
    assert found[1].tolist() == pytest.approx([2, 1, 1.3, 0.3**2, 0.3 * 2, 4, 1])
    assert found[10**4].tolist() == pytest.approx([1, 1, 0.6, 0.4**2, -0.4, 1, 1])
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
    summed = judge_tallies("a", tallies, resamples=1000, generator=generator)
    (rows,) = audit([file])["models"]
    names = ("accuracy", "ece", "nll", "brier")
    assert _widths(summed, names) == pytest.approx(_widths(rows, names), rel=0.2)
    assert summed["images"] == rows["images"] == 200
