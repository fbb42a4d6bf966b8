"""Study folders made of files alone: nothing is trained."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

HOSTILE = '</script><img src=x onerror="document.title=1">'
TEXT = {"text": f"words of {HOSTILE}"}
TYPES = ("fog", "gaussian_noise", "motion_blur")
# One transparent pixel.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA"
    "60e6kgAAAABJRU5ErkJggg=="
)

MakeStudy = Callable[..., Path]


def metrics_of(shift: float) -> dict[str, Any]:
    """Metrics of a run: every number moved by `shift` towards better."""
    test: dict[str, Any] = {"samples": 200}
    for name, value, sign in (
        ("accuracy", 0.8, 1),
        ("nll", 0.6, -1),
        ("ece", 0.05, -1),
        ("brier", 0.3, -1),
        ("odd_thing", 3.0, 1),
    ):
        test[name] = value + sign * shift
        test[f"{name}_interval"] = [test[name] - 0.01, test[name] + 0.01]
    test["reliability"] = {
        "counts": [10, 0, 30],
        "confidence": [0.2, None, 0.9],
        "accuracy": [0.1, None, 0.8],
    }
    cells = {
        metric: [[0.3 + 0.02 * s + 0.05 * t - shift for s in (1, 3, 5)] for t in range(len(TYPES))]
        for metric in ("error", "nll", "ece")
    }
    means = {metric: sum(map(sum, rows)) / 9 for metric, rows in cells.items()}
    damaged = {**means, "names": list(TYPES), "severities": [1, 3, 5], "cells": cells}
    curve = {"sizes": [1, 5, 10], "nll": [0.7, 0.62, 0.6], "accuracy": [0.78, 0.8, 0.8]}
    ensemble = {**curve, "ece": [0.08, 0.06, 0.05]}
    return {"test": test, "validation": dict(test), "corrupted": damaged, "ensemble": ensemble}


def write_run(folder: Path, metrics: dict[str, Any], config: dict[str, Any], epochs: int) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records = [
        {
            "epoch": epoch,
            "train_loss": 2 / (epoch + 1),
            "validation_accuracy": 1 - 1 / (epoch + 2),
            "seconds": 2.0,
        }
        for epoch in range(epochs)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "cost.json").write_text(json.dumps({"inference_seconds_per_image": 0.001}))
    sample = {"index": 7, "label": HOSTILE, "predicted": "cat", "confidence": 0.99}
    found = [{**sample, "true_confidence": 0.001, **shown} for shown in ({"image": PIXEL}, TEXT)]
    (folder / "samples.json").write_text(json.dumps({"samples": found}))


@pytest.fixture
def hostile() -> str:
    """A name that would run in a page that takes it for markup."""
    return HOSTILE


def write_study(
    root: Path,
    gains: dict[str, float],
    *,
    name: str = "study",
    seeds: Sequence[int] = (0, 1, 2),
    noise: float = 0.001,
    data: str = "scenes",
    epochs: int = 3,
) -> Path:
    """A study in `root / name` whose methods gain that much over the first numbers."""
    random_numbers = random.Random(0)
    folder, runs = root / name, []
    for seed in seeds:
        for method, gain in gains.items():
            run = f"{len(runs):012d}"
            shift = gain + random_numbers.gauss(0, noise)
            config = {"data": {"name": data}, "loss": {"name": method}, "seed": seed}
            write_run(folder / "runs" / run, metrics_of(shift), config, epochs)
            runs.append({"method": method, "seed": seed, "run": run})
    index = {"name": name, "title": name, "methods": list(gains), "runs": runs}
    (folder / "study.json").write_text(json.dumps({**index, "study": {"name": name}}))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.9"}))
    profile = {"lead": [1, 2], "predicted": [0.1, 0.2], "others": [0.01, 0.02], "loss": "mbls"}
    (folder / "profiles.json").write_text(json.dumps({"smooth": profile}))
    return folder


@pytest.fixture
def make_study(tmp_path: Path) -> MakeStudy:
    """`make_study({"plain": 0.0, "smooth": 0.02}, seeds=(0, 1))` in an empty folder."""
    return partial(write_study, tmp_path)


@pytest.fixture(scope="session")
def large_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty methods with five seeds, the last with a hostile name."""
    gains = {"cross entropy": 0.0}
    gains |= {f"method {number}": 0.003 * ((7 * number) % 19) - 0.02 for number in range(18)}
    root = tmp_path_factory.mktemp("large")
    return write_study(root, {**gains, HOSTILE: 0.01}, seeds=range(5), noise=0.003, epochs=30)
