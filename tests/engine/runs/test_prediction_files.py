"""Files of predictions: every layout reads the same, and broken or hostile ones are refused."""

from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from sfumato.auditing.columns import PredictionFileError, _listing, spelled
from sfumato.auditing.files import read_any, read_predictions

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
LABELS = np.array([0, 1, 1])
CSV = """label,prob_cat,prob_dog,prob_owl,group,index
cat,0.7,0.2,0.1,day,5
dog,0.1,0.8,0.1,night,3
1,0.3,0.3,0.4,day,4
"""


def _assert_read(path: Path) -> None:
    found = read_predictions(path)
    assert found.probs is not None
    assert torch.allclose(found.probs.double(), torch.from_numpy(PROBS), atol=1e-6)
    assert found.labels.tolist() == LABELS.tolist()


def test_npz(tmp_path: Path) -> None:
    groups = np.array(["day", "night", "day"])
    np.savez(tmp_path / "a.npz", probs=PROBS, labels=LABELS, group=groups, index=[5, 3, 4])
    _assert_read(tmp_path / "a.npz")
    found = read_predictions(tmp_path / "a.npz")
    assert found.groups == ["day", "night", "day"]
    assert found.index is not None
    assert found.index.tolist() == [5, 3, 4]


def test_safetensors(tmp_path: Path) -> None:
    tensors = {"probs": torch.from_numpy(PROBS), "labels": torch.from_numpy(LABELS)}
    save_file(tensors, tmp_path / "a.safetensors")
    _assert_read(tmp_path / "a.safetensors")


def test_csv_with_names_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    _assert_read(tmp_path / "a.csv")
    found = read_predictions(tmp_path / "a.csv")
    assert found.classes == ["cat", "dog", "owl"]
    assert found.groups == ["day", "night", "day"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {f"prob_{name}": PROBS[:, i] for i, name in enumerate(("cat", "dog", "owl"))}
    parquet.write_table(pyarrow.table({"label": LABELS, **columns}), tmp_path / "a.parquet")
    _assert_read(tmp_path / "a.parquet")


def test_probabilities_are_as_saved_or_the_softmax(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=np.array([[1.0, 0.0]]), labels=np.array([0]))
    np.savez(tmp_path / "b.npz", logits=np.array([[0.0, 0.0]]), labels=np.array([0]))
    assert read_predictions(tmp_path / "a.npz").probabilities.tolist() == [[1.0, 0.0]]
    assert read_predictions(tmp_path / "b.npz").probabilities.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"probs": PROBS}, "needs 'labels' and exactly one of 'logits' and 'probs'"),
        ({"probs": PROBS, "logits": PROBS, "labels": LABELS}, "exactly one of"),
        ({"probs": PROBS[:, :1], "labels": LABELS}, r"C >= 2, got float64 \(3, 1\)"),
        ({"probs": PROBS, "labels": LABELS[:2]}, "2 labels for 3 predictions"),
        ({"probs": PROBS, "labels": np.array([0, 1, 7])}, r"row 2: label 7 is outside \[0, 3\)"),
        ({"probs": PROBS, "labels": LABELS + 0.5}, "'labels' must hold whole numbers"),
        ({"probs": PROBS[:0], "labels": LABELS[:0]}, "holds no prediction"),
    ],
)
def test_wrong_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(PredictionFileError, match=message):
        read_predictions(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.replace("cat,0.7", "cow,0.7"), "row 1: label 'cow' is neither"),
        (CSV.replace("0.8", "much"), "column 'prob_dog' holds no numbers"),
        (CSV.replace("dog,0.1,0.8", "dog,0.8"), "line 3: 5 fields where the header has 6"),
        (CSV.replace("label", "truth"), "needs a column 'label'"),
        ("", "needs a column 'label'"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(PredictionFileError, match=message):
        read_predictions(tmp_path / "a.csv")


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("executed").touch, ())


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", probs=np.array([_Bomb()], dtype=object), labels=LABELS)
    Path("b.npz").write_bytes(pickle.dumps(_Bomb()))
    Path("c.safetensors").write_bytes(pickle.dumps(_Bomb()))
    for name in ("a.npz", "b.npz", "c.safetensors"):
        with pytest.raises(PredictionFileError, match="can't be read"):
            read_predictions(Path(name))
    assert not Path("executed").exists()


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato._core.files.FREE_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("probs.npy", bytes(1_000_000))
    with pytest.raises(PredictionFileError, match="which is refused"):
        read_predictions(tmp_path / "a.npz")


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(PredictionFileError, match="no such file"):
        read_predictions(tmp_path / "a.npz")
    (tmp_path / "a.txt").touch()
    with pytest.raises(PredictionFileError, match=r"known are \.csv, \.jsonl"):
        read_predictions(tmp_path / "a.txt")


def test_one_long_label_costs_no_room_in_other_rows() -> None:
    column = np.array(["x" * 100_000] + ["1"] * 20_000, dtype=object)
    tracemalloc.start()
    codes, names = spelled(column)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(names), codes[-1]) == (2, 0)
    assert peak < 20e6


def test_words_in_lists_are_counted(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(
        pa.array([0] * 50_000, "int32"), pa.array(["x" * 20_000])
    )
    places = pa.array(range(0, 50_001, 500), "int32")
    table = {"confidence": [0.5] * 100, "correct": [True] * 100}
    table["group"] = pa.ListArray.from_arrays(places, words)
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(PredictionFileError, match="words of 1,000,000,000 bytes"):
        read_any(tmp_path / "a.parquet")


def test_views_and_long_texts_of_torch(tmp_path: Path) -> None:
    whole = torch.zeros(10_000, dtype=torch.bfloat16)
    torch.save({f"a{number}": whole.view(100, 100) for number in range(60)}, tmp_path / "a.pt")
    with pytest.raises(PredictionFileError, match="views of each other"):
        read_any(tmp_path / "a.pt")
    assert _listing(["x" * 1000, "y", 1]).dtype == object
