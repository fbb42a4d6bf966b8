"""Files as people have them: other names, other formats, names for classes, bad rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import (
    ConfidenceFile,
    PredictionFile,
    Reading,
    read_any,
    read_batches,
    read_predictions,
)

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
LABELS = np.array([0, 1, 1])
TOP = "true_label,pred_label,confidence\ncat,cat,0.7\ndog,dog,0.8\ndog,owl,0.4\n"


def _npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz"


def _text(path: Path, name: str, text: str) -> Path:
    (path / name).write_text(text)
    return path / name


def _parquet(path: Path, columns: dict[str, Any], **more: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path / "a.parquet", **more)
    return path / "a.parquet"


def _json_lines(path: Path) -> Path:
    rows = [{"label": int(y), "probs": p.tolist()} for y, p in zip(LABELS, PROBS, strict=True)]
    return _text(path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


WHOLE: dict[str, Callable[[Path], Path]] = {
    "predictions": lambda p: _npz(p, predictions=PROBS, ground_truth=LABELS),
    "y_prob": lambda p: _npz(p, y_prob=PROBS.astype(np.float16), y_true=LABELS.astype(np.uint8)),
    "upper case": lambda p: _npz(p, Probs=PROBS, Labels=LABELS),
    "names": lambda p: _npz(
        p, probs=PROBS, labels=np.array(["a", "b", "b"]), classes=np.array(["a", "b", "c"])
    ),
    "csv with numbered columns": lambda p: _text(
        p, "a.csv", "0,1,2,label\n.7,.2,.1,0\n.1,.8,.1,1\n.3,.3,.4,1\n"
    ),
    "json lines": _json_lines,
    "parquet columns": lambda p: _parquet(
        p,
        {"label": ["x", "y", "y"], **{f"prob_{c}": PROBS[:, i] for i, c in enumerate("xyz")}},
        row_group_size=2,
    ),
    "parquet lists": lambda p: _parquet(p, {"label": LABELS, "probs": PROBS.tolist()}),
}


@pytest.mark.parametrize("layout", WHOLE)
def test_layouts_of_distributions(layout: str, tmp_path: Path) -> None:
    found = read_any(WHOLE[layout](tmp_path))
    assert isinstance(found, PredictionFile)
    assert found.probs is not None
    assert torch.allclose(found.probs.double(), torch.from_numpy(PROBS), atol=1e-3)
    assert found.labels.tolist() == LABELS.tolist()


TOP_ONLY: dict[str, Callable[[Path], Path]] = {
    "csv": lambda p: _text(p, "a.csv", TOP),
    "numbers": lambda p: _npz(
        p, confidence=[0.7, 0.8, 0.4], predicted=np.array([0.0, 1.0, 2.0]), label=LABELS
    ),
    "parquet": lambda p: _parquet(
        p, {"confidence": [0.7, 0.8, 0.4], "correct": [True, True, False]}
    ),
    "json": lambda p: _text(
        p,
        "a.jsonl",
        '{"score": 0.7, "correct": 1}\n{"score": 0.8, "correct": 1}\n{"score": 0.4, "correct": 0}',
    ),
}


@pytest.mark.parametrize("layout", TOP_ONLY)
def test_layouts_of_confidences(layout: str, tmp_path: Path) -> None:
    path = TOP_ONLY[layout](tmp_path)
    found = read_any(path)
    assert isinstance(found, ConfidenceFile)
    assert found.confidence.tolist() == pytest.approx([0.7, 0.8, 0.4])
    assert found.correct.tolist() == [True, True, False]
    with pytest.raises(PredictionFileError, match="confidence of one class only"):
        read_predictions(path)


def test_a_pair_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", PROBS)
    np.save(tmp_path / "y.npy", LABELS.astype(np.uint16))
    reading = Reading(labels=tmp_path / "y.npy")
    assert read_predictions(tmp_path / "p.npy", reading).labels.tolist() == LABELS.tolist()
    with pytest.raises(PredictionFileError, match="takes its labels from --labels"):
        read_predictions(tmp_path / "p.npy")
    with pytest.raises(PredictionFileError, match=r"none\.npy: no such file"):
        read_predictions(tmp_path / "p.npy", Reading(labels=tmp_path / "none.npy"))


@pytest.mark.parametrize("name", ["a.csv", "a.npz"])
def test_two_classes_as_one_column(tmp_path: Path, name: str) -> None:
    text = "label,prob\n1,0.9\n0,0.2\n"
    path = (
        _text(tmp_path, name, text)
        if name == "a.csv"
        else _npz(tmp_path, probs=np.array([0.9, 0.2]), labels=np.array([1, 0]))
    )
    assert read_predictions(path).probabilities.tolist() == [
        pytest.approx([0.1, 0.9]),
        pytest.approx([0.8, 0.2]),
    ]


def test_what_scores_are_is_told_and_never_guessed(tmp_path: Path) -> None:
    path = _npz(tmp_path, predictions=np.log(PROBS), labels=LABELS)
    with pytest.raises(PredictionFileError, match=r"row 0: .* negative .* need --kind logits"):
        read_predictions(path)
    told = read_predictions(path, Reading(kind="logits"))
    assert told.logits is not None
    assert torch.allclose(told.probabilities, torch.from_numpy(PROBS))
    with pytest.raises(PredictionFileError, match="'probs' are no logits; leave --kind out"):
        read_predictions(_npz(tmp_path, probs=PROBS, labels=LABELS), Reading(kind="logits"))


BAD = """label,prob_a,prob_b,time
a,0.9,0.1,1
c,0.9,0.1,2
b,nan,0.1,3
b,-0.1,1.1,4
b,0.5,0.6,5
b,x,0.5,6
b,0.2,0.8,7
"""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (2, r"row 1: label 'c' is neither"),
        (3, r"row 1: 'prob_a' holds NaN; .*--on-bad-row skip"),
        (4, r"row 1: 'prob_a' is negative \(-0.1\)"),
        (5, r"row 1: 'prob_a' sums to 1.1, not to 1"),
        (6, r"row 1: column 'prob_a' holds no numbers: 'x'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: int, message: str) -> None:
    lines = BAD.splitlines()
    path = _text(tmp_path, "a.csv", f"{lines[0]}\n{lines[row]}\n")
    with pytest.raises(PredictionFileError, match=message):
        read_any(path)


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    skipped: Counter[str] = Counter()
    path = _text(tmp_path, "a.csv", BAD)
    found = read_any(path, Reading(on_bad_row="skip"), skipped)
    assert isinstance(found, PredictionFile)
    assert found.labels.tolist() == [0, 1]
    assert found.rows is not None
    assert found.rows.tolist() == [1, 7]
    assert found.times is not None
    assert found.times.tolist() == [1, 7]
    assert skipped.total() == 5
    (tmp_path / "a.csv").write_text("\n".join(BAD.splitlines()[:1] + BAD.splitlines()[2:4]))
    with pytest.raises(PredictionFileError, match="no prediction; 2 rows were left out"):
        read_any(path, Reading(on_bad_row="skip"))


@pytest.mark.parametrize(
    ("name", "text", "reasons"),
    [
        (
            "a.csv",
            "label,prob_a,prob_b\na,1,0\n\nb,0\n,1,0\nowl,1,0\nb,,1\nb,0,1,9\nb,0,1\n\n",
            (
                *("too few fields", "missing label", "unknown label"),
                *("no number in 'prob_a'", "too many fields"),
            ),
        ),
        (
            "a.csv",
            "correct,confidence\n1,0.5\n1\n,0.5\n0,\n0,0.9\n",
            ("too few fields", "'correct' neither true nor false", "no number in 'confidence'"),
        ),
        (
            "a.jsonl",
            '{"label": 0,\n{"label": 0, "probs": [1, 0]}\n\n[1]\n{"probs": [1, 0]}\n'
            '{"label": 1, "probs": [0, 1]}\n',
            ("not valid JSON", "no object", "missing label"),
        ),
    ],
)
def test_broken_lines_are_bad_rows(
    tmp_path: Path, name: str, text: str, reasons: tuple[str, ...]
) -> None:
    """Each is counted once, by its own reason; a line that is no row has no label to be unknown."""
    skipped: Counter[str] = Counter()
    found = read_any(_text(tmp_path, name, text), Reading(on_bad_row="skip"), skipped)
    assert len(found) == 2
    assert skipped == Counter(reasons)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "true_label,confidence\n1,0.5\n", "'confidence' with 'predicted' or 'correct'"),
        ("a.csv", "prob_a,prob_b\n1,0\n", "no labels, sfumato audit --unlabelled"),
        ("a.csv", "correct,confidence\nmaybe,0.5\n", "must be true or false"),
        ("a.csv", "correct,confidence\n1,93\n", "row 1: 'confidence' is 93.*divided by 100"),
        ("a.csv", "label,prob_a\n0,1\n", "C >= 2"),
        ("a.csv", "label,prob_a,prob_b\n", "holds no prediction"),
        ("a.csv", "label,prob_a,prob_b,time\na,1,0,noon\n", "a date such as"),
        ("a.csv", "label,prob_a,prob_b\n,1,0\n", "row 1: 'label' is missing"),
        ("a.jsonl", "", "needs a column 'label'"),
        ("a.jsonl", "[1]\n", "line 1: an object with names is needed"),
        ("a.jsonl", '{"label": 0, "probs": [1, 0]}\n{"label": 0\n', "line 2: not valid JSON"),
        (
            "a.jsonl",
            '{"label": 0, "probs": [0.5, 0.5]}\n' * 2 + '{"label": 0, "probs": [1]}\n',
            "row 3: 'probs' has 1 numbers where other rows have 2",
        ),
    ],
)
def test_wrong_text_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(PredictionFileError, match=message):
        read_any(_text(tmp_path, name, text))


def test_rows_of_other_sizes_are_left_out(tmp_path: Path) -> None:
    """One row of each kind: what is no row doesn't decide how many classes there are."""
    text = '{"label": 0, "probs": [0.5, 0.5]}\n{"label": 0, "probs": [0.5, 0.2, 0.3]}\nno row\n'
    skipped: Counter[str] = Counter()
    found = read_any(_text(tmp_path, "a.jsonl", text), Reading(on_bad_row="skip"), skipped)
    assert len(found) == 1
    assert skipped == Counter({"mixed sizes": 1, "not valid JSON": 1})


