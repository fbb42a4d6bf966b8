"""Read saved predictions from a file that may come from a stranger: nothing in it is executed."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# A compressed file can declare far more than it holds; this much is more than any test set.
LARGEST_BYTES = 8 * 2**30
_LABELS = ("labels", "label", "target", "targets")
_GROUPS = ("group", "groups")


class PredictionFileError(ValueError):
    """A file that can't be audited; the message names it, says why, and what would work."""


@dataclass(frozen=True)
class PredictionFile:
    """Predictions with their labels: logits or probabilities, never guessed from the values."""

    name: str
    labels: Tensor  # (N,) int64
    logits: Tensor | None = None  # (N, C)
    probs: Tensor | None = None  # (N, C)
    index: Tensor | None = None  # (N,) int64
    groups: list[str] | None = None
    classes: list[str] | None = None

    @property
    def predictions(self) -> Tensor:
        """What the file holds: logits or probabilities, (N, C)."""
        found = self.probs if self.logits is None else self.logits
        if found is None:
            raise ValueError("a prediction file holds logits or probs")
        return found

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities in double precision, (N, C)."""
        values = self.predictions.double()
        return values if self.logits is None else values.softmax(1)


def read_predictions(path: Path) -> PredictionFile:
    """Read `.npz`, `.safetensors`, `.csv` or `.parquet` predictions.

    Arrays: `logits` or `probs` (N, C) and `labels` (N,); optional `index`, `group`, `classes`.
    Tables: columns `logit_<class>` or `prob_<class>`, a column `label` with the class's name or
    number, optional `index` and `group`.

    Raises:
        PredictionFileError: missing, unreadable, pickled, oversized, or without what is needed.
    """
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    readers: dict[str, Callable[[Path], PredictionFile]] = {
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PredictionFileError(
            f"{path}: unknown kind of file; known are {', '.join(sorted(readers))}"
        )
    try:
        return reader(path)
    except PredictionFileError:
        raise
    except Exception as error:
        # Broken files fail in as many ways as there are parsers behind; each becomes one message.
        raise PredictionFileError(f"{path}: can't be read ({error})") from None


def read_run_predictions(path: Path, split: str, name: str) -> PredictionFile:
    """The stored predictions of a run folder, called `name`; a file is read as it is."""
    if not path.is_dir():
        return read_predictions(path)
    stored = path / "predictions" / f"{split}.npz"
    if not stored.is_file():
        there = sorted(each.stem for each in stored.parent.glob("*.npz"))
        raise PredictionFileError(
            f"{path}: holds no predictions of {split!r} (has {there or 'none'}); pass the folder "
            "of a finished run, such as STUDY/runs/25403a2604ab"
        )
    return replace(read_predictions(stored), name=name)


def _read_npz(path: Path) -> PredictionFile:
    with zipfile.ZipFile(path) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
    if declared > LARGEST_BYTES:
        raise PredictionFileError(
            f"{path}: unpacks to {declared / 2**30:.0f} GiB, which is refused"
        )
    with np.load(path, allow_pickle=False) as content:
        return _from_arrays(path, {key: content[key] for key in content.files})


def _read_safetensors(path: Path) -> PredictionFile:
    from safetensors.torch import load_file

    content = {
        key: value.float() if value.is_floating_point() else value
        for key, value in load_file(path).items()
    }
    return _from_arrays(path, {key: value.numpy() for key, value in content.items()})


def _read_csv(path: Path) -> PredictionFile:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        columns: list[list[str]] = [[] for _ in header]
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise PredictionFileError(
                    f"{path}, line {number}: {len(row)} fields where the header has {len(header)}"
                )
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    return _from_table(path, dict(zip(header, columns, strict=True)))


def _read_parquet(path: Path) -> PredictionFile:
    try:
        from pyarrow import parquet
    except ImportError:
        raise PredictionFileError(
            f"{path}: reading parquet needs pyarrow; install it with 'pip install pyarrow'"
        ) from None
    table = parquet.read_table(path)
    columns = {name: [str(v) for v in table[name].to_pylist()] for name in table.column_names}
    return _from_table(path, columns)


def _from_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> PredictionFile:
    label_key = _first(arrays, _LABELS)
    kinds = [key for key in ("logits", "probs") if key in arrays]
    if label_key is None or len(kinds) != 1:
        raise PredictionFileError(
            f"{path}: needs 'labels' and exactly one of 'logits' and 'probs', has {sorted(arrays)}"
        )
    group_key = _first(arrays, _GROUPS)
    scores = _matrix(path, kinds[0], arrays[kinds[0]])
    return _checked(
        path,
        PredictionFile(
            name=path.stem,
            labels=_integers(path, label_key, arrays[label_key]),
            logits=scores if kinds[0] == "logits" else None,
            probs=scores if kinds[0] == "probs" else None,
            index=_integers(path, "index", arrays["index"]) if "index" in arrays else None,
            groups=None if group_key is None else [str(g) for g in arrays[group_key].tolist()],
            classes=[str(c) for c in arrays["classes"].tolist()] if "classes" in arrays else None,
        ),
    )


def _from_table(path: Path, columns: Mapping[str, list[str]]) -> PredictionFile:
    label_key, group_key = _first(columns, _LABELS), _first(columns, _GROUPS)
    found = {
        kind: [name for name in columns if name.startswith(prefix)]
        for kind, prefix in (("logits", "logit_"), ("probs", "prob_"))
    }
    kinds = [kind for kind, names in found.items() if names]
    if label_key is None or len(kinds) != 1:
        raise PredictionFileError(
            f"{path}: needs a column 'label' and columns 'prob_<class>' or 'logit_<class>' "
            f"(not both), has {list(columns)[:12]}"
        )
    names = found[kinds[0]]
    scores = _matrix(path, kinds[0], _numbers(path, columns, names))
    classes = [name.partition("_")[2] for name in names]
    index = None
    if "index" in columns:
        index = _integers(path, "index", _numbers(path, columns, ["index"])[:, 0])
    return _checked(
        path,
        PredictionFile(
            name=path.stem,
            labels=_labels_by_name(path, columns[label_key], classes),
            logits=scores if kinds[0] == "logits" else None,
            probs=scores if kinds[0] == "probs" else None,
            index=index,
            groups=None if group_key is None else list(columns[group_key]),
            classes=classes,
        ),
    )


def _numbers(path: Path, columns: Mapping[str, list[str]], names: list[str]) -> np.ndarray:
    arrays = []
    for name in names:
        try:
            arrays.append(np.array(columns[name], dtype=np.float64))
        except ValueError as error:
            raise PredictionFileError(
                f"{path}: column {name!r} holds no numbers: {error}"
            ) from None
    return np.stack(arrays, axis=1)


def _labels_by_name(path: Path, values: list[str], classes: list[str]) -> Tensor:
    """A label is a class's name as in the column headers, or else its number."""
    places = {name: place for place, name in enumerate(classes)}
    labels = []
    for row, value in enumerate(values):
        if value not in places and not value.isdigit():
            raise PredictionFileError(
                f"{path}, row {row + 1}: label {value!r} is neither a class name of the header "
                "nor a class number"
            )
        labels.append(places[value] if value in places else int(value))
    return torch.tensor(labels, dtype=torch.int64)


