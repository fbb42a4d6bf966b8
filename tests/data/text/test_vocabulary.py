"""Words as numbers, and vectors for them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.data.text.vocabulary import (
    Vocabulary,
    most_frequent_words,
    read_embeddings,
    split_words,
)

WORDS = ("cat", "dog", "über")
VECTORS = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])


def _npz(folder: Path, words: str = "dog\nüber\ncat", vectors: np.ndarray = VECTORS) -> Path:
    joined = np.frombuffer(words.encode(), dtype=np.uint8)
    np.savez(folder / "vectors.npz", words=joined, vectors=vectors.astype(np.float16))
    return folder / "vectors.npz"


def test_words_of_any_script_in_lower_case() -> None:
    assert split_words("Über-cool: ΑΒΓ, snake_case; 'quoted' don't") == [
        *("über", "cool", "αβγ", "snake", "case", "quoted", "don't"),
    ]


def test_equally_frequent_words_have_one_order() -> None:
    assert most_frequent_words(["d c", "b a", "a"], 3) == ("a", "b", "c")


def test_unknown_words_are_kept_or_dropped_before_the_text_is_cut() -> None:
    texts = ["cat bird dog bird cat", "bird"]
    kept = Vocabulary(WORDS, length=3).encode(texts)
    dropped = Vocabulary(WORDS, length=3, drop_unknown=True).encode(texts)
    assert kept.tolist() == [[2, 1, 3], [1, 0, 0]]
    assert dropped.tolist() == [[2, 3, 2], [1, 0, 0]]
    assert kept.dtype == torch.int32


def test_a_long_text_takes_no_list_of_its_words() -> None:
    text = "ab " * 300_000
    tracemalloc.start()
    assert most_frequent_words([text], 5) == ("ab",)
    assert Vocabulary(("ab",), length=3).encode([text]).tolist() == [[2, 2, 2]]
    assert Vocabulary(("cd",), length=3, drop_unknown=True).encode([text]).tolist() == [[1]]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(text)


def test_a_text_without_words_has_a_token() -> None:
    assert Vocabulary(WORDS, length=3).encode(["", "!?"]).tolist() == [[1], [1]]


def test_vectors_belong_to_their_words_in_both_formats(tmp_path: Path) -> None:
    text = tmp_path / "glove.txt"
    text.write_text("dog 1.0 2.0\nüber 3 -4\nbird 9 9\ncat 5e-1 .25\n", encoding="utf-8")
    expected = torch.tensor([[0, 0], [0, 0], [0.5, 0.25], [1, 2], [3, -4]])
    for path in (text, _npz(tmp_path)):
        assert torch.equal(read_embeddings(path, WORDS), expected)


def test_a_word_without_vector_is_zero(tmp_path: Path) -> None:
    vectors = read_embeddings(_npz(tmp_path), ("cat", "heffalump"))
    assert vectors[2:].tolist() == [[0.5, 0.25], [0, 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat 1 2\ndog 1 2 3\n", "line 2: a vector of 3 numbers among ones of 2"),
        (b"cat 1 x\n", "line 1: could not convert string"),
        (b"cat\n", "line 1: expected a word and its vector"),
        (b"cat 1 2\n\xff 1 2\n", "line 2: not text in UTF-8"),
        (b"chat 1 2\n", "no vector for any of the 3 words"),
        (b"cat nan 2\n", "not finite"),
    ],
)
def test_bad_files_of_vectors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_embeddings(path, WORDS)


def test_bad_npz_of_vectors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 words for 3 vectors"):
        read_embeddings(_npz(tmp_path, "cat\ndog"), WORDS)
    with pytest.raises(ValueError, match="vectors floating point"):
        read_embeddings(_npz(tmp_path, vectors=VECTORS[0]), WORDS)
    np.savez(tmp_path / "other.npz", words=np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="expected words and vectors"):
        read_embeddings(tmp_path / "other.npz", WORDS)
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "pickled.npz", words=objects, vectors=objects)
    with pytest.raises(ValueError, match="without pickle"):
        read_embeddings(tmp_path / "pickled.npz", WORDS)
    with pytest.raises(FileNotFoundError, match=r"absent.txt: no such file"):
        read_embeddings(tmp_path / "absent.txt", WORDS)


def test_vectors_must_be_of_the_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"vectors must be \(5, D\)"):
        Vocabulary(WORDS, 3, vectors=torch.zeros(3, 2))
