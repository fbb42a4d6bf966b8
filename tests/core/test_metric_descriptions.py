"""Every number that a run writes is described, and nothing is described that no run writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato._core.metric_descriptions import DESCRIPTIONS, IN_SPLIT, describe_metric
from sfumato.data import scenes
from sfumato.engine import RunConfig, parse, run
from sfumato.engine.evaluation.detection import detection_metrics
from sfumato.engine.evaluation.pixels import PixelSums
from sfumato.report.columns import Column, columns_of


def _classification(folder: Path) -> dict[str, Any]:
    """Every evaluation that there is."""
    np.savez(folder / "unlabelled.npz", images=np.zeros((4, 16, 16, 3), np.uint8))
    content = {
        "data": {"name": "scenes", "size": 16, "train": 32, "validation": 20, "test": 20},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 16},
        "evaluate": {
            "resamples": 2,
            "temperature": True,
            "normalised": True,
            "context": True,
            "corruptions": ["brightness"],
            "severities": [1],
            "alexnet": "cifar10",
            "perturbations": ["brightness"],
            "also": {"unlabelled": {"name": "npz", "test": str(folder / "unlabelled.npz")}},
            "ood": {"noise": {"name": "noise", "size": 16, "test": 4}},
            "attacks": {"fgsm": {"name": "fgsm", "epsilon": 0.01}},
        },
    }
    metrics: dict[str, Any] = run(parse(RunConfig, content), folder, show=False).metrics()
    # Written where a norm of the logits tells mistakes better than softmax, which chance decides.
    metrics["normalised"].setdefault("order", 2)
    # And this where a class has few images for the features.
    metrics["ood"].setdefault("shrinkage", 0.5)
    # And this where anything was right before the attack.
    metrics["attacked"]["fgsm"].setdefault("success_rate", 0.5)
    return metrics


def _segmentation() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    sums = PixelSums(3, background=(2,))
    for _ in range(2):
        logits = torch.randn(1, 3, 4, 4, generator=generator)
        labels = torch.randint(3, (1, 4, 4), generator=generator)
        sums.add_frame(logits, labels, 0, 0)
    return {"test": sums.summary(classes=["a", "b", "c"])}


def _detection() -> dict[str, Any]:
    truth = scenes.generate_objects(2)
    found = [
        {"boxes": o.boxes, "labels": o.labels, "scores": torch.ones(len(o.labels))}
        for o in truth.objects
    ]
    values = detection_metrics(truth, found)
    by_class = values.pop("by_class")
    # None where the set has no object of that size.
    return {"test": {**{key: value or 0.0 for key, value in values.items()}, "by_class": by_class}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """`metrics.json` of all tasks."""
    return [_classification(tmp_path_factory.mktemp("run")), _segmentation(), _detection()]


def _names(column: Column) -> Iterable[str]:
    """The entries of the table that may describe a column."""
    split = column.split.rpartition(".")[2]
    yield split.removeprefix("class_") if split.startswith("class_") else column.key
    yield column.key.rpartition("_")[0]


def test_everything_written_is_described(written: list[Mapping[str, Any]]) -> None:
    unknown = {
        each.id for each in columns_of(written) if DESCRIPTIONS.keys().isdisjoint(_names(each))
    }
    assert unknown == set()


def test_everything_described_is_written(written: list[Mapping[str, Any]]) -> None:
    columns = columns_of(written)
    found = {name for each in columns for name in _names(each)}
    assert DESCRIPTIONS.keys() - found == set()
    assert IN_SPLIT.keys() <= {(each.split, each.key) for each in columns}


def test_no_direction_is_guessed_from_words() -> None:
    for key in ("new_error", "my_accuracy", "loss", "ece_gap", "precision"):
        assert describe_metric(key).better is None
        assert describe_metric(key).range == "any"
