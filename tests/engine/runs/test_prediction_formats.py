"""Formats in the dialects that people write, times of every kind, and numbers as they were."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sfumato.engine.runs.prediction_files import (
    PredictionFile,
    PredictionFileError,
    Reading,
    read_any,
    read_predictions,
)

TABLE = "label,prob_a,prob_b\na,0.9,0.1\nb,0.2,0.8\n"


def _text(path: Path, name: str, text: str) -> Path:
    (path / name).write_text(text)
    return path / name


@pytest.mark.parametrize("delimiter", [";", "\t", ", ", " ;"])
def test_fields_end_where_the_header_says(tmp_path: Path, delimiter: str) -> None:
    for start in ("", "\ufeff"):
        path = _text(tmp_path, "a.csv", start + TABLE.replace(",", delimiter))
        assert torch.equal(
            read_predictions(path).probabilities,
            torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64),
        )


def test_decimal_commas_are_refused(tmp_path: Path) -> None:
    text = TABLE.replace(",", ";").replace(".", ",")
    with pytest.raises(PredictionFileError, match=r"row 1: .*'0,9'; write .* decimal point"):
        read_any(_text(tmp_path, "a.csv", text))
    with pytest.raises(PredictionFileError, match="quote fields that hold semicolons"):
        read_any(_text(tmp_path, "a.csv", TABLE.replace(",", ";") + "a;1;0;0\n"))


def test_lists_in_a_column_of_a_csv(tmp_path: Path) -> None:
    text = 'label,probs\n0,"[0.9, 0.1]"\n1,"[0.2, 0.8]"\n'
    assert read_predictions(_text(tmp_path, "a.csv", text)).probabilities.tolist() == [
        pytest.approx([0.9, 0.1]),
        pytest.approx([0.2, 0.8]),
    ]
    with pytest.raises(PredictionFileError, match=r"'\[0.9 0.1\]'; write lists as JSON"):
        read_any(_text(tmp_path, "a.csv", "label,probs\n0,[0.9 0.1]\n"))


def test_a_list_with_text_in_it_is_a_bad_row(tmp_path: Path) -> None:
    probs: list[Any] = [[0.9, 0.1], [0.2, "x"], [0.2, None], [0.2, [0.8]], [0.2, 0.8]]
    lines = [json.dumps({"label": 0, "probs": each}) for each in probs]
    path = _text(tmp_path, "a.jsonl", "\n".join(lines))
    with pytest.raises(PredictionFileError, match=r"row 2: 'probs' holds what is no number"):
        read_any(path)
    skipped: Counter[str] = Counter()
    assert len(read_any(path, Reading(on_bad_row="skip"), skipped)) == 2
    assert skipped == Counter({"no number in 'probs'": 2, "NaN": 1})


@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_lists_of_every_size_in_parquet(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = arrow.array([[0.9, 0.1], [0.2, 0.8]], getattr(arrow, kind)(arrow.float64()))
    parquet.write_table(arrow.table({"label": [0, 1], "probs": column}), tmp_path / "a.parquet")
    assert read_predictions(tmp_path / "a.parquet").labels.tolist() == [0, 1]


def test_a_broken_parquet_file_is_one_message(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from sfumato.engine.runs.prediction_formats import open_parquet

    with pytest.raises(PredictionFileError, match=r"a\.parquet: can't be read"):
        open_parquet(_text(tmp_path, "a.parquet", "no"))


def test_safetensors_keep_double_precision(tmp_path: Path) -> None:
    logits = torch.tensor([[1e6 + 0.1, 1e6]], dtype=torch.float64)
    save_file({"logits": logits, "labels": torch.tensor([0])}, tmp_path / "a.safetensors")
    found = read_predictions(tmp_path / "a.safetensors")
    assert found.logits is not None
    assert torch.equal(found.logits, logits)


@pytest.mark.parametrize("dtype", [">f8", np.longdouble, np.float16])
def test_floats_of_every_kind(tmp_path: Path, dtype: Any) -> None:
    np.savez(tmp_path / "a.npz", probs=np.eye(2, dtype=dtype), labels=[0, 1])
    assert read_predictions(tmp_path / "a.npz").probabilities.tolist() == [[1, 0], [0, 1]]
    np.savez(tmp_path / "b.npz", confidence=np.ones(1, dtype=dtype), correct=[True])
    assert len(read_any(tmp_path / "b.npz")) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("total", [0.999, 1.001])
def test_sums_at_the_tolerance_are_fine(tmp_path: Path, dtype: Any, total: float) -> None:
    """Three decimals of three classes; the metrics, which are as strict, take them too."""
    from sfumato.engine.evaluation.audit import audit

    rng = np.random.default_rng(0)
    first = np.round(rng.uniform(0.1, 0.4, (400, 2)), 3)
    probs = np.column_stack([first, np.round(total - first.sum(1), 3)]).astype(dtype)
    np.savez(tmp_path / "a.npz", probs=probs, labels=rng.integers(0, 3, 400))
    found = read_predictions(tmp_path / "a.npz")
    assert found.probs is not None
    assert float((found.probs - torch.from_numpy(probs)).abs().max()) < 1e-3
    audit([found], resamples=2)
    np.savez(tmp_path / "a.npz", probs=probs * 1.0021 ** np.sign(total - 1), labels=[0] * 400)
    with pytest.raises(PredictionFileError, match="not to 1"):
        read_predictions(tmp_path / "a.npz")


def test_probabilities_that_were_kept_in_bfloat16(tmp_path: Path) -> None:
    probs = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    kept, labels = probs.bfloat16(), probs.argmax(1)
    save_file({"probs": kept, "labels": labels}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", probs=kept.float().numpy(), labels=labels)
    for name in ("a.safetensors", "a.npz"):
        found = read_predictions(tmp_path / name)
        assert float((found.probabilities - probs).abs().max()) < 2**-8
        assert float((found.probabilities.sum(1) - 1).abs().max()) <= 1e-3
    np.savez(tmp_path / "a.npz", probs=1.01 * probs, labels=labels)
    with pytest.raises(PredictionFileError, match="not to 1"):
        read_predictions(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["1", "nan", "inf", "", "5"], [1, 5]),
        (["2026-01-01", "", "nan", "noon", "2026-01-02T02:00:00+02:00"], [0, 86400]),
        (["", "2026-01-01T00:00:00Z", "2026-01-01 12", "x", "NaT"], [0, 43200]),
        ([None, 1.5, "x", None, 7], [1.5, 7]),
    ],
)
def test_a_row_without_a_time_is_bad(tmp_path: Path, times: list[Any], expected: list[int]) -> None:
    lines = [json.dumps({"correct": 1, "confidence": 0.9, "time": each}) for each in times]
    paths = [_text(tmp_path, "a.jsonl", "\n".join(lines))]
    if None not in times:
        text = "correct,confidence,time\n" + "".join(f"1,0.9,{each}\n" for each in times)
        paths.append(_text(tmp_path, "a.csv", text))
    for path in paths:
        with pytest.raises(PredictionFileError, match=r"row \d: .*; mend the row"):
            read_any(path)
        found = read_any(path, Reading(on_bad_row="skip"))
        assert found.times is not None
        first = 1767225600 if found.is_dated else 0
        assert (found.times - first).tolist() == expected


@pytest.mark.parametrize(
    "times",
    [
        np.array([1.0, np.nan, 3.0]),
        np.array([1.0, np.inf, 3.0]),
        np.array(["2026-01-01", "NaT", "2026-01-03"], dtype="datetime64[D]"),
    ],
)
def test_times_of_arrays_must_be_known(tmp_path: Path, times: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", probs=np.eye(2)[[0, 1, 0]], labels=[0, 1, 0], time=times)
    with pytest.raises(PredictionFileError, match="row 1: 'time' must be a number or a date"):
        read_any(tmp_path / "a.npz")
    found = read_any(tmp_path / "a.npz", Reading(on_bad_row="skip"))
    assert isinstance(found, PredictionFile)
    assert found.labels.tolist() == [0, 0]
