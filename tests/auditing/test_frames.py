"""`sfumato.audit` of paths and frames, named columns, and a calibrator before and after."""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfumato
from sfumato.auditing.columns import columns_of_frame
from sfumato.auditing.page import next_steps
from sfumato.predictions import choose_calibrator

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Overconfident probabilities of three classes, and labels."""
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(600, 3))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    sure = np.exp(3 * logits) / np.exp(3 * logits).sum(1, keepdims=True)
    return {"probs": sure, "labels": (rng.random((600, 1)) > true.cumsum(1)).sum(1)}


def _frames(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    columns = {name: arrays["probs"][:, c] for c, name in enumerate(("cat", "dog", "eel"))}
    names = np.array(["cat", "dog", "eel"])[arrays["labels"]]
    frame = pd.DataFrame({**columns, "truth": names, "label": "unrelated"})
    return {
        "pandas": frame,
        "dict": {name: frame[name].to_list() for name in frame},
        "arrow": pytest.importorskip("pyarrow").Table.from_pandas(frame),
    }


@pytest.mark.parametrize("kind", ["pandas", "dict", "arrow"])
def test_a_frame_with_named_columns(arrays: dict[str, np.ndarray], kind: str) -> None:
    expected = sfumato.audit(probs=arrays["probs"], target=arrays["labels"], resamples=0)
    found = sfumato.audit(
        _frames(arrays)[kind], label="truth", probs=["cat", "dog", "eel"], resamples=0
    )
    assert found.metrics == expected.metrics


def test_words_of_a_table_in_memory_have_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a file has one: a word that repeats takes no bytes there."""
    import pyarrow as pa

    asked: list[int] = []
    monkeypatch.setattr(
        "sfumato.auditing.columns.words_of_rows",
        lambda column, most: asked.append(most) or column.cast(pa.string()),
    )
    group = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), pa.array(["a", "b"]))
    assert columns_of_frame(pa.table({"group": group}))["group"].tolist() == ["a", "a", "b"]
    assert asked == [sys.maxsize]


def test_masked_entries_are_refused(arrays: dict[str, np.ndarray]) -> None:
    masked = np.ma.masked_array(arrays["probs"], mask=arrays["probs"] > 0.99)
    with pytest.raises(ValueError, match="probs has masked entries"):
        sfumato.audit(probs=masked, target=arrays["labels"])
    with pytest.raises(ValueError, match="probs has masked entries"):
        sfumato.audit({"probs": masked, "label": arrays["labels"]})


def test_a_missing_value_of_pandas() -> None:
    frame = {"confidence": [0.5, 0.6] * 50, "predicted": [1, pd.NA] * 50, "label": [0, 1] * 50}
    with pytest.raises(ValueError, match="row 1: 'predicted' is missing"):
        sfumato.audit(pd.DataFrame(frame), resamples=0)


def test_a_frame_with_usual_names_needs_none(arrays: dict[str, np.ndarray]) -> None:
    frame = pd.DataFrame({"probs": list(arrays["probs"]), "y": arrays["labels"]})
    expected = sfumato.audit(probs=arrays["probs"], target=arrays["labels"], resamples=0)
    assert sfumato.audit(frame, resamples=0).metrics == expected.metrics
    assert sfumato.audit(arrays, resamples=0).metrics == expected.metrics


@pytest.mark.parametrize("suffix", ["pt", "npz", "csv", "npy"])
def test_a_path(arrays: dict[str, np.ndarray], tmp_path: Path, suffix: str) -> None:
    path, options = tmp_path / f"p.{suffix}", {}
    if suffix == "pt":
        tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
        torch.save({**tensors, "epoch": 3, "classes": ["cat", "dog", "eel"]}, path)
    elif suffix == "npz":
        np.savez(path, **arrays)
    elif suffix == "csv":
        _frames(arrays)["pandas"].to_csv(path, index=False)
        options = {"label": "truth", "probs": ["cat", "dog", "eel"]}
    else:
        np.save(path, arrays["probs"])
        np.save(tmp_path / "l.npy", arrays["labels"])
        options = {"label": str(tmp_path / "l.npy")}
    expected = sfumato.audit(probs=arrays["probs"], target=arrays["labels"], resamples=0)
    for each in (path, str(path)):
        found = sfumato.audit(each, resamples=0, **options)
        assert found.metrics == pytest.approx(expected.metrics)