def test_label_maps_and_void(tmp_path: Path) -> None:
    logits = np.zeros((2, 3, 4, 4), np.float32)
    labels = np.full((2, 4, 4), 255)
    labels[:, 0] = 1
    path = _npz(tmp_path, logits=logits, labels=labels)
    with pytest.raises(PredictionFileError, match=r"row 0: label 255 .*--ignore-index"):
        read_any(path)
    found = read_any(path, Reading(ignore_index=255))
    assert isinstance(found, PredictionFile)
    assert found.void == 255


def test_batches_are_numbered_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.auditing.columns.BATCH", 2)
    path = _text(tmp_path, "a.csv", TOP + "dog,owl,7\n")
    parts = read_batches(path)
    assert len(next(parts)) == 2
    with pytest.raises(PredictionFileError, match="row 4: 'confidence' is 7"):
        list(parts)


REAL = {
    "wideresnet-cifar10.npz": (0.9109, 0.0537),
    "densenet-cifar100.npz": (0.7541, 0.1422),
    "20news-probs.npy": (0.9234, 0.2011),
    "imdb-probs.npy": (0.8958, 0.0404),
    "imagenet-resnet101.csv": (None, 0.0492),
    "imagenet-efficientnet-b3a.csv": (None, 0.1238),
    "birds-resnet50.csv": (0.7314, 0.0235),
    "coco-faster-rcnn.npz": (None, 0.1905),
}


@pytest.mark.parametrize("name", REAL)
def test_published_files_as_they_are(real_data: Callable[[str], Path], name: str) -> None:
    """Accuracy and ECE that others computed of the same files; that of boxes is with 20 bins."""
    from sfumato.auditing.judge import detection_errors
    from sfumato.auditing.totals import Tallies, outcomes

    path = real_data(f"predictions/{name}")
    labels = path.with_name(name.replace("probs", "labels")) if path.suffix == ".npy" else None
    tallies = Tallies()
    for part in read_batches(path, Reading(labels=labels)):
        tallies.add(part)
    accuracy, error = REAL[name]
    found = tallies.measure()
    assert found["ece"] == pytest.approx(error, abs=6e-4 if "coco" in name else 6e-5)
    if "coco" in name:
        file = read_any(path)
        boxes = detection_errors(file, outcomes(file), 100)
        assert boxes["d_ece"] == pytest.approx(error, abs=6e-5)
        for key in ("d_ece", "d_ece_by_place"):
            low, high = boxes[f"{key}_interval"]
            assert 0 < low < boxes[key] < high
    assert accuracy is None or found["accuracy"] == pytest.approx(accuracy, abs=6e-5)
