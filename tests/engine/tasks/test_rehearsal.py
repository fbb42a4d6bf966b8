"""The cost of a run: what was timed on a few samples, scaled to all of them."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato.engine import RunConfig, parse
from sfumato.engine.timing import Costs, Rehearsal

CLASSIFY = {
    "data": {"name": "scenes", "train": 64, "validation": 20, "test": 30, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.1},
    "train": {"epochs": 2, "batch_size": 16},
    "evaluate": {
        "resamples": 0,
        "corruptions": ["contrast"],
        "severities": [1, 5],
        "corrupted_images": 10,
    },
}
SEGMENT = {
    "task": "segment",
    "data": {"name": "scene_streams", "train": 12, "validation": 8, "test": 3, "test_frames": 4},
    "model": {"name": "unet", "width": 4, "depth": 2},
    "train": {"epochs": 1, "batch_size": 4},
    "evaluate": {"resamples": 0},
}
DETECT = {
    "task": "detect",
    "data": {"name": "scene_objects", "size": 32, "train": 8, "validation": 4, "test": 8},
    "model": {"name": "faster_rcnn", "channels": 8, "proposals": 8},
    "train": {"epochs": 1, "batch_size": 4},
    "classifier": {**CLASSIFY, "evaluate": {"resamples": 0}},
}
STEPS = 1 / 3 * 4  # three of four steps took a second
VALIDATION = 1 / 16 * 20  # a batch of 16 of 20 images took a second


class Clock:
    """A second passes between one look at it and the next."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    for module in ("timing", "training.loop"):
        monkeypatch.setattr(f"sfumato.engine.{module}.time", Clock())
    return Rehearsal()


def _config(content: dict[str, Any], **changes: Any) -> RunConfig:
    return parse(RunConfig, {**content, **changes})


def test_classifier(rehearsal: Rehearsal) -> None:
    found = rehearsal.costs(_config(CLASSIFY))
    assert found.start == 1 + 1  # data, then network
    assert found.epoch == pytest.approx(STEPS + VALIDATION)
    # The clean sets, then two cells of ten images; sixteen passes through the network a second.
    assert found.evaluation == pytest.approx(1 + 1 + (20 + 30 + 2 * 10) / 16)


def test_every_dropout_mask_is_a_pass(rehearsal: Rehearsal) -> None:
    found = rehearsal.costs(_config(CLASSIFY, predict={"mc_dropout": 8}))
    # Eight images with eight masks a second.
    assert found.evaluation == pytest.approx(1 + 1 + 8 * (20 + 30 + 2 * 10) / (8 * 8))


def test_sizes_of_ensembles_are_passes_too(rehearsal: Rehearsal) -> None:
    evaluate = {"resamples": 0, "ensemble_sizes": [1, 5]}
    found = rehearsal.costs(_config(CLASSIFY, evaluate=evaluate))
    assert found.evaluation == pytest.approx(1 + (20 + 30 + 5 * 30) / 16)


def test_many_corrupted_images_are_scaled(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.engine.timing._CORRUPTED_PIXELS", 2 * 5 * 16 * 16)
    found = rehearsal.costs(_config(CLASSIFY))
    assert found.evaluation == pytest.approx(1 + 1 * 10 / 5 + (20 + 30 + 2 * 10) / 16)


def test_segmenter(rehearsal: Rehearsal) -> None:
    found = rehearsal.costs(_config(SEGMENT))
    assert found == Costs(2, pytest.approx(3 / 3 + 8 / 4), (8 + 3 * 4) / 4)


def test_detector_and_the_classifier_before_it(rehearsal: Rehearsal) -> None:
    found = rehearsal.costs(_config(DETECT))
    classifier = 2 + 2 * (STEPS + VALIDATION) + 1 + (20 + 30) / 16
    assert found.start == pytest.approx(1 + classifier)
    assert found.epoch == pytest.approx(2 / 3)
    assert found.evaluation == pytest.approx(1 + (4 + 8) / 4)


def test_data_and_measuring_are_shared(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rehearsal.costs(_config(CLASSIFY))
    monkeypatch.setattr("sfumato.engine.timing.load_splits", None)
    monkeypatch.setattr("sfumato.engine.timing.evaluation_cost", None)
    loss = {"name": "cross_entropy", "smoothing": 0.1}
    assert rehearsal.costs(_config(CLASSIFY, loss=loss)) == first
