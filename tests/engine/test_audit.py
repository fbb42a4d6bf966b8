"""Audits: the right verdict on predictions whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.audit import audit
from sfumato.engine.prediction_files import PredictionFile, PredictionFileError


def _file(factor: float, *, name: str = "model", count: int = 2000, **extra: Any) -> PredictionFile:
    """Predictions that are `factor` times too sure of labels drawn from their own distribution."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 4, generator=generator) * 1.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return PredictionFile(name=name, labels=labels, logits=logits * factor, **extra)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(3.0, "overconfident"), (0.3, "underconfident"), (1.0, "no miscalibration found")],
)
def test_verdict(factor: float, verdict: str) -> None:
    found = audit([_file(factor)], resamples=50)["models"][0]
    assert found["verdict"] == verdict
    low, high = found["gap"]["interval"]
    metrics = found["metrics"]
    assert found["gap"]["gap"] == pytest.approx(
        metrics["average_confidence"] - metrics["accuracy"], abs=1e-6
    )
    assert low < found["gap"]["gap"] < high


def test_errors_that_cancel_are_seen() -> None:
    """Half the predictions say 0.9 and are right in 0.6, half say 0.6 and are right in 0.9."""
    sure = torch.tensor([0.9] * 1000 + [0.6] * 1000)
    right = torch.cat([torch.arange(1000) < 600, torch.arange(1000) < 900])
    probs = torch.stack([sure, 1 - sure], 1)
    file = PredictionFile("cancels", labels=(~right).long(), probs=probs)
    found = audit([file], resamples=20)["models"][0]
    assert found["gap"]["gap"] == pytest.approx(0.0, abs=1e-6)
    assert found["verdict"] == "right on average, wrong in places"
    assert found["metrics"]["ece"] == pytest.approx(0.3, abs=1e-6)


def test_breakdown_finds_the_bad_group() -> None:
    good, bad = _file(1.0), _file(4.0)
    file = PredictionFile(
        name="both",
        labels=torch.cat([good.labels, bad.labels]),
        logits=torch.cat([good.scores, bad.scores]),
        groups=["day"] * 2000 + ["night"] * 2000,
        classes=["a", "b", "c", "d"],
    )
    found = audit([file], resamples=20)["models"][0]
    assert [(r["name"], r["direction"]) for r in found["by_group"]] == [
        ("night", "overconfident"),
        ("day", "can't tell"),
    ]
    assert {row["name"] for row in found["by_class"]} == {"a", "b", "c", "d"}
    assert sum(row["count"] for row in found["by_class"]) == 4000


def test_comparison_aligns_by_index_and_scaling_helps() -> None:
    first = _file(3.0, name="old", index=torch.arange(2000))
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    plain = _file(1.0)
    second = PredictionFile(
        "new", labels=plain.labels[order], logits=plain.scores[order], index=order
    )
    found = audit([first, second], [first, second], resamples=100)
    ece = found["comparisons"][0]["metrics"]["ece"]
    assert ece["high"] < 0
    assert found["comparisons"][0]["metrics"]["accuracy"]["difference"] == pytest.approx(0)
    scaled = found["models"][0]["scaled"]
    assert scaled["temperature"] == pytest.approx(3.0, rel=0.1)
    assert scaled["metrics"]["ece"] < 0.3 * found["models"][0]["metrics"]["ece"]


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(PredictionFileError, match="their labels differ"):
        audit([_file(1.0), _file(1.0, count=100)], resamples=10)
    with pytest.raises(PredictionFileError, match="1 validation files for 2"):
        audit([_file(1.0), _file(2.0)], [_file(1.0)], resamples=10)
    bad = PredictionFile("bad", labels=torch.tensor([0, 1]), probs=torch.tensor([[0.6, 0.6]] * 2))
    with pytest.raises(PredictionFileError, match="bad: "):
        audit([bad], resamples=10)


def test_command(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    file = _file(3.0)
    evil = np.array(["<script>alert(1)</script>", "[red]b", "c", "d"])
    np.savez(
        tmp_path / "a.npz", logits=file.scores.numpy(), labels=file.labels.numpy(), classes=evil
    )
    done = sfumato("audit", "a.npz", "--resamples", "50")
    assert done.status == 0, done.stderr
    assert "overconfident" in done.stdout
    page = (tmp_path / "audit" / "index.html").read_text()
    assert "<script>" not in page
    assert "overconfident" in page
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    done = sfumato("audit", "broken.npz")
    assert done.status == 2
    assert "broken.npz: can't be read" in done.stderr
    assert "Traceback" not in done.stderr
