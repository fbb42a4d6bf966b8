"""Texts in folders, one folder of `.txt` files for each class."""

from __future__ import annotations

from pathlib import Path

from sfumato.data.class_folders import (
    FileKind,
    check_parts,
    class_names,
    labelled_files,
    named_parts,
    part_names,
)
from sfumato.data.dataset import DataSplits
from sfumato.data.text.documents import (
    Documents,
    TokenOptions,
    Unknown,
    cut_parts,
    token_splits,
)

TEXTS = FileKind("text file", (".txt",))


def load_text_folder(
    *,
    root: str | Path,
    validation: float | int | None = None,
    test: float | int | None = None,
    encoding: str = "utf-8",
    vocabulary: int = 20000,
    length: int = 500,
    unknown: Unknown = "token",
    embeddings: str | Path | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """Splits from a folder of `.txt` files, laid out as those of images.

    Either `root` holds `train/`, `test/` and perhaps `val/`, each with one folder for each class;
    or it holds the class folders themselves and is divided by `seed`. Classes are sorted by name.

    Args:
        root: the folder.
        validation: share or count of training samples, stratified; 0.1 unless there is a `val/`.
        test: share or count of all samples where `root` has no `test/`; 0.2 by default.
        encoding: of the files, as Python names it.
        vocabulary: words that are kept, the most frequent ones of the training part.
        length: tokens that are kept of each text, from its beginning.
        unknown: other words are one `token`, or are left out (`drop`).
        embeddings: file of word vectors: GloVe's text format, or an npz of `words` and `vectors`.
        limit_train: size of the training set, stratified. None keeps all.
        limit_test: size of the test set, stratified. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: no such folder or file of vectors.
        ValueError: what is wrong with which file or folder.
    """
    root = Path(root).expanduser()
    options = TokenOptions(vocabulary, length, unknown, embeddings)
    names = named_parts(root)
    base = root
    if names:
        check_parts(root, names, TEXTS, validation=validation, test=test)
        base = root / "train"
    classes = class_names(base)
    roles = part_names(names) if names else {}
    found = {
        role: _read_set(root / name, classes, encoding)
        for role, name in roles.items()
        if role != "train"
    }
    documents, parts = cut_parts(
        _read_set(base, classes, encoding),
        classes,
        test=found.get("test", 0.2 if test is None else test),
        validation=found.get("validation", 0.1 if validation is None else validation),
        limit_train=limit_train,
        limit_test=limit_test,
        seed=seed,
    )
    return token_splits(documents, parts, classes, options)


def _read_set(root: Path, classes: tuple[str, ...], encoding: str) -> Documents:
    paths, labels = labelled_files(root, classes, TEXTS)
    return Documents([read_text(path, encoding) for path in paths], labels)


def read_text(path: Path, encoding: str) -> str:
    """The text of a file.

    Raises:
        ValueError: an empty file, bytes that are not in this encoding, or an unknown encoding.
    """
    return decode_text(path.read_bytes(), encoding, str(path))


def decode_text(content: bytes, encoding: str, where: str) -> str:
    """`read_text` of bytes that were read already."""
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
