"""Detection runs: a classifier first, then its detector; average precision by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sfumato.data import DetectionDataset, Objects, scenes
from sfumato.engine import (
    ConfigError,
    RunConfig,
    Trainer,
    detector_from,
    fingerprint,
    load_weights,
    parse,
    run,
)
from sfumato.engine.evaluation.detection import (
    average_precision,
    detection_metrics,
    judge_detections,
    match_classes,
    match_detections,
)
from sfumato.metrics.detection import errors_of_detections
from sfumato.study.config import StudyConfig, plan


@pytest.fixture
def recipe() -> dict[str, Any]:
    return {
        "task": "detect",
        "data": {"name": "scene_objects", "size": 32, "train": 24, "validation": 4, "test": 8},
        "model": {
            "name": "faster_rcnn",
            "channels": 8,
            "hidden": 16,
            "proposals": 20,
            "detections": 10,
        },
        "augment": {"name": "basic", "crop": 0},
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 0.02},
        "classifier": {
            "data": {"name": "scenes", "size": 16, "train": 64, "validation": 16, "test": 16},
            "model": {"name": "resnet", "depth": 8, "width": 4},
            "train": {"epochs": 1, "batch_size": 32},
            "evaluate": {"resamples": 0},
        },
    }


def test_run_resume_and_reuse(tmp_path: Path, recipe: dict[str, Any]) -> None:
    config = parse(RunConfig, recipe)
    done = run(config, tmp_path / "a", show=False)
    metrics = done.metrics()["test"]
    assert {"ap", "ap50", "ap75", "ar", "ap_small", "ap_medium", "ap_large"} <= metrics.keys()
    assert metrics["samples"] == 8
    assert [record["epoch"] for record in done.log()] == [0, 1]
    found = done.predictions("test")
    assert len(found["boxes"]) == len(found["scores"]) == len(found["labels"])
    assert parse(RunConfig, done.config()) == config

    # the classifier was trained on the way; a finished one beside the run is used as it is
    classifier = parse(RunConfig, config.classifier)
    (own,) = done.training.glob("classifier/*/metrics.json")
    assert own.parent.name == fingerprint(classifier)
    run(classifier, tmp_path / "b", show=False)
    again = run(config, tmp_path / "b", show=False)
    assert not (again.training / "classifier").exists()
    for name, weight in load_weights(done.checkpoint).items():
        assert torch.equal(weight, load_weights(again.checkpoint)[name]), name

    # by directory, the detector is the same one again
    named = parse(RunConfig, {**recipe, "classifier": str(tmp_path / "b" / own.parent.name)})
    third = run(named, tmp_path / "c", show=False)
    assert third.metrics() == done.metrics()


def test_killed_run_goes_on_to_the_same_weights(
    tmp_path: Path, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(RunConfig, recipe)
    whole = run(config, tmp_path / "a", show=False)
    epoch = Trainer._epoch

    def killed(self: Trainer, number: int, bar: Any) -> dict[str, float]:
        if number == 1:
            raise KeyboardInterrupt
        return epoch(self, number, bar)

    monkeypatch.setattr(Trainer, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "b", show=False)
    monkeypatch.undo()
    resumed = run(config, tmp_path / "b", show=False)
    for name, weight in load_weights(whole.checkpoint).items():
        assert torch.equal(weight, load_weights(resumed.checkpoint)[name]), name


def test_detector_has_the_classifiers_weights_and_statistics(
    tmp_path: Path, recipe: dict[str, Any]
) -> None:
    done = run(parse(RunConfig, recipe["classifier"]), tmp_path, show=False)
    detector = detector_from(done, num_classes=4)
    weights = load_weights(done.checkpoint)
    trunk = detector.backbone.maps.state_dict()
    assert len(trunk) > 10
    assert all(torch.equal(value, weights[name]) for name, value in trunk.items())
    facts = json.loads((done.training / "network.json").read_text())
    assert detector.transform.image_mean == facts["mean"]


def test_study_merges_the_classifier_and_seeds_it(recipe: dict[str, Any]) -> None:
    methods = {"hard": {}, "soft": {"classifier": {"loss": {"name": "ecp"}}}}
    study = StudyConfig(name="s", recipe=recipe, methods=methods, seeds=[0, 5])
    runs = plan(study)
    assert [each.config.classifier["loss"]["name"] for each in runs] == ["cross_entropy", "ecp"] * 2
    assert [each.config.classifier["seed"] for each in runs] == [0, 0, 5, 5]
    assert all(each.config.classifier["model"]["width"] == 4 for each in runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classifier": None}, "needs classifier"),
        ({"data": "scenes"}, "needs boxes"),
        ({"model": {"name": "resnet"}}, "needs a detector"),
        ({"loss": "focal"}, "loss: a detector has its own"),
        ({"evaluate": {"corruptions": "all"}}, "evaluate: a detector has its own"),
        ({"augment": {"name": "basic", "crop": 4}}, "flips"),
        ({"classifier": {"data": "scenes", "model": "resnet", "los": "ecp"}}, "los: unknown key"),
        ({"labels": {"name": "objectness"}}, "labels is for task: classify"),
        ({"task": "classify"}, "say task: detect"),
        ({"model": {"name": "faster_rcnn", "classifier": 3}}, "set from the data or the run"),
    ],
)
def test_bad_configurations(recipe: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**recipe, **change})


@pytest.mark.slow
def test_command_line_to_report(
    sfumato: Callable[..., Any], tmp_path: Path, recipe: dict[str, Any]
) -> None:
    study = {"name": "tiny", "recipe": recipe, "methods": {"hard": {}}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(study))
    outcome = sfumato("run", "tiny.yaml", "--out", "tiny", "--workers", "1", "--quiet")
    assert outcome.status == 0, outcome.stderr
    assert "AP %" in outcome.stdout  # what decides; the others are in the report
    assert "AP75" in (tmp_path / "tiny" / "report" / "results.md").read_text()
    assert "AP50" in (tmp_path / "tiny" / "report" / "index.html").read_text()


def _one(box: list[float], area: float) -> Objects:
    nothing = torch.zeros(1, dtype=torch.bool)
    return Objects(torch.tensor([box]), torch.tensor([0]), torch.tensor([area]), nothing)


def test_average_precision_by_hand() -> None:
    """Two images, one object each: one found with IoU 0.82, one missed."""
    images = torch.zeros(2, 3, 20, 20, dtype=torch.uint8)
    objects = [_one([0.0, 0, 10, 10], 100.0), _one([5.0, 5, 15, 15], 100.0)]
    truth = DetectionDataset(images, objects, ("a", "b"), [1.0, 1.0])
    zero = torch.zeros(1, dtype=torch.int64)
    found = [
        {"boxes": torch.tensor([[0.0, 0, 10, 8.2]]), "scores": torch.tensor([0.9]), "labels": zero},
        {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": zero[:0]},
    ]
    values = detection_metrics(truth, found)
    # precision 1 at recalls 0, 0.01 ... 0.50: 51 of 101 points; at IoU 0.5 to 0.8, 7 of 10 steps
    assert values["ap50"] == pytest.approx(51 / 101)
    assert values["ap"] == pytest.approx(0.7 * 51 / 101)
    assert values["ar"] == pytest.approx(0.7 * 0.5)
    assert values["by_class"] == {"a": pytest.approx(0.7 * 51 / 101)}
    assert values["ap_small"] == values["ap"]
    assert values["ap_large"] is None
    with pytest.raises(ValueError, match="found has 1 entries"):
        detection_metrics(truth, found[:1])


def test_sizes_count_the_originals_pixels() -> None:
    images = torch.zeros(1, 3, 20, 20, dtype=torch.uint8)
    objects = [_one([0.0, 0, 10, 10], 10000.0)]
    truth = DetectionDataset(images, objects, ("a",), [10.0])
    perfect = [{**_detection(objects[0])}]
    values = detection_metrics(truth, perfect)
    assert (values["ap_small"], values["ap_large"]) == (None, pytest.approx(1.0))


def _detection(objects: Objects) -> dict[str, torch.Tensor]:
    scores = torch.full((len(objects.labels),), 0.5)
    return {"boxes": objects.boxes, "labels": objects.labels, "scores": scores}


def test_metrics_are_the_same_for_any_order_of_detections() -> None:
    truth = scenes.generate_objects(6, size=32)
    draw = torch.Generator().manual_seed(0)
    found = []
    for each in truth.objects:
        boxes = each.boxes + torch.randn(each.boxes.shape, generator=draw)
        scores = torch.rand(len(each.labels), generator=draw)
        found.append({"boxes": boxes, "labels": each.labels, "scores": scores})
    turned = [{key: value.flip(0) for key, value in each.items()} for each in found]
    first, second = detection_metrics(truth, found), detection_metrics(truth, turned)
    assert np.isclose(first["ap"], second["ap"])
    assert 0.1 < first["ap"] < 1


def test_resampled_precision_is_that_of_the_drawn_images() -> None:
    """With one of each image it is COCO's, and with copies of images that of a set of copies."""
    truth = scenes.generate_objects(8, size=32)
    draw = torch.Generator().manual_seed(1)
    found = []
    for each in truth.objects:
        boxes = torch.cat([each.boxes, each.boxes.flip(0)])
        boxes = boxes + torch.rand(boxes.shape, generator=draw) * torch.tensor([0.0, 0, 3, 3])
        labels = torch.cat([each.labels, each.labels])
        found.append(
            {"boxes": boxes, "labels": labels, "scores": torch.rand(len(labels), generator=draw)}
        )
    matches = match_classes(judge_detections(truth, found))
    whole = detection_metrics(truth, found)
    drawn = [0, 0, 0, 2, 3, 5, 5, 7]
    weights = torch.stack([torch.ones(8), torch.tensor(drawn).bincount(minlength=8)]).double()
    values = average_precision(matches, weights)
    copies = DetectionDataset(
        truth.images[drawn],
        [truth.objects[n] for n in drawn],
        truth.classes,
        [truth.scales[n] for n in drawn],
    )
    repeated = detection_metrics(copies, [found[n] for n in drawn])
    for name in ("ap", "ap50", "ap75"):
        assert float(values[name][0]) == pytest.approx(whole[name], abs=1e-9)
        assert float(values[name][1]) == pytest.approx(repeated[name], abs=1e-9)
        low, high = whole[f"{name}_interval"]
        assert 0 <= low < whole[name] < high <= 1


