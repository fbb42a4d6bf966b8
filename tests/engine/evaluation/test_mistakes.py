"""A run keeps its most overconfident mistakes, with pictures, for the report."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.data import ArrayDataset, Vocabulary
from sfumato.engine.evaluation.splits import thumbnail, write_mistakes
from sfumato.engine.runs.directory import Predictions, RunDirectory


def test_most_confident_mistakes_come_first_with_their_own_image(tmp_path: Path) -> None:
    shades = torch.tensor([0, 80, 160, 240], dtype=torch.uint8)
    data = ArrayDataset(
        images=shades.view(4, 1, 1, 1).expand(4, 3, 8, 8).contiguous(),
        labels=torch.tensor([0, 0, 1, 1]),
        classes=("cat", "dog"),
        index=torch.tensor([40, 10, 30, 20]),
    )
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    found = Predictions(logits, data.labels, data.index)
    write_mistakes(RunDirectory(tmp_path), found, data, count=5)
    samples = json.loads((tmp_path / "samples.json").read_text())["samples"]
    assert [s["index"] for s in samples] == [30, 40]
    assert (samples[0]["label"], samples[0]["predicted"]) == ("dog", "cat")
    assert samples[0]["confidence"] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-6)
    assert samples[0]["confidence"] + samples[0]["true_confidence"] == pytest.approx(1)
    assert _pixels(samples[0]["image"]).mean() == pytest.approx(160, abs=2)
    write_mistakes(RunDirectory(tmp_path), found, data, count=1)
    assert len(json.loads((tmp_path / "samples.json").read_text())["samples"]) == 1


def test_texts_are_shown_by_their_first_words(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("a", "b"), length=40)
    tokens = vocabulary.encode(["a " * 40, "b x a"])
    data = ArrayDataset(tokens, torch.tensor([0, 0]), ("cat", "dog"), vocabulary=vocabulary)
    found = Predictions(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), data.labels, data.index)
    write_mistakes(RunDirectory(tmp_path), found, data)
    samples = json.loads((tmp_path / "samples.json").read_text())["samples"]
    assert [s["text"] for s in samples] == ["b … a", " ".join("a" * 25)]
    assert "image" not in samples[0]


def test_large_and_grey_images_become_small_pictures() -> None:
    picture = _pixels(thumbnail(torch.full((1, 200, 100), 90, dtype=torch.uint8)))
    assert picture.shape == (64, 32)


def _pixels(address: str) -> np.ndarray:
    kind, _, content = address.partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        return np.asarray(picture)
