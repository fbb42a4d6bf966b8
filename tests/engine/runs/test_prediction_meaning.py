"""What a column means whose name is used for two things."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import ConfidenceFile, PredictionFile, Reading, read_any, read_batches

PROBS = [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]


def _write(path: Path, kind: str, columns: dict[str, Sequence[Any]]) -> Path:
    path = path / f"a.{kind}"
    if kind == "npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), path)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = [json.dumps(row) for row in rows]
        if kind == "csv":
            cells = [
                [f'"{c}"' if isinstance(c, list) else str(c) for c in r.values()] for r in rows
            ]
            lines = [",".join(columns), *(",".join(row) for row in cells)]
        path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("name", ["y_pred", "predictions", "preds"])
def test_one_prediction_a_row_beside_a_confidence_is_a_class(
    tmp_path: Path, kind: str, name: str
) -> None:
    columns = {"y_true": [0, 1, 1], name: [0.0, 1.0, 0.0], "confidence": [0.9, 0.6, 0.7]}
    found = read_any(_write(tmp_path, kind, columns))
    assert isinstance(found, ConfidenceFile)
    assert found.correct.tolist() == [True, True, False]
    del columns["y_true"]
    told = read_any(_write(tmp_path, kind, columns), Reading(unlabelled=True))
    assert told.confidence.tolist() == pytest.approx([0.9, 0.6, 0.7])  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npz"])
def test_several_numbers_a_row_are_probabilities(tmp_path: Path, kind: str) -> None:
    columns = {"y_true": [0, 1, 1], "y_pred": PROBS, "confidence": [0.9, 0.6, 0.7]}
    found = read_any(_write(tmp_path, kind, columns))
    assert isinstance(found, PredictionFile)
    assert found.probabilities.tolist() == [pytest.approx(row) for row in PROBS]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("name", ["probability", "prob", "scores"])
def test_a_probability_beside_the_predicted_class(tmp_path: Path, kind: str, name: str) -> None:
    """That of class 1 where it fits what was predicted, else that of the predicted class."""
    columns = {"label": [0, 1, 1], "predicted": [0, 1, 0], name: [0.1, 0.6, 0.3]}
    found = read_any(_write(tmp_path, kind, columns))
    assert isinstance(found, PredictionFile)
    assert found.probabilities[:, 1].tolist() == pytest.approx([0.1, 0.6, 0.3])
    top = read_any(_write(tmp_path, kind, columns | {name: [0.9, 0.6, 0.7]}))
    assert isinstance(top, ConfidenceFile)
    assert top.confidence.tolist() == pytest.approx([0.9, 0.6, 0.7])
    assert top.correct.tolist() == [True, True, False]
    several = read_any(_write(tmp_path, kind, columns | {"predicted": [0, 2, 1]}))
    assert isinstance(several, ConfidenceFile)
    with pytest.raises(PredictionFileError, match=f"{name!r} fits 'predicted' neither as"):
        read_any(_write(tmp_path, kind, columns | {name: [0.9, 0.6, 0.3]}))


def test_names_of_two_classes_decide_as_their_numbers_do(tmp_path: Path) -> None:
    columns = {"label": ["no", "yes"], "predicted": ["no", "yes"], "prob": [0.1, 0.8]}
    path = _write(tmp_path, "csv", columns)
    assert isinstance(read_any(path, Reading(classes=("no", "yes"))), PredictionFile)
    assert isinstance(read_any(path), ConfidenceFile)


def test_a_probability_means_the_same_in_all_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.auditing.columns.BATCH", 1)
    columns = {"label": [0, 0], "predicted": [0, 0], "prob": [0.2, 0.8]}
    parts = read_batches(_write(tmp_path, "csv", columns))
    next(parts)
    with pytest.raises(PredictionFileError, match="call it 'confidence' if it is that"):
        next(parts)


def test_a_single_column_of_a_class(tmp_path: Path) -> None:
    for name in ("prob_1", "p_1", "prob_True"):
        found = read_any(_write(tmp_path, "csv", {"label": [0, 1], name: [0.1, 0.6]}))
        assert isinstance(found, PredictionFile)
        assert found.probabilities[:, 1].tolist() == pytest.approx([0.1, 0.6])
    with pytest.raises(PredictionFileError, match="C >= 2"):
        read_any(_write(tmp_path, "csv", {"label": [0, 1], "prob_cat": [0.1, 0.6]}))


def test_what_begins_like_a_class_is_none_beside_confidences(tmp_path: Path) -> None:
    columns = {"label": [0, 1], "predicted": [0, 1], "confidence": [0.9, 0.6], "p_value": [3, 4]}
    found = read_any(_write(tmp_path, "csv", columns))
    assert isinstance(found, ConfidenceFile)
    assert found.correct.tolist() == [True, True]
    both = {"prob_a": [0.9, 0.4], "prob_b": [0.1, 0.6]}
    assert isinstance(read_any(_write(tmp_path, "csv", columns | both)), PredictionFile)
    right = {"correct": [1, 0], "confidence": [0.9, 0.6], "prob": [0.1, 0.6]}
    assert isinstance(read_any(_write(tmp_path, "csv", right)), ConfidenceFile)