def test_calibration_of_detections() -> None:
    """An object is found once, by the surest; a detection in a crowd is not judged."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [20.0, 20, 30, 30]])
    crowd = torch.tensor([False, True])
    truth = Objects(boxes, torch.tensor([0, 0]), torch.tensor([100.0, 100.0]), crowd)
    found = {
        "boxes": boxes[[0, 0, 1, 0]],
        "scores": torch.tensor([0.6, 0.9, 0.8, 0.7]),
        "labels": torch.tensor([0, 0, 0, 1]),
    }
    scores, matched, kept = match_detections(found, truth)
    assert kept.tolist() == boxes[[0, 0, 0]].tolist()
    assert scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert matched.tolist() == [True, False, False]
    images = torch.zeros(2, 3, 40, 40, dtype=torch.uint8)
    dataset = DetectionDataset(images, [truth, truth], ("a", "b"), [1.0, 1.0])
    values = detection_metrics(dataset, [found, found])
    assert values["d_ece"] == pytest.approx((0.1 + 0.7 + 0.6) / 3)
    low, high = values["d_ece_interval"]
    assert values["d_ece_by_place"] is None  # no cell with 8 detections
    many = detection_metrics(
        DetectionDataset(images.repeat(4, 1, 1, 1), [truth] * 8, ("a", "b"), [1.0] * 8), [found] * 8
    )
    # Confidences 0.9, 0.7 and 0.6 are in the fifth, fourth and third of five bins.
    assert many["d_ece_by_place"] == pytest.approx((0.1 + 0.7 + 0.6) / 3)
    assert low - 1e-9 <= values["d_ece"] <= high + 1e-9  # both images are the same
    assert "d_ece_by_place_interval" not in values
    assert many["d_ece_by_place_interval"] == pytest.approx([(0.1 + 0.7 + 0.6) / 3] * 2)


def test_intervals_of_detections_draw_whole_units() -> None:
    """Every unit has ten alike detections: the interval is that of its share of right units."""
    right = torch.arange(50) % 2 == 0
    unit = torch.arange(50).repeat_interleave(10)
    boxes = torch.tensor([[0.1, 0.1, 0.3, 0.3]]).repeat(500, 1)
    scores = torch.full((500,), 0.9)
    found = errors_of_detections(scores, right[unit], boxes, unit, 50, 2000)
    assert found["d_ece"] == found["d_ece_by_place"] == pytest.approx(0.4)
    half = 1.96 * (0.25 / 50) ** 0.5
    for name in ("d_ece", "d_ece_by_place"):
        assert found[f"{name}_interval"] == pytest.approx([0.4 - half, 0.4 + half], abs=0.025)
    assert errors_of_detections(scores, right[unit], boxes, unit, 50, 0).keys() == {
        "d_ece",
        "d_ece_by_place",
    }