def test_a_folder_of_shards_may_hold_weights(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", **arrays)
    torch.save({"layer": torch.ones(2)}, tmp_path / "model.pt")
    assert sfumato.audit(tmp_path, resamples=0).to_dict()["models"][0]["samples"] == 600


class _Code:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"probs": _Code()}, "can't be read"),
        ([1, 2], "save a dictionary"),
        ({"probs": torch.ones(1, 2).expand(10, 2), "labels": torch.ones(10)}, "expanded view"),
        ({"probs": torch.eye(2).to_sparse(), "labels": torch.ones(2)}, "sparse_coo"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse")
def test_files_of_torch_that_are_refused(
    tmp_path: Path, content: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, tmp_path / "p.pt")
    with pytest.raises(ValueError, match=message):
        sfumato.audit(tmp_path / "p.pt")
    assert capsys.readouterr().out == ""


EAST = timezone(timedelta(hours=14))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: {"probs": torch.empty(600, 4, device="meta")}, "a meta tensor"),
        (lambda: {"probs": torch.nested.nested_tensor([torch.ones(4)] * 600)}, "a nested tensor"),
        (lambda: {"target": np.full(600, 2**64 - 1, dtype=np.uint64)}, r"outside \[0, 4\)"),
        (lambda: {"target": np.full(600, 1e300)}, r"outside \[0, 4\)"),
        (lambda: {"time": [10**400] * 600}, "must be a number or a date"),
        (lambda: {"time": [datetime.min.replace(tzinfo=EAST)] * 600}, "before the year 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_values_that_are_no_rows_of_numbers(
    changed: Callable[[], dict[str, Any]], message: str
) -> None:
    given = {"probs": np.full((600, 4), 0.25), "target": np.arange(600) % 4}
    with pytest.raises(ValueError, match=message):
        sfumato.audit(**{**given, **changed()}, resamples=0)


