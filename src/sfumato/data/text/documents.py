"""Labelled texts, from folders of `.txt` files or in memory, and splits of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sfumato._core.files import read_bytes
from sfumato._core.tokens import PADDING
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.index import (
    FileKind,
    check_split_folders,
    class_names,
    folder_of_splits,
    labelled_names,
    split_folders,
)
from sfumato.data.splits import Shared, SplitPositions, limited_positions, source, split_positions
from sfumato.data.text.vocabulary import Vocabulary, most_frequent_words, read_embeddings

# The shared options that decide which texts are used, and how they become tokens.
OPTIONS = ("limit_train", "limit_test", "seed", "vocabulary", "length", "unknown", "embeddings")


@dataclass(frozen=True)
class Documents:
    texts: Sequence[str]
    labels: Sequence[int]

    def __add__(self, others: Documents) -> Documents:
        return Documents([*self.texts, *others.texts], [*self.labels, *others.labels])


# What a source has of its own, or how much is cut from its training part.
Part = Documents | float | int


def _cut(
    train: Documents, num_classes: int, test: Part, validation: Part, shared: Shared
) -> tuple[Documents, SplitPositions]:
    """All documents, and which of them are trained, validated and tested on, stratified."""
    every, parts = (
        train,
        split_positions(
            torch.tensor(train.labels, dtype=torch.int64),
            num_classes=num_classes,
            test=0 if isinstance(test, Documents) else test,
            validation=0 if isinstance(validation, Documents) else validation,
            limit_train=shared.limit_train,
            seed=shared.seed,
        ),
    )
    for name, part in (("test", test), ("validation", validation)):
        if isinstance(part, Documents):
            parts = parts._replace(**{name: torch.arange(len(part.texts)) + len(every.texts)})
            every = every + part
    labels = torch.tensor(every.labels, dtype=torch.int64)
    kept = limited_positions(labels[parts.test], limit_test=shared.limit_test, seed=shared.seed)
    return every, parts._replace(test=parts.test[kept])


def token_splits(
    train: Documents, classes: Sequence[str], *, test: Part, validation: Part, shared: Shared
) -> DataSplits:
    """Splits of tokens; only the training part decides which words there are.

    Each part is held by length, shortest first, so that batches in its order hold little padding;
    `index` is the position in the training documents followed by those of the other parts.
    """
    documents, parts = _cut(train, len(classes), test, validation, shared)
    trained = (documents.texts[place] for place in parts.train.tolist())
    words = most_frequent_words(trained, shared.vocabulary)
    if not words:
        raise ValueError("the training texts have no words; which language and encoding?")
    vectors = None if shared.embeddings is None else read_embeddings(shared.embeddings, words)
    vocabulary = Vocabulary(words, shared.length, shared.unknown == "drop", vectors)
    labels = torch.tensor(documents.labels, dtype=torch.int64)

    def dataset(positions: Tensor) -> ArrayDataset:
        tokens = vocabulary.encode(documents.texts[place] for place in positions.tolist())
        order = (tokens != PADDING).sum(1).argsort(stable=True)
        return ArrayDataset(
            tokens[order],
            labels[positions][order],
            tuple(classes),
            index=positions[order],
            vocabulary=vocabulary,
        )

    return DataSplits(*(dataset(part) for part in parts))


TEXTS = FileKind("text file", (".txt",))


@source(*OPTIONS)
def load_text_folder(
    shared: Shared,
    *,
    root: str | Path,
    validation: float | int | None = None,
    test: float | int | None = None,
    encoding: str = "utf-8",
) -> DataSplits:
    """Splits from a folder of `.txt` files, laid out as those of images.

    Either `root` holds `train/`, `test/` and perhaps `val/`, each with one folder for each class;
    or it holds the class folders themselves and is divided by `seed`. Classes are sorted by name.

    Args:
        root: the folder.
        validation: share or count of training samples, stratified; 0.1 unless there is a `val/`.
        test: share or count of all samples where `root` has no `test/`; 0.2 by default.
        encoding: of the files, as Python names it.
    """
    root = Path(root).expanduser()
    names = split_folders(root)
    roles = {"train": ""}
    if names:
        check_split_folders(root, names, TEXTS, validation=validation, test=test)
        roles = folder_of_splits(names)
    classes = class_names(root / roles["train"])
    found = {role: _read_set(root / name, classes, encoding) for role, name in roles.items()}
    return token_splits(
        found["train"],
        classes,
        test=found.get("test", 0.2 if test is None else test),
        validation=found.get("validation", 0.1 if validation is None else validation),
        shared=shared,
    )


def _read_set(root: Path, classes: tuple[str, ...], encoding: str) -> Documents:
    names, labels = labelled_names(root, classes, TEXTS)
    return Documents([read_text(root / name, encoding) for name in names], labels)


def read_text(path: Path, encoding: str) -> str:
    return decode_text(read_bytes(path), encoding, str(path))


def decode_text(content: bytes, encoding: str, where: str) -> str:
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not text in {encoding} (byte {error.start}: {error.reason}); say which "
            "encoding it has, as encoding: latin-1, or convert it"
        ) from None
    except LookupError:
        raise ValueError(f"encoding {encoding!r} is not one that Python knows") from None
    if not text.strip():
        raise ValueError(f"{where}: empty; fill it or remove it")
    return text
