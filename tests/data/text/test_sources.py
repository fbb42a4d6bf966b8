"""Texts from folders, tables and 20 Newsgroups."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato._core.files import ContentError
from sfumato.data import ArrayDataset, DataSplits, load_data
from sfumato.data.text.newsgroups import strip_message

CLASSES = ("cats", "dogs")


def _text(label: str, number: int) -> str:
    """Texts of 2 to 12 words, all different."""
    return f"{label} number{number} " + "and so on " * (number % 4)


def _folder(root: Path, count: int = 10, suffix: str = ".txt") -> Path:
    for label in CLASSES:
        (root / label).mkdir(parents=True)
        for number in range(count):
            (root / label / f"{number:02}{suffix}").write_text(_text(label, number))
    return root


def _words(dataset: ArrayDataset, row: int) -> list[str]:
    assert dataset.vocabulary is not None
    known = ("", "?", *dataset.vocabulary.words)
    return [known[token] for token in dataset.images[row] if token]


def _load(name: str, **options: Any) -> DataSplits:
    return load_data({"name": name, **options})


def test_class_folders_are_divided(tmp_path: Path) -> None:
    data = _load("text_folder", root=str(_folder(tmp_path / "texts")))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [14, 2, 4]
    assert data.classes == CLASSES
    for part in (data.train, data.validation, data.test):
        for row in range(len(part)):
            assert _words(part, row)[0] in (data.classes[part.labels[row]], "?")
    every = torch.cat([data.train.index, data.validation.index, data.test.index])
    assert every.sort().values.tolist() == list(range(20))


def test_only_the_training_part_decides_the_vocabulary(tmp_path: Path) -> None:
    """Every text has a word of its own: those of the other parts are unknown."""
    data = _load("text_folder", root=str(_folder(tmp_path / "texts", 30)))
    assert data.train.vocabulary is not None
    assert data.test.vocabulary is data.train.vocabulary
    own = {word for word in data.train.vocabulary.words if word.startswith("number")}
    trained = {int(index) % 30 for index in data.train.index}
    assert own == {f"number{number}" for number in trained}


def test_parts_are_held_by_length_with_their_labels_and_index(tmp_path: Path) -> None:
    data = _load("text_folder", root=str(_folder(tmp_path / "texts", 30)), length=7)
    lengths = data.train.lengths
    assert lengths is not None
    assert lengths.tolist() == sorted(lengths.tolist())
    assert lengths.max() == 7
    for row, index in enumerate(data.train.index.tolist()):
        expected = _text(CLASSES[index // 30], index % 30).split()[:7]
        assert _words(data.train, row) == expected


def test_folder_of_parts(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("test", 3), ("val", 2)):
        _folder(tmp_path / part, count)
    data = _load("text_folder", root=str(tmp_path), limit_train=8, limit_test=2)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 4, 2]
    with pytest.raises(ValueError, match="has its own test/"):
        _load("text_folder", root=str(tmp_path), test=0.5)


def test_bad_text_files(tmp_path: Path) -> None:
    root = _folder(tmp_path / "texts")
    bad = root / "cats" / "03.txt"
    bad.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"03.txt: not text in utf-8 \(byte 3.*encoding: latin-1"):
        _load("text_folder", root=str(root))
    assert len(_load("text_folder", root=str(root), encoding="latin-1").train) == 14
    with pytest.raises(ValueError, match="encoding 'latin-99' is not one"):
        _load("text_folder", root=str(root), encoding="latin-99")
    bad.write_text(" \n")
    with pytest.raises(ValueError, match=r"03.txt: empty; fill it or remove it"):
        _load("text_folder", root=str(root))
    bad.rename(root / "cats" / "03.pdf")
    with pytest.raises(ValueError, match=r"03.pdf: is no text file; expected one of .txt"):
        _load("text_folder", root=str(root))


def _rows() -> list[dict[str, Any]]:
    return [
        {"body": _text(label, number), "kind": label, "id": number}
        for number in range(10)
        for label in CLASSES
    ]


def _csv(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ["body,kind,id", *(f'"{row["body"]}",{row["kind"]},{row["id"]}' for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize("write", [_csv, _jsonl, _parquet])
def test_tables_of_all_formats_are_the_same(
    tmp_path: Path, write: Callable[[Path, list[dict[str, Any]]], None]
) -> None:
    path = tmp_path / f"table.{write.__name__.removeprefix('_')}"
    write(path, _rows())
    data = _load("table", train=str(path), text="body", label="kind")
    assert data.classes == CLASSES
    assert [len(part) for part in (data.train, data.validation, data.test)] == [14, 2, 4]
    for row, index in enumerate(data.train.index.tolist()):
        assert _words(data.train, row) == _rows()[index]["body"].split()


def test_table_with_files_of_its_own(tmp_path: Path) -> None:
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test", "validation")}
    rows = [{"text": f"word{number}", "label": number} for number in (10, 9, 10, 9)]
    for path in paths.values():
        _jsonl(Path(path), rows)
    data = _load("table", **paths)
    assert data.classes == ("9", "10")
    assert len(data.train) == len(data.test) == len(data.validation) == 4
    _jsonl(Path(paths["test"]), [{"text": "word", "label": 7}])
    with pytest.raises(ValueError, match=r"test.jsonl: labels \['7'\] are not in the training"):
        _load("table", **paths)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "body,label\nx,y\n", r"line 2: no column 'text', there are \['body', 'label'\]"),
        ("a.csv", "text,label\nx,\n", r"line 2: label must be a word .* label the row or remove"),
        ("a.csv", "text,label\n,y\n", "line 2: text must be a text, got ''"),
        ("a.csv", "text,label\nx,y,z\n", "line 2: not as many fields as the header"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.csv", "", "a.csv: empty"),
        ("a.jsonl", '{"text": "x"}\n', "line 1: no column 'label'"),
        ("a.jsonl", '{"text": "x", "label": 1.5}\n', "line 1: label must be a word or a whole"),
        ("a.jsonl", "{text}\n", "line 1: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: expected an object of columns, got list"),
        ("a.parquet", "no", "a.parquet: not readable as Parquet"),
        ("a.xls", "no", "expected a table that ends in .csv"),
    ],
)
def test_bad_tables(tmp_path: Path, name: str, content: str, message: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        _load("table", train=str(tmp_path / name))


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent.csv: no such file"):
        _load("table", train=str(tmp_path / "absent.csv"))


HEADER = "From: someone\nSubject: Re: Why"
QUOTE = "In article <1> other writes:\n> Why is it?\n| And how?"
BODY = "Because so.\n\nIt is > that."
FOOTER = "-- \nsomeone, somewhere"


@pytest.mark.parametrize(
    ("remove", "kept"),
    [
        ([], [HEADER, QUOTE, BODY, FOOTER]),
        (["headers"], [QUOTE, BODY, FOOTER]),
        (["quotes"], [HEADER, BODY, FOOTER]),
        (["footers"], [HEADER, QUOTE, BODY]),
        (["footers", "quotes", "headers"], [BODY]),
    ],
)
def test_messages_lose_what_is_removed(remove: Any, kept: list[str]) -> None:
    message = "\n\n".join([HEADER, QUOTE, BODY, FOOTER])
    assert strip_message(message, remove).split() == "\n".join(kept).split()


def test_a_message_of_one_paragraph_has_no_footer() -> None:
    assert strip_message("Because so.\nIt is.", ["footers"]) == "Because so.\nIt is."


def _newsgroups(root: Path) -> Path:
    for part, count in (("train", 8), ("test", 5)):
        for label in CLASSES:
            folder = root / f"20news-bydate-{part}" / label
            folder.mkdir(parents=True)
            for number in range(count):
                text = f"From: {label}@{part}\n\n{part} {_text(label, number)} caf\xe9"
                (folder / str(number)).write_bytes(text.encode("latin-1"))
    return root


def test_newsgroups_by_date_and_at_random(tmp_path: Path) -> None:
    root = str(_newsgroups(tmp_path / "news"))
    dated = _load("newsgroups", root=root, validation=4, remove=["headers"])
    assert [len(part) for part in (dated.train, dated.validation, dated.test)] == [12, 4, 10]
    assert {_words(dated.train, row)[0] for row in range(12)} == {"train"}
    assert {_words(dated.test, row)[0] for row in range(10)} == {"?"}  # "test" is only there
    cut = _load("newsgroups", root=root, validation=4, split="random")
    assert [len(part) for part in (cut.train, cut.validation, cut.test)] == [17, 4, 5]
    assert {"train", "test"} <= set(cut.train.vocabulary.words if cut.train.vocabulary else ())


def test_newsgroups_from_an_archive(tmp_path: Path) -> None:
    folder = _newsgroups(tmp_path / "news")
    with tarfile.open(tmp_path / "news.tar.gz", "w:gz") as archive:
        archive.add(folder, "news")
    unpacked, packed = (
        _load("newsgroups", root=str(root), validation=4)
        for root in (folder, tmp_path / "news.tar.gz")
    )
    assert torch.equal(unpacked.train.images, packed.train.images)
    assert torch.equal(unpacked.test.labels, packed.test.labels)


def test_newsgroups_with_a_group_for_testing_only(tmp_path: Path) -> None:
    root = _newsgroups(tmp_path / "news")
    mice = root / "20news-bydate-test" / "mice"
    mice.mkdir()
    (mice / "7").write_text("From: mouse\n\nSqueak")
    with pytest.raises(ValueError, match="7: 20news-bydate-train has no group 'mice'"):
        _load("newsgroups", root=str(root))


def test_newsgroups_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="20news-bydate-train: no such folder"):
        _load("newsgroups", root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"absent.tar: no such folder or archive"):
        _load("newsgroups", root=str(tmp_path / "absent.tar"))
    (tmp_path / "cut.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"cut.tar.gz: cut short, unreadable or no tar archive"):
        _load("newsgroups", root=str(tmp_path / "cut.tar.gz"))
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(_folder(tmp_path / "texts"), "texts")
    with pytest.raises(ValueError, match=r"other.tar: has no 20news-bydate-train with groups"):
        _load("newsgroups", root=str(tmp_path / "other.tar"))


@pytest.mark.slow
def test_the_real_newsgroups(real_data: Callable[[str], Path]) -> None:
    data = _load(
        "newsgroups",
        root=str(real_data("20news-bydate.tar.xz")),
        embeddings=str(real_data("glove-100d-20news.npz")),
        remove=["headers"],
    )
    assert [len(part) for part in (data.train, data.validation, data.test)] == [10414, 900, 7532]
    assert data.train.num_classes == 20
    assert data.train.vocabulary is not None
    assert data.train.vocabulary.vectors is not None
    assert data.train.vocabulary.vectors.shape == (20002, 100)
    known = data.train.vocabulary.vectors[2:].abs().sum(1) > 0
    assert known[:2000].float().mean() > 0.9


def test_tokens_are_checked(tmp_path: Path) -> None:
    data = _load("text_folder", root=str(_folder(tmp_path / "texts"))).train
    with pytest.raises(ValueError, match="tokens must be int32"):
        ArrayDataset(data.images.long(), data.labels, CLASSES, vocabulary=data.vocabulary)
    with pytest.raises(ValueError, match="tokens must be"):
        ArrayDataset(data.images + 999, data.labels, CLASSES, vocabulary=data.vocabulary)
    with pytest.raises(ValueError, match="masks are of images"):
        ArrayDataset(
            data.images, data.labels, CLASSES, masks=data.images, vocabulary=data.vocabulary
        )
    with pytest.raises(ValueError, match=r"labels of texts must be \(N,\)"):
        ArrayDataset(data.images, data.labels[:, None], CLASSES, vocabulary=data.vocabulary)


def test_texts_may_be_longer_than_fields_usually_are(tmp_path: Path) -> None:
    long = "word " * 40_000
    rows = [f'"{_text(label, number)}",{label}' for label in CLASSES for number in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, f'"{long}",cats', ""]))
    data = load_data({"name": "table", "train": tmp_path / "a.csv"})
    assert sum(len(each) for each in (data.train, data.validation, data.test)) == 41


def test_labels_that_only_begin_like_numbers(tmp_path: Path) -> None:
    labels = ["--5", "10", "9", "9" * 5000]
    rows = [f'"{_text(label[:4], number)}",{label}' for label in labels for number in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, ""]))
    data = load_data({"name": "table", "train": tmp_path / "a.csv"})
    assert data.classes == ("9", "10", "--5", "9" * 5000)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": ' + "[" * 100_000, r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1, "text": "b"}', "2 columns are called 'text'"),
        ("a.csv", "text,label,label\na,1,2\n", r"a\.csv: 2 columns are called 'label'; rename"),
    ],
)
def test_tables_that_can_t_be_read(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_data({"name": "table", "train": tmp_path / name})


def test_parquet_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = arrow.array([b"caf\xe9", b"tea"]).view(arrow.string())
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": texts, "label": [0, 1]}), path)
    with pytest.raises(ContentError, match=r"a\.parquet: not readable as Parquet: .*utf-8"):
        load_data({"name": "table", "train": path})


def test_other_columns_of_parquet_are_not_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    labels = [CLASSES[number % 2] for number in range(40)]
    texts = [_text(label, number) for number, label in enumerate(labels)]
    times = arrow.array([2**62] * 40, arrow.timestamp("us"))  # in the year 148,108
    table = arrow.table({"text": texts, "label": labels, "time": times})
    parquet.write_table(table, tmp_path / "a.parquet")
    spec = {"name": "table", "train": tmp_path / "a.parquet"}
    assert load_data(spec).classes == CLASSES
    with pytest.raises(ValueError, match=r"a\.parquet: not readable as Parquet"):
        load_data({**spec, "label": "time"})
    with pytest.raises(ValueError, match=r"no column 'x', there are .*'time'"):
        load_data({**spec, "label": "x"})


@pytest.mark.parametrize(
    ("rows", "word", "refusal"),
    [
        (3000, "word " * 2**20, "words of"),
        (900, "word " * 2**16, "words of"),  # spelled out, it was 0.3 GB, and four times that
        (1_000_000, "a b", "far more memory"),
    ],
    ids=["huge", "large", "many"],
)
def test_a_parquet_bomb_takes_no_memory(tmp_path: Path, rows: int, word: str, refusal: str) -> None:
    """One word that is there once in the file and in every row: 3 kB took all memory."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    places = arrow.array(np.zeros(rows, np.int32))
    text = arrow.DictionaryArray.from_arrays(places, arrow.array([word]))
    path = tmp_path / "a.parquet"
    table = arrow.table({"text": text, "label": arrow.array(np.arange(rows) % 2)})
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 200_000
    before = arrow.total_allocated_bytes()
    with pytest.raises(ValueError, match=rf"a\.parquet.*{refusal}"):
        load_data({"name": "table", "train": path})
    assert arrow.total_allocated_bytes() - before < 2**28
