"""Audits: the right verdict on predictions whose truth is known."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from sfumato._core.confidence_bins import bin_index
from sfumato.engine.evaluation.audit import audit, honest_share
from sfumato.engine.evaluation.audit_histograms import tallies_of_histogram
from sfumato.engine.evaluation.audit_sets import sets_of
from sfumato.engine.evaluation.audit_tallies import Summed, Tallies
from sfumato.engine.runs.prediction_files import (
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)
from sfumato.report.audit import audit_view
from sfumato.report.audit_sentences import sentences


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
        logits=torch.cat([good.predictions, bad.predictions]),
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
        "new", labels=plain.labels[order], logits=plain.predictions[order], index=order
    )
    found = audit([first, second], [first, second], resamples=100)
    ece = found["comparisons"][0]["metrics"]["ece"]
    assert ece["high"] < 0
    assert found["comparisons"][0]["metrics"]["accuracy"]["difference"] == pytest.approx(0)
    scaled = found["models"][0]["scaled"]
    assert scaled["temperature"] == pytest.approx(3.0, rel=0.1)
    assert scaled["metrics"]["ece"] < 0.3 * found["models"][0]["metrics"]["ece"]


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(PredictionFileError, match="they hold 2,000 and 100 samples"):
        audit([_file(1.0), _file(1.0, count=100)], resamples=10)
    with pytest.raises(PredictionFileError, match="1 validation files for 2"):
        audit([_file(1.0), _file(2.0)], [_file(1.0)], resamples=10)
    bad = PredictionFile("bad", labels=torch.tensor([0, 1]), probs=torch.tensor([[0.6, 0.6]] * 2))
    with pytest.raises(PredictionFileError, match="bad: "):
        audit([bad], resamples=10)


def test_one_image_has_no_verdict() -> None:
    sure, wrong = torch.full((50,), 0.99), torch.zeros(50, dtype=torch.bool)
    detections = ConfidenceFile("boxes", sure, wrong, images=["a"] * 50)
    probs = torch.tensor([0.99, 0.01]).view(1, 2, 1, 1).expand(1, 2, 8, 8)
    map_ = PredictionFile("map", torch.ones(1, 8, 8, dtype=torch.int64), probs=probs)
    summed = Tallies()
    summed.add(map_)
    for file in (detections, map_, Summed("sums", summed)):
        found = audit([file], resamples=20)
        assert found["models"][0]["verdict"] == "can't tell"
        [line, *_] = sentences(found)
        assert "all of one image, which has no interval" in line
        assert "nan" not in line
    counts = [torch.tensor([[0.0, 50.0]]), torch.zeros(1, 2), torch.tensor([[0.0, 49.5]])]
    counted = Summed("bins", tallies_of_histogram("bins", *(each.double() for each in counts)))
    assert "a histogram without images has no interval" in sentences(audit([counted]))[0]


def test_maps_without_a_labelled_pixel_hold_no_prediction() -> None:
    labels = torch.full((2, 4, 4), 255)
    file = PredictionFile("void", labels, probs=torch.full((2, 2, 4, 4), 0.5), void=255)
    summed = Tallies()
    summed.add(file)
    for each in (file, Summed("void", summed)):
        with pytest.raises(PredictionFileError, match="void: holds no prediction that counts"):
            audit([each], resamples=20)


def test_where_most_of_the_error_is_is_not_called_the_worst() -> None:
    """900 say 0.95 and are 0.03 off, 100 say 0.55 and are 0.15 off."""
    sure = torch.tensor([0.95] * 900 + [0.55] * 100)
    right = torch.cat([torch.arange(900) < 828, torch.arange(100) < 40])
    file = PredictionFile("m", (~right).long(), probs=torch.stack([sure, 1 - sure], 1))
    [line] = sentences(audit([file], resamples=0))
    assert line.endswith("The largest part of it is where it says 93 to 100 %: +3.0 points.")


def test_sets_cover_each_class_with_an_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    found = sets_of(PredictionFile("a", labels, logits=logits, classes=["x", "y", "z"]))
    assert found is not None
    plain, per_class = found["by_class"]
    assert (plain["name"], per_class["name"]) == ("THR", "THR per class")
    assert plain["classes"] == ["x", "y", "z"]
    for kind, row in ((plain, found["rows"][0]), (per_class, found["rows"][1])):
        assert min(kind["coverage"]) == pytest.approx(row["worst_class"], abs=1e-4)
        for low, value, high in zip(kind["low"], kind["coverage"], kind["high"], strict=True):
            assert low < value < high


def test_honest_sets_by_cells_are_those_drawn_one_by_one() -> None:
    """How often a model of true confidences shows this ECE: cells against every prediction."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.3 + 0.7 * torch.rand(4000, generator=generator, dtype=torch.float64)
    bins = bin_index(confidence, 15)
    errors = []
    for _ in range(2000):
        right = torch.rand(4000, generator=generator, dtype=torch.float64) < confidence
        gaps = torch.zeros(15, dtype=torch.float64)
        gaps.index_add_(0, bins, confidence - right.double())
        errors.append(float(gaps.abs().sum() / 4000))
    for quantile in (0.1, 0.5, 0.9):
        error = float(np.quantile(errors, quantile))
        share = honest_share(confidence, error, generator, draws=2000)
        assert share == pytest.approx(1 - quantile, abs=0.04)


def test_terminal_shows_a_sentence_first_and_fits_80_columns() -> None:
    long = "a_name_that_is_long_and_has_no_space_" * 2
    files = [_file(3.0, name=long, groups=[long] * 2000), _file(1.0, name="right")]
    found = audit(files, files, resamples=20)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in audit_view(found):
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    first = " ".join(text.split("\n\n")[0].split())
    assert first.startswith(f"{long} is overconfident: it says")
    assert text.index("right: no miscalibration found") < text.index("━")
    for word in ("coverage", "verdict", "difference"):
        assert word in text


def test_command(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    file = _file(3.0)
    evil = np.array(["<script>alert(1)</script>", "[red]b", "c", "d"])
    np.savez(
        tmp_path / "a.npz",
        logits=file.predictions.numpy(),
        labels=file.labels.numpy(),
        classes=evil,
    )
    done = sfumato("audit", "a.npz", "--resamples", "50")
    assert done.status == 0, done.stderr
    assert "overconfident" in done.stdout
    page = (tmp_path / "audit" / "index.html").read_text()
    assert "<script>" not in page
    assert "overconfident" in page
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    np.savez(tmp_path / "one.npz", probs=np.array([[0.7, 0.3]]), labels=np.array([1]))
    for more in ([], ["--resamples", "0"]):
        done = sfumato("audit", "one.npz", *more)
        assert done.status == 0, done.stderr
        assert "one prediction can't tell" in done.stdout
    done = sfumato("audit", "broken.npz")
    assert done.status == 2
    assert "broken.npz: can't be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("copies", [1, 3])
def test_few_right_predictions_are_no_evidence(copies: int) -> None:
    """That six of six are right happens to an honest model of 65 % in 8 of 100 cases."""
    probs = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).repeat(copies, 1)
    labels = torch.tensor([0, 1]).repeat(copies)
    model = audit([PredictionFile("few", labels, probs=probs)])["models"][0]
    assert model["verdict"] == "no miscalibration found"
    low, high = model["gap"]["interval"]
    assert low < -0.35 < 0 < high
