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

from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import PredictionFile, Reading, read_any, read_predictions

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


def test_a_csv_may_have_many_classes(tmp_path: Path) -> None:
    """A header above 131,072 characters was refused as a single field."""
    count = 15_000
    header = ",".join(["label", *(f"prob_{place}" for place in range(count))])
    path = _text(tmp_path, "a.csv", f"{header}\n0,1{',0' * (count - 1)}\n")
    assert read_predictions(path).probabilities.shape == (1, count)


def test_delimiters_in_quotes_divide_nothing(tmp_path: Path) -> None:
    path = _text(tmp_path, "a.csv", 'label;"prob_a,b,c,d";prob_e\ne;0.5;0.5\n')
    assert read_predictions(path).classes == ["a,b,c,d", "e"]


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
    from sfumato.auditing.columns import open_parquet

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
    from sfumato.auditing.judge import audit

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
        with pytest.raises(PredictionFileError, match=r"row \d: .*; correct the row"):
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


def test_arrays_with_the_ending_of_another_format(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, probs=np.eye(2), labels=np.arange(2))
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.eye(2))
    np.save(tmp_path / "labels.npy", np.arange(2))
    with pytest.raises(PredictionFileError, match=r"several arrays, an \.npz; rename it"):
        read_predictions(tmp_path / "a.npy", Reading(labels=tmp_path / "labels.npy"))
    with pytest.raises(PredictionFileError, match=r"one array, an \.npy; rename it|can't be read"):
        read_predictions(tmp_path / "a.npz")


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = _text(tmp_path, "a.jsonl", '{"label": ' + "[" * 100_000 + "\n")
    with pytest.raises(PredictionFileError, match=r"line 1: not valid JSON"):
        read_predictions(path)


@pytest.mark.parametrize("column", ["probs", "group", "confidence"])
def test_parquet_bombs_are_refused(tmp_path: Path, column: str) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    places = arrow.array(np.zeros(3000, np.int32))
    words = arrow.DictionaryArray.from_arrays(places, arrow.array(["word " * 2**20]))
    ends = arrow.array(np.arange(4001, dtype=np.int32) * 3000)
    lists = arrow.ListArray.from_arrays(ends, arrow.array(np.zeros(12_000_000, np.float32)))
    tables = {
        "probs": {"probs": lists, "label": arrow.array(np.zeros(4000, np.int64))},
        # One value for all rows, which took 175 times their bytes to calibrate.
        "confidence": {
            "confidence": arrow.array(np.full(2**24, 0.5, np.float32)),
            "correct": arrow.array(np.zeros(2**24, bool)),
        },
        "group": {"confidence": [0.5] * 3000, "correct": [True] * 3000, "group": words},
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table(tables[column]), path, compression="zstd")
    with pytest.raises(PredictionFileError, match=r"which is refused"):
        read_predictions(path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_line_without_end_is_refused(tmp_path: Path, name: str) -> None:
    """A file of 3 GB that takes no room on the disk took twice as much memory."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(PredictionFileError, match="a line has more than 67,108,864 characters"):
        read_predictions(path)
