"""Files of detections: boxes in every format, and each bad one by its row."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import ConfidenceFile, Reading, read_any

GOOD = [0.1, 0.1, 0.3, 0.4]


def _rows(*boxes: Any) -> list[dict[str, Any]]:
    return [{"score": 0.9, "matched": 1, "box": box, "image": "a"} for box in boxes]


def _write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"d.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_lists_are_boxes(tmp_path: Path, kind: str) -> None:
    found = read_any(_write(tmp_path, kind, _rows(GOOD, [0, 0, 1, 1])))
    assert isinstance(found, ConfidenceFile)
    assert found.boxes is not None
    assert found.boxes.tolist() == [GOOD, [0, 0, 1, 1]]
    assert found.images == ["a", "a"]


@pytest.mark.parametrize(
    ("box", "message", "reason"),
    [
        (
            [0.1, 0.1, 30, 40],
            "row 2: 'box' is [0.1, 0.1, 30, 40], not in [0, 1]: divide",
            "outside",
        ),
        ([0.5, 0.1, 0.3, 0.4], "row 2: 'box' is [0.5, 0.1, 0.3, 0.4]: give x1 y1 x2 y2", "order"),
        ([0.1, 0.1, float("nan"), 0.4], "row 2: 'box' is [0.1, 0.1, nan, 0.4], not in", "outside"),
        ([0.1, 0.1, 0.3], "row 2: 'box' has 3 numbers where other rows have 4", "sizes"),
    ],
)
def test_a_bad_box_is_named_or_skipped(
    tmp_path: Path, box: list[float], message: str, reason: str
) -> None:
    path = _write(tmp_path, "parquet", _rows(GOOD, box, GOOD))
    with pytest.raises(PredictionFileError) as caught:
        read_any(path)
    assert message in str(caught.value)
    skipped: Counter[str] = Counter()
    assert len(read_any(path, Reading(on_bad_row="skip"), skipped)) == 2
    assert any(reason in each for each in skipped)