def _matrix(path: Path, name: str, array: np.ndarray) -> Tensor:
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind != "f":
        raise PredictionFileError(
            f"{path}: {name!r} must be floating point (N, C) with C >= 2, "
            f"got {array.dtype} {array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.promote_types(array.dtype, "f4")))


def _integers(path: Path, name: str, array: np.ndarray) -> Tensor:
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and not (array % 1).any())
    if array.ndim != 1 or not whole:
        raise PredictionFileError(
            f"{path}: {name!r} must hold whole numbers (N,), got {array.dtype} {array.shape}"
        )
    return torch.from_numpy(array.astype(np.int64))


def _checked(path: Path, found: PredictionFile) -> PredictionFile:
    count, classes = found.predictions.shape
    if not count:
        raise PredictionFileError(f"{path}: holds no prediction")
    for name in ("labels", "index", "groups"):
        part = getattr(found, name)
        if part is not None and len(part) != count:
            raise PredictionFileError(f"{path}: {len(part)} {name} for {count} predictions")
    bad = (found.labels < 0) | (found.labels >= classes)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise PredictionFileError(
            f"{path}, row {row}: label {int(found.labels[row])} is outside [0, {classes})"
        )
    if found.classes is not None and len(found.classes) != classes:
        raise PredictionFileError(f"{path}: {len(found.classes)} class names for {classes} classes")
    return found


def _first(content: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in content), None)
