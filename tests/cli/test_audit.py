"""`sfumato audit`: which files are which model, thresholds, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.auditing.page import next_steps


def _csv(path: Path, count: int = 300, seed: int = 0, *, wrong: float = 0.3) -> Path:
    random_numbers = np.random.default_rng(seed)
    confidence = random_numbers.uniform(0.5, 1.0, count)
    right = random_numbers.random(count) > wrong * 2 * (1 - confidence)
    lines = [
        f"{r:d},{c:.6f},{'ab'[i % 2]}"
        for i, (r, c) in enumerate(zip(right, confidence, strict=True))
    ]
    path.write_text("correct,confidence,predicted\n" + "\n".join(lines) + "\n")
    return path


def _models(folder: Path) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = json.loads((folder / "audit" / "audit.json").read_text())[
        "models"
    ]
    return models


def test_a_pattern_is_one_model_and_arguments_are_several(
    tmp_path: Path, sfumato: Callable[..., Any]
) -> None:
    for number in range(3):
        _csv(tmp_path / f"part-{number}.csv", seed=number)
    for arguments, counts in (
        (["part-*.csv"], [900]),
        (["part-0.csv", "part-1.csv", "--merge"], [600]),
        (["."], [900]),
        (["part-0.csv", "part-0.csv"], [300, 300]),
    ):
        done = sfumato("audit", *arguments, "--resamples", "5", "--quiet")
        assert done.status == 0, done.stderr
        assert [model["samples"] for model in _models(tmp_path)] == counts


def test_the_next_command_is_one_line_and_sentences_are_wrapped(
    tmp_path: Path, sfumato: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "a_class_whose_name_is_longer_than_half_of_a_line_of_a_terminal"
    probs = np.random.default_rng(0).dirichlet([1.0, 1.0], 300)
    np.savez(tmp_path / "a.npz", probs=probs, labels=np.zeros(300, int))
    reading = ("--classes", f"{long},{long[:-1]}", "--on-bad-row", "skip")
    lines = sfumato("audit", "a.npz", *reading, "--resamples", "5").stdout.splitlines()
    command = next(line for line in lines if line.startswith("  sfumato "))
    assert shlex.split(command)[-1] == "calibrator.json"
    assert max(len(line) for line in lines if line != command) <= 80


def test_thresholds_are_said_and_kept(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    _csv(tmp_path / "a.csv", 4000)
    risks = ("--target-risk", "0.05", "--escalate-risk", "0.1", "--per-class")
    done = sfumato("audit", "a.csv", "--resamples", "5", *risks)
    assert done.status == 0, done.stderr
    assert done.stderr == "Auditing\n"  # in a pipe, in place of a bar
    found = _models(tmp_path)[0]["thresholds"]
    accept, escalate = found["accept"], found["escalate"]
    assert escalate["confidence"] < accept["confidence"]
    assert accept["risk"] < accept["risk_bound"] <= 0.05
    assert f"from a confidence of {accept['confidence']:.4g} on" in " ".join(done.stdout.split())
    assert "reject below" in " ".join(done.stdout.split())
    assert [row["name"] for row in found["classes"]] == ["a", "b"]
    all_kept = ("--target-risk", "0.05", "--escalate-risk", "0.9")
    done = sfumato("audit", "a.csv", "--resamples", "0", *all_kept)
    assert "and reject nothing" in " ".join(done.stdout.split())
    done = sfumato("audit", "a.csv", "--resamples", "0", "--target-risk", "0.0001")
    assert "No threshold of a reaches an error" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing-*.csv"], "nothing-*.csv: no file has such a name"),
        (["none.csv"], "none.csv: no such file"),
        (["empty"], "empty: holds no predictions; known are .csv"),
        (["a.csv", "--per-class"], "--per-class needs --target-risk: add that, or leave it out"),
        (["a.csv", "--escalate-risk", "0.1"], "--escalate-risk needs --target-risk"),
        (["a.csv", "--delta", "5"], "--delta needs --target-risk"),
        (["a.csv", "--most-per-image", "3"], "--most-per-image needs --target-risk"),
        (["a.csv", "--target-risk", "0.2", "--delta", "5"], "--delta must be between 0 and 1"),
        (["a.csv", "--split", "nonsense"], "--split nonsense: names stored predictions of a run"),
        (["bad.parquet", "--unlabelled"], "bad.parquet: can't be read ("),
        (["none.parquet", "--unlabelled"], "none.parquet: no such file"),
        (["a.csv", "--target-risk", "2"], "--target-risk must be between 0 and 1, got 2"),
        (
            ["a.csv", "--target-risk", "0.2", "--escalate-risk", "0.1"],
            "--escalate-risk must be at least --target-risk",
        ),
        (["a.csv", "--validation", "a.csv"], "temperature scaling needs 'logits' or 'probs'"),
        (["a.csv", "bad.csv", "--merge"], "bad.csv, row 2: 'confidence' is 7"),
        (["p.npy", "--labels", "l.npy"], "l.npy: can't be read (no .npy file; write it with np"),
        (["dates.npz"], "dates.npz: 'probs' holds datetime64[s], not numbers"),
        (["complex.npz"], "complex.npz: 'probs' holds complex128, not numbers"),
        (["fields.npz"], "fields.npz: can't be read (probs.npy holds void64 values; save plain"),
    ],
)
def test_what_is_refused_in_one_line(
    tmp_path: Path, sfumato: Callable[..., Any], arguments: list[str], message: str
) -> None:
    _csv(tmp_path / "a.csv")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.csv").write_text("correct,confidence\n1,0.5\n1,7\n")
    (tmp_path / "bad.parquet").write_text("no parquet")
    (tmp_path / "l.npy").write_text("label\n0\n")
    np.save(tmp_path / "p.npy", np.full((4, 2), 0.5))
    kinds = {"dates": "datetime64[s]", "complex": "complex128", "fields": [("a", "f8")]}
    for name, kind in kinds.items():
        values: Any = np.zeros((4, 2), np.dtype(kind))
        np.savez(tmp_path / f"{name}.npz", probs=values, labels=np.arange(4) % 2)
    done = sfumato("audit", *arguments, "--resamples", "0", "--quiet")
    assert done.status == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_skipped_rows_are_said(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    (tmp_path / "a.csv").write_text("correct,confidence\n1,0.5\n1,7\n0,0.9\n")
    done = sfumato("audit", "a.csv", "--on-bad-row", "skip", "--resamples", "0")
    assert done.status == 0, done.stderr
    assert "rows were left out (1 confidence outside [0, 1])" in " ".join(done.stdout.split())
    assert _models(tmp_path)[0]["skipped"] == {"confidence outside [0, 1]": 1}


def test_ignored_rows_are_said(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    labels[:7] = 255
    np.savez(tmp_path / "a.npz", probs=rng.dirichlet([1] * 3, 300), labels=labels)
    done = sfumato("audit", "a.npz", "--ignore-index", "255", "--resamples", "0")
    assert done.status == 0, done.stderr
    assert "rows were left out (7 with the label of --ignore-index)" in " ".join(
        done.stdout.split()
    )
    done = sfumato("audit", "a.npz", "--ignore-index", "255", "--unlabelled")
    assert done.status == 2
    assert "--ignore-index names a label: leave it or --unlabelled out" in done.stderr


def test_blanks_between_class_names(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    (tmp_path / "a.csv").write_text("label,predicted,confidence\nb,1,0.9\na,b,0.8\n")
    done = sfumato("audit", "a.csv", "--classes", "a, b", "--resamples", "0")
    assert done.status == 0, done.stderr
    assert [row["name"] for row in _models(tmp_path)[0]["by_class"]] == ["b"]


def test_the_predictions_of_a_run(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    folder = tmp_path / "25403a2604ab" / "predictions"
    folder.mkdir(parents=True)
    logits = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.savez(folder / "test.npz", logits=logits, labels=logits.argmax(1), index=np.arange(50))
    done = sfumato("audit", "25403a2604ab", "--resamples", "0")
    assert done.status == 0, done.stderr
    assert _models(tmp_path)[0]["name"] == "25403a2604ab"
    done = sfumato("audit", "25403a2604ab", "--split", "validation")
    assert done.status == 2
    assert "holds no predictions of 'validation' (has ['test'])" in done.stderr


def test_probabilities_that_round_above_one(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    first = np.array([1.0005, 0.2, 0.9] * 100)
    labels = np.array([0, 1, 0] * 100)
    np.savez(tmp_path / "a.npz", probs=np.stack([first, 1 - first.clip(max=1)], 1), labels=labels)
    done = sfumato("audit", "a.npz", "--target-risk", "0.1", "--resamples", "0", "--quiet")
    assert done.status == 0, done.stderr
    assert _models(tmp_path)[0]["thresholds"]["accept"]["confidence"] is not None


def test_a_reader_that_stops_listening_finds_the_page(tmp_path: Path) -> None:
    file, out = _csv(tmp_path / "a.csv"), tmp_path / "x"
    command = [sys.executable, "-m", "sfumato", "audit", str(file), "--resamples", "5"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, "--out", str(out)], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert (out / "index.html").exists()


PUBLISHED = (
    *("wideresnet-cifar10.npz", "densenet-cifar100.npz", "20news-probs.npy", "imdb-probs.npy"),
    *("imagenet-resnet101.csv", "imagenet-efficientnet-b3a.csv", "birds-resnet50.csv"),
    "coco-faster-rcnn.npz",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_advised_works(
    tmp_path: Path, sfumato: Callable[..., Any], real_data: Callable[[str], Path], name: str
) -> None:
    path = real_data(f"predictions/{name}")
    labels = path.with_name(name.replace("probs", "labels"))
    reading = ["--labels", str(labels)] if path.suffix == ".npy" else []
    done = sfumato("audit", str(path), *reading, "--resamples", "0", "--quiet")
    assert done.status == 0, done.stderr
    model = _models(tmp_path)[0]
    steps = next_steps(model)
    assert steps[0].command in " ".join(done.stdout.split())
    given = {"FILE": str(path), "LABELS": str(labels)}
    given = {
        f"{when}_{key}": value for key, value in given.items() for when in ("NEW", "VALIDATION")
    }
    for step in steps:
        words = [given.get(word, word) for word in shlex.split(step.command)[1:]]
        less = ["--methods", "temperature"] if words[0] == "calibrate" else ["--resamples", "0"]
        done = sfumato(*words, *less)
        assert done.status == 0, (step, done.stderr)
        if "--target-risk" in words:
            assert _models(tmp_path)[0]["thresholds"]["accept"]["confidence"] is not None
