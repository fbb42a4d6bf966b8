"""`sfumato calibrate`: a file in, a calibrator out, and a model with one more output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sfumato.auditing.columns import PredictionFileError
from sfumato.cli import app
from sfumato.predictions import load_calibrator

QUICK = ["--methods", "temperature,vector", "--folds", "2"]


def predictions(folder: Path, key: str = "logits") -> Path:
    generator = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(400, 3, generator=generator)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
    scores = 3 * true if key == "logits" else (20 * (3 * true).softmax(1)).round() / 20
    scores = scores if key == "logits" else scores / scores.sum(1, keepdim=True)
    np.savez(folder / "validation.npz", **{key: scores.numpy(), "labels": labels.numpy()})
    return folder / "validation.npz"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_writes_a_calibrator_and_says_why(tmp_path: Path) -> None:
    shown = run(predictions(tmp_path), "--out", tmp_path / "calibrator.json", *QUICK)
    assert "temperature *" in shown
    assert "Use temperature: " in shown
    found = load_calibrator(tmp_path / "calibrator.json")
    assert found.scaler is not None
    assert found.scaler.temperature == pytest.approx(3, rel=0.2)
    assert found.report["file"] == "validation.npz"
    assert "Calibrator: " in shown
    assert shown.startswith("Comparing ")  # nothing is silent while it fits
    assert "load_calibrator(" in shown.splitlines()[-1]  # the next step is last
    again = run(tmp_path / "validation.npz", "--out", tmp_path / "calibrator.json", *QUICK)
    assert "Calibrator (replaced): " in again


def test_zeros_are_said(tmp_path: Path) -> None:
    shown = run(predictions(tmp_path, "probs"), "--out", tmp_path / "calibrator.json", *QUICK)
    assert "labels had probability 0" in shown
    assert "of the uniform one first" in shown


def test_bad_arguments(tmp_path: Path) -> None:
    file = predictions(tmp_path)
    with pytest.raises(PredictionFileError, match="--methods: 'platt' is none of temperature"):
        run(file, "--methods", "platt")
    np.savez(file, logits=np.zeros((3, 2)), labels=np.zeros(3, dtype=int))
    with pytest.raises(PredictionFileError, match="at least 20 samples"):
        run(file, "--out", tmp_path / "calibrator.json")


def test_folders_and_options_that_would_not_be_used(tmp_path: Path) -> None:
    file, out = predictions(tmp_path), tmp_path / "calibrator.json"
    with pytest.raises(PredictionFileError, match="is a folder; name one file of held-out"):
        run(tmp_path, "--out", out)
    with pytest.raises(PredictionFileError, match=r"--out .*: is a folder; name a file in it"):
        run(file, "--out", tmp_path)
    for option in ("--onnx-output", "--onnx-out"):
        with pytest.raises(PredictionFileError, match=f"{option} needs --onnx MODEL"):
            run(file, "--out", out, option, "x")
    assert not out.exists()


def test_names_of_classes_are_given_as_advised(tmp_path: Path) -> None:
    file, out = predictions(tmp_path), tmp_path / "calibrator.json"
    with np.load(file) as content:
        arrays = dict(content)
    names = np.array(["cat", "dog", "owl"])
    np.savez(file, logits=arrays["logits"], labels=names[arrays["labels"]])
    with pytest.raises(PredictionFileError, match="--classes cat,dog"):
        run(file, "--out", out, *QUICK)
    run(file, "--out", out, "--classes", "cat,dog,owl", *QUICK)
    assert load_calibrator(out).report["class_names"] == names.tolist()


@pytest.mark.slow
def test_appends_to_a_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    network = torch.nn.Linear(5, 3).eval()
    torch.onnx.export(
        network,
        (torch.zeros(2, 5),),
        tmp_path / "model.onnx",
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    out = tmp_path / "calibrator.json"
    shown = run(predictions(tmp_path), "--out", out, "--onnx", tmp_path / "model.onnx", *QUICK)
    assert "onnxruntime runs it and gives the same probabilities" in shown
    session = onnxruntime.InferenceSession(
        tmp_path / "model-calibrated.onnx", providers=["CPUExecutionProvider"]
    )
    images = torch.randn(7, 5)
    found = session.run(["calibrated_probs"], {session.get_inputs()[0].name: images.numpy()})[0]
    expected = load_calibrator(out).predict_proba(logits=network(images))
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


def test_probabilities_are_no_logits(tmp_path: Path) -> None:
    """In files whose name says nothing, and `--kind logits` says what is not so."""
    out = tmp_path / "calibrator.json"
    with np.load(predictions(tmp_path, "probs")) as content:
        np.save(tmp_path / "scores.npy", content["probs"])
        np.save(tmp_path / "labels.npy", content["labels"])
    given = (tmp_path / "scores.npy", "--labels", tmp_path / "labels.npy", "--kind", "logits")
    with pytest.raises(PredictionFileError, match=r"must be raw scores, got .*--any-logits"):
        run(*given, "--out", out, *QUICK)
    assert not out.exists()
    audited = CliRunner().invoke(app, ["audit", *map(str, given), "--out", str(tmp_path / "a")])
    assert isinstance(audited.exception, PredictionFileError)
    run(*given, "--any-logits", "--out", out, *QUICK)
    assert load_calibrator(out).report["samples"] == 400


def test_a_broken_model_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"garbage")
    with pytest.raises(PredictionFileError, match=r"model\.onnx: onnx can't read it") as caught:
        run(predictions(tmp_path), "--out", tmp_path / "c.json", "--onnx", model, *QUICK)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "model-calibrated.onnx").exists()
    with model.open("wb") as file:  # no message of protobuf is as large; on the disk it is empty
        file.truncate(2**31 + 1)
    with pytest.raises(PredictionFileError, match="at most 2,147,483,648 are read"):
        run(predictions(tmp_path), "--out", tmp_path / "c.json", "--onnx", model, *QUICK)


def test_sentences_are_wrapped_between_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, 2, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    np.savez(tmp_path / "true.npz", logits=logits.numpy(), labels=labels.numpy())
    shown = run(tmp_path / "true.npz", "--out", tmp_path / "c.json", "--methods", "isotonic")
    lines = shown.splitlines()
    reason = next(at for at, line in enumerate(lines) if line.startswith("Use none: "))
    assert len(lines[reason]) <= 60
    assert lines[reason + 1].endswith("cross-validation).")
