"""Files with a column `in_distribution`: strange inputs are measured apart from all else."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sfumato
from sfumato.auditing import audit, columns
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import Reading, read_any
from sfumato.cli import app
from sfumato.metrics import ood_metrics
from sfumato.predictions import choose_calibrator, energy_score, maximum_probability_score

FAMILIAR, STRANGE = 300, 120


def _rows(seed: int = 0) -> dict[str, Any]:
    """Calibrated predictions of three classes, and flatter ones of inputs without a label."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(FAMILIAR + STRANGE, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((len(probs), 1))).argmax(1)
    is_familiar = np.arange(len(probs)) < FAMILIAR
    logits[~is_familiar] *= 0.5
    order = rng.permutation(len(probs))
    labels[~is_familiar] = -1
    return {
        "logits": logits[order],
        "labels": labels[order],
        "in_distribution": is_familiar[order],
    }


def _table(path: Path, rows: dict[str, np.ndarray]) -> Path:
    """A CSV of probabilities in which strange inputs have no label."""
    probs = torch.from_numpy(rows["logits"]).softmax(1).numpy()
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["label", "prob_cat", "prob_dog", "prob_eel", "in_distribution"])
        for each, label, known in zip(probs, rows["labels"], rows["in_distribution"], strict=True):
            lines.writerow([["cat", "dog", "eel"][label] if known else "", *each, known])
    return path


def test_the_scores_and_the_audit_of_the_familiar_rows(tmp_path: Path) -> None:
    rows = _rows()
    known = rows["in_distribution"]
    np.savez(tmp_path / "net.npz", **rows)
    found = audit(tmp_path / "net.npz", target_risk=0.3, resamples=50)
    alone = audit(logits=rows["logits"][known], target=rows["labels"][known], resamples=50)
    assert found.metrics == alone.metrics
    assert alone.strange is None
    assert found.strange is not None
    assert found.strange["samples"] == STRANGE
    assert list(found.strange["scores"]) == [
        *("max_probability", "entropy", "generalised_entropy", "max_logit", "energy")
    ]
    values = torch.from_numpy(rows["logits"])
    right = values.argmax(1).numpy()[known] == rows["labels"][known]
    for name, score in (("max_probability", maximum_probability_score), ("energy", energy_score)):
        scores = score(values)
        measured = found.strange["scores"][name]
        expected = ood_metrics(scores[known], scores[~known], correct=right)
        assert {key: measured[key] for key in expected} == pytest.approx(expected)
        assert measured["auroc_interval"][0] < measured["auroc"] < measured["auroc_interval"][1]
    assert found.threshold is not None
    assert found.threshold.confidence is not None
    sure = values.softmax(1).amax(1)[~known] >= found.threshold.confidence
    assert found.strange["accepted"] == pytest.approx(float(sure.double().mean()))
    text = " ".join(found.summary().split())
    assert "tells 120 strange inputs from familiar ones with an AUROC of" in text
    assert "the guarantee above is about familiar inputs" in text


def test_tables_in_parts_of_which_some_hold_strange_inputs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows()
    order = np.argsort(~rows["in_distribution"], kind="stable")
    rows = {key: each[order] for key, each in rows.items()}
    path = _table(tmp_path / "net.csv", rows)
    whole = audit(path, resamples=20)
    monkeypatch.setattr(columns, "BATCH", 50)
    found = audit(path, resamples=20)
    assert found.metrics == whole.metrics
    assert found.strange is not None
    assert found.strange == whole.strange
    probs = torch.from_numpy(rows["logits"]).softmax(1)
    frame = {"truth": rows["labels"], "p": list(probs.numpy()), "known": rows["in_distribution"]}
    named = audit(frame, label="truth", probs="p", in_distribution="known", resamples=20)
    assert named.strange is not None
    auroc = found.strange["scores"]["entropy"]["auroc"]
    assert named.strange["scores"]["entropy"]["auroc"] == pytest.approx(auroc)
    assert "energy" not in named.strange["scores"]  # of probabilities it is 0