ROOMLESS = b"{'descr': '|S0', 'fortran_order': False, 'shape': (100000,)}\n"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"(" * 60_000, "no header of numpy's format; write it with np.save"),
        (b"-" * 9000 + b"1\n", "no header of numpy's format"),
        (ROOMLESS, "save plain numbers or text"),
    ],
)
def test_headers_that_are_refused(header: bytes, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr("confidence.npy", start + header)
    with pytest.raises(ValueError, match=message):
        sfumato.audit(tmp_path / "p.npz")


@pytest.mark.parametrize("count", [2.0**62, 1e300])
def test_more_predictions_than_can_be_counted(count: float, tmp_path: Path) -> None:
    counts = np.full(15, count)
    np.savez(tmp_path / "p.npz", counts=counts, correct=counts / 2, confidence=counts / 2)
    with pytest.raises(ValueError, match="more than can be counted"):
        sfumato.audit(tmp_path / "p.npz", resamples=0)


def test_an_old_file_of_torch_is_refused(tmp_path: Path) -> None:
    torch.save({"probs": torch.ones(2, 2)}, tmp_path / "p.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"from before PyTorch 1\.6"):
        sfumato.audit(tmp_path / "p.pt")


def test_what_is_no_source(arrays: dict[str, np.ndarray]) -> None:
    frame = _frames(arrays)["pandas"]
    for source in (arrays["probs"], torch.from_numpy(arrays["probs"]), [[0.5, 0.5]]):
        with pytest.raises(TypeError, match="source must be a path or a frame"):
            sfumato.audit(source, label="truth")
    with pytest.raises(ValueError, match="leave target out"):
        sfumato.audit(frame, target=arrays["labels"])
    with pytest.raises(TypeError, match="probs must name a column"):
        sfumato.audit(frame, label="truth", probs=arrays["probs"])
    with pytest.raises(ValueError, match="has no column 'truthy'"):
        sfumato.audit(frame, label="truthy", probs=["cat", "dog", "eel"])
    with pytest.raises(ValueError, match="give one of probs, logits and confidence"):
        sfumato.audit(frame, label="truth", probs=["cat", "dog"], confidence="eel")
    with pytest.raises(ValueError, match="label names a column of source"):
        sfumato.audit(label="y", probs=arrays["probs"], target=arrays["labels"])


def test_messages_about_sources_name_arguments(
    arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of the command are of no use to who calls a function."""
    monkeypatch.chdir(tmp_path)
    probs, labels = arrays["probs"], arrays["labels"]
    np.save("probs.npy", probs)
    np.savez("unknown.npz", scores=np.log(probs), labels=labels)
    np.savez("pixels.npz", probs=probs[:, :, None, None], labels=labels[:, None, None] - 1)
    spelled = np.array(["cat", "dog", "eel"])[labels]
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("from label=; .* sfumato.predictions.expected_accuracy", lambda: "probs.npy"),
        ("expected_accuracy", lambda: {"probs": probs}),
        ("need logits=NAME", lambda: "unknown.npz"),
        ("or leave such rows out$", lambda: {"probs": probs, "labels": 3 * labels}),
        ("any_logits=True", lambda: {"logits": probs, "labels": labels}),
        (r"classes=\['cat', 'dog'\]", lambda: {"probs": probs, "labels": spelled}),
        ("leave images with void pixels out", lambda: "pixels.npz"),
    ]
    for expected, source in refused:
        with pytest.raises(ValueError, match=expected) as caught:
            sfumato.audit(source())
        assert "--" not in str(caught.value)


def test_before_and_after_a_calibrator(arrays: dict[str, np.ndarray]) -> None:
    probs, labels = arrays["probs"], arrays["labels"]
    calibrator = sfumato.audit(probs=probs[:300], target=labels[:300], resamples=0).calibrator
    expected = choose_calibrator(probs[:300], labels[:300])
    assert calibrator.to_dict() == expected.to_dict()
    found = sfumato.audit(
        probs=probs[300:], target=labels[300:], calibrator=calibrator, resamples=50, target_risk=0.2
    )
    assert found.calibrator is calibrator
    after = found.calibrated
    assert after is not None
    alone = sfumato.audit(
        probs=calibrator.predict_proba(probs=probs[300:]), target=labels[300:], resamples=0
    )
    assert {name: after.metrics[name] for name in alone.metrics} == pytest.approx(alone.metrics)
    assert after.metrics["nll"] < found.metrics["nll"] - 0.1
    assert [each["name"] for each in found.to_dict()["models"]] == ["model", "model, calibrated"]
    compared = found.to_dict()["comparisons"][0]["metrics"]["nll"]
    assert compared["high"] < 0
    assert not any("choose_calibrator" in each.command for each in next_steps(found._model))
    assert found.threshold is None or found.threshold.target_risk == 0.2
    assert found.sets is not None
    assert alone.threshold is None
    assert alone.calibrated is None


def test_confidences_before_and_after() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.beta(5, 1, 800)
    correct = rng.random(800) < confidence**3
    first = sfumato.audit(confidence=confidence, correct=correct, resamples=0)
    steps = next_steps(first._model)
    assert "choose_calibrator(confidence=held_out, correct=...)" in steps[0].command
    found = sfumato.audit(
        confidence=confidence, correct=correct, resamples=20, calibrator=first.calibrator
    )
    assert found.calibrated is not None
    assert found.calibrated.metrics["ece"] < found.metrics["ece"] / 3


def test_a_calibrator_of_something_else_is_refused(arrays: dict[str, np.ndarray]) -> None:
    probs, labels = arrays["probs"], arrays["labels"]
    of_two = choose_calibrator(probs[:, :2] / probs[:, :2].sum(1, keepdims=True), labels % 2)
    with pytest.raises(ValueError, match=r"must be \(N, 2\)"):
        sfumato.audit(probs=probs, target=labels, calibrator=of_two)
    of_confidence = choose_calibrator(confidence=probs.max(1), correct=probs.argmax(1) == labels)
    with pytest.raises(ValueError, match="give confidence="):
        sfumato.audit(probs=probs, target=labels, calibrator=of_confidence)
    swapped = choose_calibrator(probs, labels)
    swapped.report["class_names"] = ["dog", "cat", "eel"]
    with pytest.raises(ValueError, match="the calibrator is of the classes"):
        sfumato.audit(probs=probs, target=labels, classes=["cat", "dog", "eel"], calibrator=swapped)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_commands(
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    sfumato: Callable[..., Any],
    workers: str,
) -> None:
    frame = _frames(arrays)["pandas"]
    frame[:300].to_csv(tmp_path / "held out.csv", index=False)
    frame[300:].to_csv(tmp_path / "new.csv", index=False)
    columns = ("--columns", "label=truth probs=cat,dog,eel")
    done = sfumato("calibrate", "held out.csv", *columns, "--methods", "temperature,logistic")
    assert done.status == 0, done.stderr
    done = sfumato(
        *("audit", "new.csv", *columns, "--calibrator", "calibrator.json", "--resamples", "20"),
        *("--workers", workers),
    )
    assert done.status == 0, done.stderr
    assert "new, calibrated against new" in " ".join(done.stdout.split())
    done = sfumato("audit", "new.csv", "--columns", "truth")
    assert done.status != 0
    assert "write WHAT=NAME, such as label=truth" in " ".join(done.stderr.split())
    done = sfumato("audit", "new.csv", *columns, "--calibrator", "none.json")
    assert "--calibrator none.json: no such file" in " ".join(done.stderr.split())


def test_an_error_without_words_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was `can't be read ()`: what ends too soon raises an EOFError that says nothing."""

    def load(*_: Any, **__: Any) -> None:
        raise EOFError

    torch.save({"probs": torch.ones(2, 2)}, tmp_path / "p.pt")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(ValueError, match=r"p\.pt: can't be read \(EOFError\)"):
        sfumato.audit(tmp_path / "p.pt")
