"""Labels and predicted classes: however they are written, and never where they are missing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.auditing.columns import PredictionFileError, same_classes, spelled
from sfumato.auditing.files import ConfidenceFile, PredictionFile, Reading, read_any

ROWS = [("cat", "cat", 0.9), ("", "cat", 0.8), ("dog", "", 0.6), ("", "", 0.5), ("dog", "dog", 0.8)]


def _text(path: Path, name: str, text: str) -> Path:
    (path / name).write_text(text)
    return path / name


def _missing(path: Path, kind: str) -> Path:
    """Two whole rows among five."""
    if kind == "csv":
        lines = [",".join(map(str, row)) for row in ROWS]
        return _text(path, "a.csv", "true_label,pred_label,confidence\n" + "\n".join(lines))
    keys = ("label", "predicted", "confidence")
    rows = [{k: v for k, v in zip(keys, row, strict=True) if v != ""} for row in ROWS]
    if kind == "jsonl":
        return _text(path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
    if kind == "numbers.parquet":
        codes = {"cat": 0, "dog": 1, None: None}
        columns |= {key: [codes[name] for name in columns[key]] for key in keys[:2]}
    if kind == "npz":
        numbers = {"cat": 0.0, "dog": 1.0, None: np.nan}
        columns |= {key: [numbers[name] for name in columns[key]] for key in keys[:2]}
        np.savez(path / "a.npz", **columns)
        return path / "a.npz"
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path / "a.parquet")
    return path / "a.parquet"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "numbers.parquet", "npz"])
def test_a_confidence_without_label_or_prediction_is_a_bad_row(tmp_path: Path, kind: str) -> None:
    path = _missing(tmp_path, kind)
    with pytest.raises(PredictionFileError, match=r"row [12]: '(true_)?label' is missing; correct"):
        read_any(path)
    skipped: Counter[str] = Counter()
    found = read_any(path, Reading(on_bad_row="skip"), skipped)
    assert isinstance(found, ConfidenceFile)
    assert found.correct.tolist() == [True, True]
    assert skipped == Counter({"missing label": 3})
    assert found.truth == (
        ["cat", "dog"] if "numbers" not in kind and kind != "npz" else ["0", "1"]
    )
    assert found.classes == found.truth


def test_blanks_around_text_mean_nothing(tmp_path: Path) -> None:
    text = 'true_label, pred_label, confidence, group\ncat, cat , 0.9, a\ndog , "dog", 0.8,a \n'
    found = read_any(_text(tmp_path, "a.csv", text))
    assert isinstance(found, ConfidenceFile)
    assert found.correct.tolist() == [True, True]
    assert found.classes == ["cat", "dog"]
    assert found.groups == ["a", "a"]
    text = "label, prob_cat , prob_dog\ncat ,0.9, 0.1\n1 , 0.2,0.8\n"
    whole = read_any(_text(tmp_path, "a.csv", text))
    assert isinstance(whole, PredictionFile)
    assert whole.classes == ["cat", "dog"]
    assert whole.labels.tolist() == [0, 1]
    np.savez(
        tmp_path / "a.npz", label=["cat ", "dog"], predicted=["cat", " dog"], confidence=[0.9, 0.8]
    )
    assert read_any(tmp_path / "a.npz").correct.tolist() == [True, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([9007199254740993, 1], [9007199254740992, 1], [False, True]),
        (["9007199254740993", "1"], ["9007199254740992", "1.0"], [False, True]),
        (["01", "1e3"], ["1", "1000"], [True, True]),
        (["01", "x"], ["1", "x"], [False, True]),
        ([True, False], ["1", "true"], [True, False]),
        ([1.0, 2.0], ["1", "3"], [True, False]),
    ],
)
def test_names_are_the_same_as_numbers_only_where_all_are(
    first: list[Any], second: list[Any], expected: list[bool]
) -> None:
    for theirs in (np.array(second), np.array(second, dtype=object)):
        assert same_classes(np.array(first), theirs).tolist() == expected


def test_a_whole_number_has_one_spelling() -> None:
    codes, names = spelled(np.array(["1.0", "1", " 2 ", "2.5"], dtype=object))
    assert [names[code] for code in codes] == ["1", "1", "2", "2.5"]
    assert spelled(np.array([b"cat", b"dog"]))[1] == ["cat", "dog"]


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv", "jsonl"])
def test_true_and_false_are_two_classes(tmp_path: Path, kind: str) -> None:
    labels, probs = [True, False, True], [0.9, 0.2, 0.4]
    path = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez(path, labels=labels, probs=probs)
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table({"label": labels, "prob": probs}), path)
    else:
        rows = list(zip(labels, probs, strict=True))
        lines = [f"{a},{b}" for a, b in rows]
        if kind == "jsonl":
            lines = [json.dumps({"label": a, "prob": b}) for a, b in rows]
        path.write_text("\n".join((["label,prob"] if kind == "csv" else []) + lines))
    found = read_any(path)
    assert isinstance(found, PredictionFile)
    assert found.labels.tolist() == [1, 0, 1]
    three = tmp_path / "three.csv"
    three.write_text("label,prob_a,prob_b,prob_c\nTrue,1,0,0\n")
    with pytest.raises(PredictionFileError, match="label 'True' is neither"):
        read_any(three)


@pytest.mark.parametrize("label", ["1.0", "1", "1."])
def test_whole_numbers_may_have_a_fraction_of_zeros(tmp_path: Path, label: str) -> None:
    found = read_any(_text(tmp_path, "a.csv", f"label,prob_a,prob_b\n{label},0.9,0.1\n"))
    assert found.labels.tolist() == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("label", ["²", "1.5", "-1", "99999999999999999999"])
def test_what_is_no_class_number(tmp_path: Path, label: str) -> None:
    path = _text(tmp_path, "a.csv", f"label,prob_a,prob_b\n{label},0.9,0.1\n")
    with pytest.raises(PredictionFileError, match=r"row 1: label .* is (neither|outside)"):
        read_any(path)


def test_a_column_is_there_once(tmp_path: Path) -> None:
    """It took the first of two columns of labels."""
    with pytest.raises(PredictionFileError, match="several columns 'label'"):
        read_any(_text(tmp_path, "a.csv", "label,label,prob_a,prob_b\n0,1,0.9,0.1\n"))


def test_class_names_are_told_apart(tmp_path: Path) -> None:
    path = _text(tmp_path, "a.csv", "label,prob_cat,prob_cat\n0,0.9,0.1\n")
    with pytest.raises(PredictionFileError, match="'cat' names several classes"):
        read_any(path)
    confidence = _text(tmp_path, "b.csv", "label,predicted,confidence\n0,0,0.9\n")
    with pytest.raises(PredictionFileError, match="'a' names several classes"):
        read_any(confidence, Reading(classes=("a", "a")))


@pytest.mark.parametrize(
    ("rows", "bad"),
    [
        ("label,prob_a,prob_b\n-1,nan,0.5\n0,0.6,0.4\n1,0.3,0.7\n", "1,nan,0.7\n"),
        ("label,predicted,confidence\n-1,0,nan\n0,0,0.6\n1,1,0.7\n", "1,0,nan\n"),
    ],
)
def test_rows_with_the_ignored_label_are_left_out_and_counted(
    tmp_path: Path, rows: str, bad: str
) -> None:
    """Whatever else they hold; other bad rows are bad."""
    skipped: Counter[str] = Counter()
    found = read_any(_text(tmp_path, "a.csv", rows), Reading(ignore_index=-1), skipped)
    assert found.rows is not None
    assert found.rows.tolist() == [2, 3]
    assert skipped == Counter({"with the label of --ignore-index": 1})
    skipped.clear()
    path = _text(tmp_path, "a.csv", rows + bad)
    assert len(read_any(path, Reading(ignore_index=-1, on_bad_row="skip"), skipped)) == 2
    assert skipped.total() == 2
    with pytest.raises(PredictionFileError, match="row 4: "):
        read_any(path, Reading(ignore_index=-1))


def test_class_names_are_told_of_confidences(tmp_path: Path) -> None:
    path = _text(tmp_path, "a.csv", "label,predicted,confidence\n0,cat,0.9\n1,0,0.8\n")
    found = read_any(path, Reading(classes=("cat", "dog")))
    assert isinstance(found, ConfidenceFile)
    assert found.correct.tolist() == [True, False]
    assert (found.truth, found.classes) == (["cat", "dog"], ["cat"])
    with pytest.raises(PredictionFileError, match=r"row 2: label 1 is outside \[0, 1\)"):
        read_any(path, Reading(classes=("cat",)))


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading(kind="logits"), "leave --kind out"),
        (Reading(classes=("a", "b")), "nothing says which class was predicted.*leave --classes"),
        (Reading(ignore_index=0), "no labels that could be ignored; leave --ignore-index out"),
        (Reading(labels=Path("a.npy")), "--labels goes with arrays, and this is a table"),
    ],
)
def test_what_has_no_use_is_refused(tmp_path: Path, reading: Reading, message: str) -> None:
    path = _text(tmp_path, "a.csv", "correct,confidence\n1,0.9\n")
    with pytest.raises(PredictionFileError, match=message):
        read_any(path, reading)


def test_labels_of_their_own_are_no_class_names(tmp_path: Path) -> None:
    """A file that names its classes may still take its labels from another one."""
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    np.savez(tmp_path / "a.npz", probs=np.eye(2), classes=["cat", "dog"])
    found = read_any(tmp_path / "a.npz", Reading(labels=tmp_path / "y.npy"))
    assert isinstance(found, PredictionFile)
    assert torch.equal(found.labels, torch.tensor([0, 1]))
    np.savez(tmp_path / "b.npz", probs=np.eye(2), y_true=[0, 1])
    with pytest.raises(PredictionFileError, match="holds labels itself; leave --labels out"):
        read_any(tmp_path / "b.npz", Reading(labels=tmp_path / "y.npy"))