def test_missing_labels_as_numbers(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = _rows()
    known = rows["in_distribution"]
    table = {
        "label": [
            int(each) if ok else None for each, ok in zip(rows["labels"], known, strict=True)
        ],
        "in_distribution": known,
        **{f"logit_{c}": rows["logits"][:, c] for c in range(3)},
    }
    path = tmp_path / "net.parquet"
    parquet.write_table(pyarrow.table(table), path)
    assert len(read_any(path)) == FAMILIAR
    sorted_last = {
        key: np.asarray(each, dtype=object)[np.argsort(~known)] for key, each in table.items()
    }
    parquet.write_table(
        pyarrow.table({key: each.tolist() for key, each in sorted_last.items()}), path, 60
    )
    assert len(read_any(path)) == FAMILIAR


def test_confidences_alone_and_their_calibrator() -> None:
    rows = _rows()
    known = rows["in_distribution"]
    probs = torch.from_numpy(rows["logits"]).softmax(1)
    sure, top = probs.max(1)
    given: dict[str, Any] = {"confidence": sure, "correct": top.numpy() == rows["labels"]}
    found = audit(**given, in_distribution=known, resamples=0)
    assert found.strange is not None
    assert list(found.strange["scores"]) == ["max_probability"]
    calibrator = choose_calibrator(
        confidence=sure[known],
        correct=torch.from_numpy(given["correct"][known]),
        methods=("spline",),
    )
    both = audit(**given, in_distribution=known, resamples=0, calibrator=calibrator)
    assert both.calibrated is not None
    after = calibrator.predict_proba(confidence=sure)
    expected = ood_metrics(1 - after[known], 1 - after[~known])["auroc"]
    assert both.calibrated.strange is not None
    measured = both.calibrated.strange["scores"]["max_probability"]["auroc"]
    assert measured == pytest.approx(expected)


def test_a_calibrator_of_all_classes_is_applied_to_strange_inputs() -> None:
    rows = _rows()
    known = rows["in_distribution"]
    given: dict[str, Any] = {"logits": rows["logits"], "target": rows["labels"]}
    calibrator = choose_calibrator(
        logits=torch.from_numpy(rows["logits"][known]),
        target=torch.from_numpy(rows["labels"][known]),
        methods=("temperature",),
    )
    both = audit(**given, in_distribution=known, resamples=0, calibrator=calibrator)
    assert both.calibrated is not None
    assert both.calibrated.strange is not None
    after = 1 - calibrator.predict_proba(logits=torch.from_numpy(rows["logits"])).amax(1)
    measured = both.calibrated.strange["scores"]["max_probability"]["auroc"]
    assert measured == pytest.approx(ood_metrics(after[known], after[~known])["auroc"], abs=1e-3)


def test_the_command_and_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _table(tmp_path / "net.csv", _rows())
    done = CliRunner().invoke(app, ["audit", "net.csv", "--resamples", "20"])
    assert done.exit_code == 0, done.output
    assert "tells 120 strange inputs" in " ".join(done.output.split())
    page = (tmp_path / "audit" / "index.html").read_text()
    assert "net: strange inputs [95 %]" in page
    assert "generalised entropy" in page


def test_bad_rows_of_both_kinds(tmp_path: Path) -> None:
    rows = _rows()
    place = int(np.flatnonzero(~rows["in_distribution"])[0])
    path = _table(tmp_path / "net.csv", rows)
    lines = path.read_text().splitlines()
    cells = lines[place + 1].split(",")
    lines[place + 1] = ",".join([cells[0], "nan", *cells[2:]])
    other = int(np.flatnonzero(rows["in_distribution"])[0])
    lines[other + 1] = lines[other + 1].replace("True", "perhaps")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(PredictionFileError, match="'in_distribution' must be true or false"):
        read_any(path)
    found = read_any(path, Reading(on_bad_row="skip"))
    assert found.strange is not None
    assert (len(found), len(found.strange)) == (FAMILIAR - 1, STRANGE - 1)


def test_what_is_refused(tmp_path: Path) -> None:
    rows = _rows()
    given: dict[str, Any] = {"logits": rows["logits"], "target": rows["labels"]}
    nothing = np.zeros(len(rows["labels"]), bool)
    with pytest.raises(PredictionFileError, match="'in_distribution' is false in every row"):
        audit(**given, in_distribution=nothing)
    given["target"] = np.maximum(rows["labels"], 0)
    found = audit(**given, in_distribution=~nothing, resamples=0)
    assert found.strange is None
    assert "'in_distribution' is true in every row" in found.summary()
    path = _table(tmp_path / "net.csv", rows)
    run = CliRunner()
    done = run.invoke(app, ["audit", str(path), "--workers", "2", "--out", str(tmp_path / "a")])
    assert "is read as running totals: leave --workers and --ray out" in " ".join(
        str(done.exception or done.output).split()
    )
    bare = path.read_text().replace("label,", "other,", 1)
    path.write_text(bare)
    done = run.invoke(app, ["audit", str(path), "--unlabelled", "--out", str(tmp_path / "a")])
    assert "leave the column out" in " ".join(str(done.exception or done.output).split())
    detections: dict[str, Any] = {
        "confidence": np.full(4, 0.5),
        "correct": np.ones(4, bool),
        "images": [0, 0, 1, 1],
    }
    with pytest.raises(PredictionFileError, match="these are detections: leave it out"):
        sfumato.audit(**detections, in_distribution=np.ones(4, bool))
